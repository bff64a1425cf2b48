"""`kvsim gpu`: what it prints, its exit codes, and errors of one line."""

from __future__ import annotations

import json
import sys

import pytest

from gpu_backend.attention import BACKENDS
from gpu_backend.mutants import MUTANTS
from gpu_backend.toy import toy_engine, toy_requests
from gpu_backend.trace_file import load, save
from gpu_backend.tracing import traced_run
from sim.cli import main
from sim.extras import is_installed

needs_torch = pytest.mark.skipif(
    not is_installed("torch"), reason="torch is not installed: pip install 'kvsim[torch]'"
)

HF = is_installed("transformers")
CONFIG = """\
cache: {num_blocks: 300, block_size: 16}
workload: {use: shared_prefix, rate: 20, num_requests: 40, prefix_tokens: 100, suffix_tokens: 40,
           output_tokens: 20}
policies:
  spans: vllm
  front: {use: reference, free_order: unhashed_first}
  tree: radix
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


def test_a_configuration_is_checked_policy_by_policy(config, capsys):
    """`vllm` runs with `reference`; a manager without block ids is told and left out."""
    assert main(["gpu", "check", str(config), "--tokens", "0"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("spans (with reference): ")
    assert lines[0].endswith("slots read")
    assert lines[1] == "ok      metadata, pool, L0"
    assert lines[3].startswith("front: ")
    assert err == "note: tree: its manager has no block ids; not checked\n"


def test_a_trace_is_kept_and_checked_again(config, tmp_path, capsys):
    """One policy's run goes to a file; the file alone is enough, and says the same."""
    trace = tmp_path / "kept" / "run.npz"
    options = ["--policy", "front", "--tokens", "0"]
    assert main(["gpu", "check", str(config), *options, "--save", str(trace)]) == 0
    first = capsys.readouterr().out.splitlines()
    assert main(["gpu", "check", str(trace), "--tokens", "0"]) == 0
    second = capsys.readouterr().out.splitlines()
    assert first[0].partition(":")[2] == second[0].partition(":")[2]
    assert load(trace).about == {"null_block": True, "config": "run.yaml", "policy": "front"}


