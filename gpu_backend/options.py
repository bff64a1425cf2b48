"""The options of `kvsim gpu`; nothing heavy is imported for --help."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any


def add_options(gpu: ArgumentParser) -> None:
    """The subcommands of `kvsim gpu`."""
    actions = gpu.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    _add_check(actions)
    _add_bench(actions)
    _add_calibrate(actions)
    _add_backends(actions)
    _add_memory(actions)


def _action(actions: Any, name: str, about: str) -> ArgumentParser:
    one: ArgumentParser = actions.add_parser(name, help=about, description=about)
    return one


def _add_device(parser: ArgumentParser, backend: str = "reference") -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (auto)")
    parser.add_argument(
        "--backend",
        default=backend,
        help=f"attention backend, see `kvsim gpu backends` ({backend})",
    )


def _add_check(actions: Any) -> None:
    about = "Check every block table of a run: pool rules, whose content is read, real attention."
    check = _action(actions, "check", about)
    check.add_argument(
        "target",
        metavar="TARGET",
        type=Path,
        nargs="?",
        help="a configuration (.yaml) or a step trace (.npz, .jsonl); none with --mutants",
    )
    _add_device(check)
    check.add_argument(
        "--model",
        default="tiny",
        help="the decoder: tiny, or llama or qwen3 of transformers (tiny)",
    )
    check.add_argument("--dtype", help="of the decoder (float64 with all defaults, else float32)")
    check.add_argument(
        "--tokens",
        type=int,
        default=20_000,
        help="most tokens that the decoder computes; 0 for none at all (20000)",
    )
    check.add_argument("--save", metavar="TRACE", type=Path, help="keep the run's step trace")
    check.add_argument("--policy", metavar="LABEL", help="only this policy of the configuration")
    check.add_argument("--mutants", action="store_true", help="check the checks: bugs on purpose")


def _add_bench(actions: Any) -> None:
    about = "Time KV writes and attention of a backend against what the device can do."
    bench = _action(actions, "bench", about)
    _add_device(bench)
    bench.add_argument("--dtype", help="(bfloat16 on a GPU, float32 on a CPU)")
    bench.add_argument("--quick", action="store_true", help="toy sizes")
    bench.add_argument("--json", metavar="FILE", type=Path, help="write the numbers too")


def _add_calibrate(actions: Any) -> None:
    about = "Measure a profile for `latency: {use: profile}`, and how well it foretells steps."
    calibrate = _action(actions, "calibrate", about)
    _add_device(calibrate)
    calibrate.add_argument("--quick", action="store_true", help="toy sizes")
    calibrate.add_argument(
        "--out", metavar="FILE", type=Path, default=Path("profile.json"), help="(profile.json)"
    )
    calibrate.add_argument(
        "--tables", metavar="GPU", help="fit to published kernel tables instead; prints YAML"
    )


def _add_backends(actions: Any) -> None:
    backends = _action(actions, "backends", "List attention backends, and why not where not.")
    backends.add_argument("--device", default="auto", help="auto, cpu or cuda (auto)")


def _add_memory(actions: Any) -> None:
    memory = _action(actions, "memory", "Say how many KV blocks fit beside a model on a GPU.")
    memory.add_argument("model", metavar="MODEL", help="a profile, e.g. llama-3.1-8b, or .yaml")
    memory.add_argument("gpu", metavar="GPU", help="a profile, e.g. h100, or a .yaml file")
    memory.add_argument("--tensor-parallel", type=int, default=1, help="GPUs (1)")
    memory.add_argument("--block-size", type=int, default=16, help="tokens per block (16)")
    memory.add_argument("--utilization", type=float, default=0.9, help="share of memory (0.9)")
    memory.add_argument("--weight-bits", type=float, help="(as the model was published)")
    memory.add_argument("--kv-bytes", type=float, default=2.0, help="per number: 2 bf16, 1 fp8 (2)")
