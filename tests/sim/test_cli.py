from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.cli import main
from sim.replay import replay
from sim.spec.build import build

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sim.__file__).parents[1])}
"""For subprocesses: they find the package that is tested, wherever they start."""

CONFIG = """\
name: tiny
cache: {num_blocks: 64, block_size: 4}
workload: {use: shared_prefix, num_requests: 20, prefix_tokens: 12, suffix_tokens: 8}
report: {plots: false}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small experiment in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests: the second repeats the first, the third is too large for 8 blocks."""
    rows: list[dict[str, Any]] = [
        {"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [1, 2, 3]},
        {"timestamp": 1, "input_length": 9, "output_length": 3, "hash_ids": [1, 2, 3]},
        {"timestamp": 2, "input_length": 40, "output_length": 3, "hash_ids": [*range(10, 20)]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def kvsim(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sim.cli", *map(str, arguments)]
    env = {**ENVIRONMENT, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def failed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on stderr of a command that must be mended."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvsim: error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("kvsim: error: ").rstrip()


# run


def test_run_writes_the_folder_and_prints_the_summary(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kvsim run CONFIG`: results/<name>, the table on stdout, progress on stderr, exit code 0."""
    assert main(["run", str(config)]) == 0
    captured = capsys.readouterr()
    assert (config.parent / "results" / "tiny" / "summary.csv").is_file()
    assert "hit rate" in captured.out
    assert captured.out.endswith("results in results/tiny\n")
    assert captured.err == "[1/1] lru\n"


def test_run_takes_overrides_and_a_folder(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--set changes values, --out the place; the place in the config comes second."""
    arguments = ["--set", "cache.num_blocks=32", "--set", "report.out=there"]
    assert main(["run", str(config), *arguments]) == 0
    assert (config.parent / "there" / "config.yaml").is_file()
    assert main(["run", str(config), *arguments, "--out", "here"]) == 0
    assert "num_blocks: 32" in (config.parent / "here" / "config.yaml").read_text()
    assert capsys.readouterr().out.endswith("results in here\n")


def test_configs_may_name_classes_beside_them(config: Path) -> None:
    """The config's folder and the current one are searched for modules, after our own."""
    (config.parent / "policies.py").write_text("raise SystemExit('hides the real policies')")
    (config.parent / "kvsim_test_mine.py").write_text(
        "from policies.lru import LRU\nclass Mine(LRU): ...\n"
    )
    spec = "{use: reference, eviction: 'kvsim_test_mine:Mine'}"
    code = "import sys; from sim.cli import main; sys.exit(main())"
    command = ["run", config, "--set", f"policies.lru={spec}", "--out", config.parent / "out"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=config.parent,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cache: {num_blocks: 1}", "x.yaml:1: cache.num_blocks is 1; it must be at least 2"),
        (
            "cache: {num_blocks: 010}",
            "x.yaml:1: cache.num_blocks is 010, which YAML reads as octal",
        ),
        ("seed: 1\nseed: 2", "x.yaml:2: duplicate key 'seed' (first on line 1)"),
        ("policies: {on: reference}", "x.yaml:1: in policies: the key on is read as true"),
        ("cahce: {}", "x.yaml:1: cahce: unknown key; did you mean 'cache'?"),
        ("", "x.yaml: is empty"),
    ],
)
def test_bad_configs_exit_with_2_and_write_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    message: str,
) -> None:
    """Case N1, N2, N3, N5: one line on stderr, exit code 2, nothing simulated or written."""
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(f"{text}\nworkload: shared_prefix\n" if text else "")
    assert failed(capsys, "run", "x.yaml").startswith(message)
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]


def test_bad_overrides_exit_with_2(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Case N3: an unknown path in --set is an error that names the nearest."""
    message = failed(capsys, "run", config, "--set", "cache.num_blcks=4")
    assert message.startswith("--set cache.num_blcks: unknown key; did you mean 'num_blocks'?")
    assert "it could be" in failed(capsys, "run", config, "--set", "policies.x.y=4")


def test_errors_are_one_line(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever an error contains, a line break in it does not break the line."""
    monkeypatch.setitem(os.environ, "KVSIM_DATA", "a\nb")
    assert "looked for x and a b/x" in failed(capsys, "replay", "x", "--num-blocks", "8")


@pytest.mark.slow
def test_ctrl_c_exits_with_130_and_leaves_earlier_results(config: Path) -> None:
    """An interrupted run: exit code 130, no traceback, the earlier results and no scratch."""
    assert main(["run", str(config), "--out", "out"]) == 0
    before = (config.parent / "out" / "config.yaml").read_bytes()
    command = ["run", config, "--out", "out", "--set", "workload.num_requests=100000"]
    code = (  # a shell may have told its background jobs to ignore Ctrl-C
        "import signal, sys\nfrom sim.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nsys.exit(main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=config.parent,
        env=ENVIRONMENT,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "[1/1] lru\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert rest == "kvsim: interrupted\n"
    assert (config.parent / "out" / "config.yaml").read_bytes() == before
    assert sorted(path.name for path in config.parent.iterdir()) == ["out", "tiny.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("display", [{}, {"DISPLAY": "localhost:64"}, {"MPLBACKEND": "TkAgg"}])
def test_plots_need_no_display(config: Path, display: dict[str, str]) -> None:
    """Case L8: no display, a dead one, or an interactive backend: pictures are written, exit 0."""
    out = config.parent / "out"
    done = kvsim("run", config, "--out", out, "--set", "report.plots=[hit_rate]", **display)
    assert done.returncode == 0, done.stderr
    assert (out / "plots" / "hit_rate.png").stat().st_size > 1000


# replay


def test_replay_prints_json_that_equals_the_library(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--json prints one strict JSON object with the numbers of sim.replay."""
    arguments = ["replay", str(trace), "--block-size", "512", "--num-blocks", "8"]
    assert main([*arguments, "--json"]) == 2  # ids of this trace stand for 4 tokens
    capsys.readouterr()
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    for row in rows:
        row["input_length"] *= 128
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main([*arguments, "--no-null-block", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert printed.pop("seconds") >= 0
    # Two requests of 1152 tokens: two full blocks each, the second one hits both. The third needs
    # 10 blocks of 8 and is refused.
    assert printed == {
        "requests": 3,
        "refused": 1,
        "query_blocks": 4,
        "hit_blocks": 2,
        "query_tokens": 2304,
        "hit_tokens": 1024,
        "evicted_blocks": 0,
        "cached_blocks": 2,
        "orphaned_blocks": 0,
    }
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "3, 1 of them refused" in text
    assert "44.44% of tokens: 1,024 of 2,304" in text


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("free_order", ["tail", "unhashed_first"])
def test_replay_options_reach_manager_and_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free_order: str, decode: bool
) -> None:
    """The command gives what the same objects give when built by hand."""
    rows = [  # 40 documents in turn, a longer part of each in every round
        {
            "timestamp": i,
            "input_length": 512 * (1 + i // 40) - 99,
            "output_length": 700,
            "hash_ids": [100 * (i % 40) + j for j in range(1 + i // 40)],
        }
        for i in range(200)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--block-size", "256", "--num-blocks", "300", "--free-order", free_order]
    options += ["--policy", "lru", "--manager", "reference", "--no-null-block", "--json"]
    assert main(["replay", str(path), *options, *["--decode"] * decode]) == 0
    printed = json.loads(capsys.readouterr().out)

    workload = build("workload", {"use": "mooncake", "path": str(path), "block_size": 256})
    spec = {"use": "reference", "free_order": free_order, "null_block": False}
    manager = build("manager", spec, known={"num_blocks": 300, "block_size": 256})
    result = replay(manager, workload, decode=decode)
    for name in ("hit_blocks", "evicted_blocks", "query_tokens"):
        assert printed[name] == getattr(result, name) > 0, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t", "--num-blocks", "1"], "t: no such file"),
        ([None, "--num-blocks", "1"], "--num-blocks is 1; it must be at least 2"),
        (
            [None, "--num-blocks", "8", "--free-order", "x"],
            "--free-order is 'x'; it must b",
        ),
        (
            [None, "--num-blocks", "8", "--policy", "lur"],
            "--policy: no eviction policy is",
        ),
        ([None, "--num-blocks", "8", "--policy", "no"], "--policy is false; it must be"),
        (
            [None, "--num-blocks", "8", "--manager", "x"],
            "--manager: no block manager is called 'x'",
        ),
        ([None, "--num-blocks", "8", "--format", "x"], "--format: no workload is called 'x'"),
        ([None, "--num-blocks", "8", "--block-size", "0"], "--block-size is 0; it must be"),
    ],
)
def test_bad_replay_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str | None],
    message: str,
) -> None:
    """Every option that cannot be meant: one line, exit code 2."""
    monkeypatch.delenv("KVSIM_DATA", raising=False)
    row = {"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [1]}
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    given = [argument or tmp_path / "t.jsonl" for argument in arguments]
    assert failed(capsys, "replay", *given).startswith(message)


@pytest.mark.parametrize("command", ["replay", "explain", "decompose"])
@pytest.mark.parametrize("option", ["--num-blocks", "--block-size"])
def test_errors_name_the_option_that_was_written(
    trace: Path, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    """Not the argument of the class that it reached."""
    options = {"--num-blocks": "8", "--format": "{use: mooncake, trace_block_size: 4}", option: "0"}
    given = [word for pair in options.items() for word in pair]
    assert failed(capsys, command, trace, *given).startswith(f"{option} is 0; it must be a")


def test_errors_name_keys_of_an_option_that_has_some(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mapping's keys are named with the option that holds them."""
    given = [
        "replay",
        trace,
        "--num-blocks",
        "8",
        "--format",
        "{use: mooncake, trace_block_size: 4}",
    ]
    line = failed(capsys, *given, "--manager", "{use: vllm, free_order: x}")
    assert line.startswith("--manager.free_order is 'x'; ")
    line = failed(capsys, *given, "--policy", "{use: ttl, hours: 1}")
    assert line.startswith("--policy.hours: unknown to ttl")
    line = failed(capsys, *given, "--manager", "{use: vllm, block_size: 0}")
    assert line.startswith("--manager.block_size is 0")


# golden, list, example, and the command itself


def test_golden_passes_the_exit_code_on(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 if all recordings are the same, 1 if one differs, 2 if there is none."""
    path = goldens / "v0.33.0" / "h01_design_doc_example.json"
    assert main(["golden", str(path)]) == 0
    recording = json.loads(path.read_text())
    recording["config"]["num_blocks"] += 1
    (tmp_path / "x.json").write_text(json.dumps(recording))
    assert main(["golden", str(tmp_path / "x.json"), "--manager", "reference"]) == 1
    capsys.readouterr()
    assert "no such file or folder" in failed(capsys, "golden", tmp_path / "nope")
    assert "no block manager is called 'x'" in failed(capsys, "golden", path, "--manager", "x")


def test_list_shows_every_name_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """Each short name of each kind, its first docstring line and what it takes."""
    from policies import MANAGERS, POLICIES
    from sim.latency import LATENCIES
    from workloads import WORKLOADS

    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (*MANAGERS, *POLICIES, *WORKLOADS, *LATENCIES):
        assert f"\n  {name} " in out
    assert "vLLM's block manager for one full-attention group" in out
    assert "takes: num_blocks, block_size=16, eviction=null, free_order=tail" in out
    assert "takes: decode_ms=8.0, prefill_us_per_token=45.0" in out


def test_example_prints_the_worked_example(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kvsim example` finds its configuration wherever it is called from; another may be named."""
    assert main(["example"]) == 0
    assert "Time 6." in capsys.readouterr().out
    assert "tiny.yaml" in failed(capsys, "example", config)


def test_an_empty_file_is_told_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what the command reads, not of an experiment."""
    path = tmp_path / "e.yaml"
    path.touch()
    line = failed(capsys, "example", path)
    assert line == f"{path}: is empty; write at least 'manager:', 'requests:' and 'steps:'"
    line = failed(capsys, "gpu", "memory", "qwen3-8b", path)
    assert line.startswith(f"{path}: is empty; write at least 'source:', 'tflops:'")


def test_an_example_is_no_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    """Its file is named, and the command that shows it."""
    path = Path(sim.__file__).parents[1] / "configs" / "seed_example.yaml"
    line = failed(capsys, "validate", path)
    assert line == f"{path}: is an example for kvsim example, not an experiment"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeds=[-1]", "--set seeds: seed is -1; it must be at least 0"),
        ("policies.lru.use=nope", "--set policies.lru.use: no block manager is called 'nope'"),
    ],
)
def test_overrides_are_blamed_by_name(
    config: Path, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    """Not what they became, nor the line of the file that they replaced."""
    config.write_text(f"{CONFIG}policies: {{lru: {{use: vllm}}}}\n")
    assert failed(capsys, "validate", config, "--set", override).startswith(message)


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """No command, an unknown one, a missing argument: one line that says whose --help helps."""
    for arguments, about in (
        ([], "kvsim"),
        (["rnu"], "kvsim"),
        (["run"], "kvsim run"),
        (["replay", "x"], "kvsim replay"),
        (["replay", "x", "--num-blocks", "many"], "kvsim replay"),
        (["list", "x"], "kvsim list"),
        (["gpu", "memory"], "kvsim gpu memory"),
        (["gpu", "memory", "a", "b", "c", "--d"], "kvsim gpu memory"),
    ):
        with pytest.raises(SystemExit) as error:
            main(arguments)
        assert error.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("kvsim: error: ")
        assert line.endswith(f" ({about} --help)")


def test_help_documents_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """Every --help says what the exit codes mean."""
    for arguments in ([], ["run"], ["replay"], ["golden"], ["list"], ["example"]):
        with pytest.raises(SystemExit) as error:
            main([*arguments, "--help"])
        assert error.value.code == 0
        assert "130  interrupted" in capsys.readouterr().out


def test_help_and_version_load_nothing() -> None:
    """`kvsim --help` is instant: no numpy, pandas, pydantic, yaml, simpy or matplotlib."""
    code = (
        "import sys\nfrom sim.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'pydantic', 'yaml', 'simpy', 'matplotlib', 'torch', 'rich'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    assert done.stdout.endswith("[]\n")
    assert kvsim("--version").stdout.startswith("kvsim ")


def test_a_closed_pipe_is_quiet() -> None:
    """`kvsim list | head -0`: no traceback; exit code 141, as for any command."""
    with subprocess.Popen(
        [sys.executable, "-m", "sim.cli", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_the_configs_in_the_repository_are_valid() -> None:
    """configs/*.yaml of experiments pass every check (they run in test_readme and by hand)."""
    from sim.studies.experiment import Experiment

    configs = Path(__file__).parents[2] / "configs"
    for name in ("quickstart.yaml", "mooncake.yaml"):
        experiment = Experiment.load(configs / name)
        assert experiment.name == name.removesuffix(".yaml")
        assert len(experiment.managers) > 1