def test_what_is_wrong_is_shown_and_the_exit_code_is_1(tmp_path, capsys):
    """A run with a tenant leak: where, which block, how often."""
    path = tmp_path / "leak.jsonl"
    save(MUTANTS["salt ignored"].trace(num_blocks=60), path)
    assert main(["gpu", "check", str(path), "--tokens", "0"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  metadata, pool, L0" in out
    assert "the slot holds other content" in out
    assert "L0: 64 findings" in out


@needs_torch
def test_real_attention_is_part_of_the_check(tmp_path, capsys):
    """The decoder computes the first steps; what it compared and how far it was off is said."""
    path = tmp_path / "run.npz"
    save(traced_run(toy_engine(), toy_requests(10)), path)
    assert main(["gpu", "check", str(path), "--device", "cpu", "--tokens", "1000"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("ok      L1 tiny reference float64 on cpu: first ")
    assert "e-1" in line  # 1e-15 or so


FEW = ("salt ignored", "wrong slot")


def test_the_table_of_mutants(monkeypatch, capsys):
    """Without tensors: a line per bug, with what every layer found."""
    monkeypatch.setattr("gpu_backend.mutant_table.MUTANTS", {name: MUTANTS[name] for name in FEW})
    assert main(["gpu", "check", "--mutants", "--tokens", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:-1]] == list(FEW)
    assert all(line.endswith("  found") for line in lines[1:-1])


def test_a_missed_bug_is_exit_code_1(monkeypatch, capsys):
    """A check that finds nothing is named."""
    monkeypatch.setattr("gpu_backend.mutant_table.MUTANTS", {name: MUTANTS[name] for name in FEW})
    monkeypatch.setattr("gpu_backend.mutant_table.check_trace", lambda *_, **__: Nothing())
    assert main(["gpu", "check", "--mutants", "--tokens", "0"]) == 1
    assert "MISSED by L0" in capsys.readouterr().out


class Nothing:
    counts: dict[str, int] = {}  # noqa: RUF012


def test_backends_are_listed_with_reasons(capsys):
    """One line each, on a CPU; what is not there says why."""
    assert main(["gpu", "backends", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(BACKENDS)
    assert all("available" in line for line in lines[1:])


def test_without_torch_it_says_so(monkeypatch, tmp_path, capsys):
    """L0 runs, the rest is told; what cannot do without is an error of one line."""
    hidden = {name: None for name in sys.modules if name.split(".")[0] == "torch"}
    for name in {"torch", *hidden}:
        monkeypatch.setitem(sys.modules, name, None)
    for module in ("attention", "command", "check_command"):
        monkeypatch.setattr(f"gpu_backend.{module}.is_installed", lambda _: False)
    path = tmp_path / "run.npz"
    save(traced_run(toy_engine(), toy_requests(4)), path)
    assert main(["gpu", "check", str(path)]) == 0
    out = capsys.readouterr().out
    assert "ok      metadata, pool, L0" in out
    assert "L1 not run: torch is not installed; pip install 'kvsim[torch]'" in out
    assert main(["gpu", "backends"]) == 0
    assert capsys.readouterr().out.count("torch is not installed") == len(BACKENDS)
    assert main(["gpu", "calibrate"]) == 2
    assert "this needs torch" in capsys.readouterr().err


def test_memory(capsys):
    """The same numbers as `kv_memory`, in words."""
    assert main(["gpu", "memory", "llama-3.1-8b", "h100"]) == 0
    out = capsys.readouterr().out
    assert "num_blocks    28,182 of 16 tokens and 2.000 MiB: 450,912 tokens" in out
    assert main(["gpu", "memory", "qwen3-8b", "h100", "--kv-bytes", "0"]) == 2
    error = capsys.readouterr().err
    assert "kv_bytes is 0.0; it must be above 0" in error
    assert error.count("\n") == 1


@needs_torch
def test_bench_writes_its_numbers(tmp_path, capsys):
    """Toy sizes: a line and a row per number, with the limits they are compared with."""
    path = tmp_path / "bench.json"
    assert main(["gpu", "bench", "--device", "cpu", "--quick", "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    assert [row["kind"] for row in data["rows"]] == ["write"] * 2 + ["decode"] * 2 + ["prefill"] * 2
    assert all(0 < row["share"] < 2 for row in data["rows"])
    assert len(capsys.readouterr().out.splitlines()) == 7


@needs_torch
def test_calibrate_makes_a_profile_that_can_be_used(tmp_path, capsys):
    """Toy sizes: measured, held-out steps told, and read back by the latency model."""
    from sim.hardware.profiled import Profiled
    from sim.latency import StepLoad

    path = tmp_path / "profile.json"
    arguments = ["gpu", "calibrate", "--device", "cpu", "--quick", "--out", str(path)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "held-out step" in out
    assert "mean absolute error" in out
    model = Profiled("llama-3.1-8b", str(path), weights="fp32", kv="fp32")
    assert "measured on one thread of a CPU" in model.gpu.source
    assert "17 held-out steps" in model.gpu.fits["held_out"]
    load = StepLoad()
    load.add(100, 0)
    assert model.step_time(load) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "gpu check: name a configuration or a step trace, or give --mutants"),
        (["check", "none.npz", "--tokens", "0"], "none.npz: cannot be read"),
        (["check", "none.yaml", "--tokens", "0"], "none.yaml: cannot be read"),
        (["check", "run.yaml", "--policy", "fron", "--tokens", "0"], "did you mean 'front'?"),
        (["check", "run.yaml", "--tokens", "0", "--save", "x.npz"], "say which with --policy"),
        (["backends", "--device", "tpu"], "--device is 'tpu'; it must be auto, cpu or cuda"),
        (["memory", "llama", "h100"], "model is 'llama'; no profile is called so"),
        (["calibrate", "--tables", "h300"], "gpu is 'h300'; there are tables for a100"),
    ],
)
def test_errors_are_one_line(config, arguments, message, monkeypatch, capsys):
    """Exit code 2, no traceback."""
    monkeypatch.chdir(config.parent)
    assert main(["gpu", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@needs_torch
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "fa3"], "backend fa3 is not available on cpu: FlashAttention-3"),
        (["--backend", "refrence"], "did you mean 'reference'?"),
        (["--backend", "flex", "--dtype", "float64"], "backend flex has no float64"),
        (["--model", "gpt2"], "transformers" if not HF else "it must be tiny, llama, qwen3"),
    ],
)
def test_what_the_device_lacks_is_told_before_the_run(config, options, message, capsys):
    """Not after minutes of simulation."""
    assert main(["gpu", "check", str(config), "--device", "cpu", *options]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
