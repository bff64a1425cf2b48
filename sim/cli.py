"""The command `kvsim`: its options, and its exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.arguments import Parser
from sim.blame import blame
from sim.errors import KvsimError

EXIT_CODES = """\
exit codes:
  0    done
  1    golden: some recording differs; check: a rule is broken; run: some run failed;
       elsewhere: a class of your own raised an error (one line on stderr)
  2    a configuration, trace, option or file that must be mended (one line on stderr)
  130  interrupted (Ctrl-C); earlier results are untouched, and the same command goes on from here
  141  whoever read the output stopped reading
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in *argv* (default: the program's arguments); its exit code."""
    arguments = parser().parse_args(argv)
    try:
        from sim.commands import execute  # nothing is loaded for --help

        code = execute(arguments)
        sys.stdout.flush()
        return code
    except KvsimError as error:
        print(f"kvsim: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 141
    except KeyboardInterrupt:
        print("kvsim: interrupted", file=sys.stderr)
        return 130
    except (Exception, SystemExit) as error:
        line = blame(error)
        if line is None:  # a bug in kvsim
            raise
        print(f"kvsim: error: {line}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="kvsim",
        description="Simulate the KV-cache policies of LLM serving engines.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version)
    commands = top.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    adders = (_add_run, _add_replay, _add_mrc, _add_trace, _add_golden, _add_check, _add_list)
    more = (_add_validate, _add_report, _add_explain, _add_decompose, _add_gpu, _add_example)
    for add in (*adders, *more):
        add(commands)
    return top


class _Version(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, help="print the version and exit", **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from sim.studies.provenance import installed

        print(f"kvsim {installed('kvsim') or '(not installed)'}")
        parser.exit()


def _command(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return one


def _add_run(commands: Any) -> None:
    about = "Run an experiment, or what is still missing of it; write tables, plots and its config."
    run = _command(commands, "run", about)
    run.add_argument("config", metavar="CONFIG", type=Path, help="a YAML file")
    _add_overrides(run)
    run.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="the results' folder (default: the config's report.out, else results/<name>)",
    )
    run.add_argument(
        "--jobs", type=int, metavar="N", help="processes on this machine (one for each core)"
    )
    run.add_argument(
        "--executor",
        choices=("serial", "processes", "dask"),
        help="who computes (processes, where there are several runs)",
    )
    run.add_argument(
        "--scheduler", metavar="ADDRESS", help="a Dask scheduler, e.g. tcp://host:8786"
    )


def _add_overrides(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="change one value, e.g. cache.num_blocks=4096 (may be repeated)",
    )


def _add_validate(commands: Any) -> None:
    about = "Check a configuration and say what it would run; nothing is simulated."
    validate = _command(commands, "validate", about)
    what = validate.add_mutually_exclusive_group(required=True)
    what.add_argument("config", metavar="CONFIG", type=Path, nargs="?", help="a YAML file")
    what.add_argument(
        "--schema", action="store_true", help="print the JSON schema for editors instead"
    )
    _add_overrides(validate)


def _add_report(commands: Any) -> None:
    from sim.commands.report import add_options

    about = "Say what results mean: a page with the answer, tables and figures, and where from."
    add_options(_command(commands, "report", about))


def _add_replay(commands: Any) -> None:
    replay = _command(
        commands,
        "replay",
        "Replay a trace through one block manager, without a clock, and count the hits.",
    )
    _add_trace_options(replay)
    _add_manager_options(replay)
    replay.add_argument("--decode", action="store_true", help="answers occupy blocks too")
    replay.add_argument("--json", action="store_true", help="print one JSON object")
    state = replay.add_mutually_exclusive_group()
    state.add_argument("--save-state", metavar="FILE", type=Path, help="keep what is cached then")
    state.add_argument("--load-state", metavar="FILE", type=Path, help="begin with what was kept")


def _add_trace_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("trace", metavar="TRACE", help="a file, as given or under $KVSIM_DATA")
    command.add_argument("--format", help="the workload that reads it (detected)")
    command.add_argument(
        "--num-blocks", type=int, required=True, help="pool size; the null block is one of them"
    )
    command.add_argument("--block-size", type=int, help="tokens per block (the format's default)")


def _add_manager_options(command: argparse.ArgumentParser, manager: str = "reference") -> None:
    command.add_argument("--manager", default=manager, help=f"({manager})")
    command.add_argument("--policy", help="the manager's eviction policy (its default)")
    command.add_argument("--free-order", help="tail or unhashed_first (the manager's default)")
    command.add_argument(
        "--null-block",
        action=argparse.BooleanOptionalAction,
        help="reserve block 0, as vLLM does (the manager's default)",
    )


def _add_explain(commands: Any) -> None:
    about = "Say why tokens were missed, what was evicted too early, and what is wasted."
    explain = _command(commands, "explain", about)
    _add_trace_options(explain)
    _add_manager_options(explain, "vllm")
    explain.add_argument("--decode", action="store_true", help="answers occupy blocks too")
    explain.add_argument("--latency", default="roofline", help="of computing again (roofline)")
    explain.add_argument(
        "--out", metavar="DIR", type=Path, help="also write the tables there, as Parquet"
    )


def _add_decompose(commands: Any) -> None:
    about = "Say what each rule of an engine does to the hit rate of LRU, from flat blocks on."
    decompose = _command(commands, "decompose", about)
    _add_trace_options(decompose)
    decompose.add_argument("--latency", default="roofline", help="of the last step (roofline)")


def _add_mrc(commands: Any) -> None:
    from sim.commands.mrc import add_options

    about = "Say how much memory a trace needs for which hit rate: LRU, the optimum, the limit."
    add_options(_command(commands, "mrc", about))


def _add_trace(commands: Any) -> None:
    about = "Say what is in a trace, or write it in kvsim's own format."
    actions = _command(commands, "trace", about).add_subparsers(
        title="actions", dest="action", metavar="ACTION", required=True
    )
    info = _command(actions, "info", "Print lengths, load, sharing and reuse of a trace.")
    info.add_argument("trace", metavar="TRACE", help="a file, as given or under $KVSIM_DATA")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.add_argument("--plots", metavar="DIR", type=Path, help="also draw what it looks like")
    convert = _command(actions, "convert", "Write a trace in kvsim's format (docs/traces.md).")
    convert.add_argument("trace", metavar="TRACE", help="a file, as given or under $KVSIM_DATA")
    convert.add_argument("out", metavar="OUT", type=Path, help=".jsonl, .jsonl.gz, .xz or .parquet")
    _command(actions, "list", "List the public traces that `dataset:NAME` stands for.")
    for action in (info, convert):
        action.add_argument("--format", help="the workload that reads it (detected)")
        action.add_argument("--block-size", type=int, help="tokens per block (the format's)")


def _add_golden(commands: Any) -> None:
    about = "Replay recordings of real vLLM and report the first difference of each."
    golden = _command(commands, "golden", about)
    golden.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="recordings or folders")
    golden.add_argument("--manager", default="reference", help="(reference)")


def _add_check(commands: Any) -> None:
    about = "Hold a policy or a manager to its contract, in small random programs."
    check = _command(commands, "check", about)
    check.add_argument("target", metavar="TARGET", help="a short name or module:Class")
    check.add_argument("--seconds", type=float, default=10.0, help="CPU time to spend (10)")


def _add_list(commands: Any) -> None:
    _command(commands, "list", "List managers, policies, workloads and latency models.")


def _add_gpu(commands: Any) -> None:
    from importlib import import_module  # by name: sim imports no sibling

    about = "Check block tables against paged attention, and measure step times."
    import_module("gpu_backend.options").add_options(_command(commands, "gpu", about))


def _add_example(commands: Any) -> None:
    about = "Walk through the specification's worked example, block by block."
    example = _command(commands, "example", about)
    example.add_argument("config", metavar="CONFIG", nargs="?", type=Path, help="another example")


if __name__ == "__main__":
    sys.exit(main())
