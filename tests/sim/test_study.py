"""Sweeps: which runs there are, that they are kept, and that nothing is lost or mixed up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import sim
from policies.lru import LRU
from sim.errors import ConfigError, KvsimError
from sim.results import Results
from sim.studies.executors import Processes
from sim.studies.run_store import RunStore
from sim.studies.study import RunsFailed, Study, run
from sim.studies.unit import key_of

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sim.__file__).parents[1])}
POLICIES = {"lru": "vllm", "fifo": {"use": "vllm", "eviction": "fifo"}}


def config(**sections: Any) -> dict[str, Any]:
    """Two policies at two sizes, without a clock."""
    return {
        "name": "small",
        "mode": "replay",
        "cache": {"block_size": 4},
        "workload": {
            "use": "shared_prefix",
            "num_requests": 60,
            "num_prefixes": 12,
            "prefix_tokens": 24,
            "suffix_tokens": 8,
        },
        "policies": dict(POLICIES),
        "sweep": {"cache.num_blocks": [24, 48]},
        "report": {"plots": False},
        **sections,
    }


def contents(folder: Path) -> dict[str, bytes]:
    """All files but versions.json, which names the commit of the moment."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "versions.json"
    }


def same_tables(one: Results, other: Results) -> None:
    for name in ("summary", "requests", "series"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)


# Which runs


def test_every_policy_at_every_point() -> None:
    """Rows are policy by policy, then axis by axis; every table names the run in full."""
    results = run(config(seeds=[0, 1]))
    table = results.summary
    assert results.axes == ("cache.num_blocks", "seed")
    assert list(table["policy"]) == ["lru"] * 4 + ["fifo"] * 4
    assert list(table["cache.num_blocks"]) == [24, 24, 48, 48] * 2
    assert list(table["seed"]) == [0, 1] * 4
    assert list(table["num_blocks"]) == [23, 23, 47, 47] * 2  # without the null block
    for frame in (results.requests, results.series):
        assert list(frame.columns[:3]) == ["policy", "cache.num_blocks", "seed"]
    assert len(results.requests) == 8 * 60


def test_a_point_is_what_it_would_be_alone() -> None:
    """A run of a sweep is the run of a configuration with those values."""
    whole = run(config())
    alone = run(config(sweep=None, cache={"num_blocks": 48, "block_size": 4}))
    part = whole.select("fifo", num_blocks=48).summary.drop(columns="cache.num_blocks")
    other = alone.select("fifo").summary
    pd.testing.assert_frame_equal(part, other)


def test_equal_runs_are_computed_once(tmp_path: Path) -> None:
    """A policy that gives its own size is not run again for every size of the pool."""
    policies = {"lru": "vllm", "fixed": {"use": "vllm", "num_blocks": 30}}
    started: list[str] = []
    source = config(policies=policies, bounds=False)
    results = run(source, out=tmp_path / "r", on_progress=lambda label, *_: started.append(label))
    assert len(started) == 3
    fixed = results.select("fixed").summary
    assert fixed["hit_rate"].nunique() == 1
    assert list(fixed["cache.num_blocks"]) == [24, 48]


def test_errors_name_the_point() -> None:
    """A value of a sweep is refused like one in the file, by the axis it comes from."""
    with pytest.raises(ConfigError, match=r"^sweep cache\.num_blocks is 0; it must be at least 1"):
        run(config(sweep={"cache.num_blocks": [8, 0]}))


# Bounds and comparisons


def test_bounds_stand_beside_every_run() -> None:
    """No policy is above MIN, MIN not above a cache without limit; LRU closes none of the gap."""
    policies = {**POLICIES, "MIN": {"use": "vllm", "eviction": "belady"}}
    table = run(config(policies=policies)).summary
    assert (table["hit_rate"] <= table["min_hit_rate"] + 1e-12).all()
    assert (table["min_hit_rate"] <= table["unbounded_hit_rate"] + 1e-12).all()
    assert (table["hit_rate"] > 0).all()
    by_policy = dict(iter(table.groupby("policy")))
    assert (by_policy["lru"]["gap_closed"] == 0).all()
    best = by_policy["MIN"]
    np.testing.assert_allclose(best["hit_rate"], best["min_hit_rate"])
    np.testing.assert_allclose(best["gap_closed"], 1)


def test_bounds_of_a_pool_that_refuses_requests() -> None:
    """Requests that fit no pool count in neither; the bound is that of the others."""
    source = config(sweep={"cache.num_blocks": [12, 48]})
    table = run(source).summary
    assert table["refused"][0] > 0
    assert (table["hit_rate"] <= table["min_hit_rate"] + 1e-12).all()


def test_the_baseline_is_plain_lru_or_the_named_one() -> None:
    """The gap is closed from LRU on, wherever it stands, unless the report says otherwise."""
    policies = {"none": {"use": "vllm", "enable_caching": False}, **POLICIES}
    first = Study.load(config(policies=policies)).first
    assert first.report["baseline"] == "lru"
    named = Study.load(config(report={"baseline": "fifo"}))
    table = named.run().summary
    assert (table[table["policy"] == "fifo"]["gap_closed"] == 0).all()
    with pytest.raises(ConfigError, match=r"report\.baseline is 'fifa'; .* did you mean 'fifo'"):
        Study.load(config(report={"baseline": "fifa"}))


def test_warm_up_changes_statistics_only(tmp_path: Path) -> None:
    """Case L1: the first n requests are cut from the tables, and the runs stay the same."""
    cold = run(config(), out=tmp_path / "r")
    keys = runs_in(tmp_path / "r")
    source = config(report={"plots": False, "warmup_requests": 20})
    warm = run(source, out=tmp_path / "r")
    assert runs_in(tmp_path / "r") == keys
    assert (warm.summary["num_requests"] == 40).all()
    kept = cold.requests.groupby(["policy", "cache.num_blocks"], sort=False).tail(40)
    pd.testing.assert_frame_equal(warm.requests, kept.reset_index(drop=True))
    hits = kept.groupby(["policy", "cache.num_blocks"], sort=False)["num_cached_tokens"].sum()
    assert list(warm.summary["prefix_cache_hits"]) == list(hits)


@pytest.mark.parametrize("num_warmup", [60, 99_999])
def test_a_warm_up_leaves_something(num_warmup: int) -> None:
    """Statistics of no request at all are an error that comes before any run."""
    source = config(report={"plots": False, "warmup_requests": num_warmup})
    rule = rf"report\.warmup_requests is {num_warmup}; it leaves out all 60 requests"
    with pytest.raises(ConfigError, match=rule):
        Study.load(source).jobs()
    assert Study.load(source, ["report.warmup_requests=59"]).jobs()


def runs_in(folder: Path) -> set[str]:
    """The keys of the runs that *folder* has, without those of bounds."""
    return {path.parent.name for path in (folder / "runs").glob("*/summary.csv")}


# What is kept


def test_nothing_is_computed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same study again reads everything; a longer one computes only what is new."""
    first = run(config(), out=tmp_path / "r")
    before = contents(tmp_path / "r")
    started: list[str] = []
    again = run(config(), out=tmp_path / "r", on_progress=lambda label, *_: started.append(label))
    assert started == []
    same_tables(first, again)
    assert contents(tmp_path / "r") == before
    longer = config(sweep={"cache.num_blocks": [24, 32, 48]}, bounds=False)
    run(longer, out=tmp_path / "r", on_progress=lambda label, *_: started.append(label))
    assert started == ["lru, cache.num_blocks=32", "fifo, cache.num_blocks=32"]


def test_a_new_label_is_no_new_run(tmp_path: Path) -> None:
    """What only changes the tables or their names computes nothing."""
    run(config(), out=tmp_path / "r")
    renamed = config(policies={"old": "vllm", "new": POLICIES["fifo"]}, name="other")
    started: list[str] = []
    results = run(renamed, out=tmp_path / "r", on_progress=lambda label, *_: started.append(label))
    assert started == []
    assert list(results.summary["policy"].unique()) == ["old", "new"]


OWN_POLICY = """
    from policies.lru import LRU

    class Own(LRU):
        number = 1
"""


def test_other_code_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of a policy are not used any more once its file has changed."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "kvsim_test_changing.py"
    path.write_text(textwrap.dedent(OWN_POLICY))
    source = config(policies={"own": {"use": "vllm", "eviction": "kvsim_test_changing:Own"}})
    before = {unit.key for unit in Study.load(source).units()}
    assert {unit.key for unit in Study.load(source).units()} == before
    path.write_text(textwrap.dedent(OWN_POLICY) + "# changed\n")
    after = {unit.key for unit in Study.load(source).units()}
    assert len(before & after) == 1  # the bounds


def test_other_input_is_another_run(tmp_path: Path) -> None:
    """A trace with the same name and other rows is not taken for the old one."""
    trace = tmp_path / "t.jsonl"
    keys = []
    for length in (4, 8):
        row = {"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": [1]}
        trace.write_text(json.dumps(row) + "\n")
        workload = {"use": "mooncake", "path": str(trace), "trace_block_size": 8}
        keys.append({unit.key for unit in Study.load(config(workload=workload)).units()})
    assert not keys[0] & keys[1]


def test_a_changed_file_is_another_run(tmp_path: Path) -> None:
    """A file that any argument names counts with its content, e.g. a profile of one's own."""
    profile = tmp_path / "mine.yaml"
    keys = []
    for text in ("a: 1", "a: 2", "a: 1"):
        profile.write_text(text)
        spec = {"latency": {"use": "x", "gpu": str(profile)}}
        keys.append(key_of(spec, {}, [], ""))
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]


def test_objects_from_python_run_every_time(tmp_path: Path) -> None:
    """What cannot be named cannot be recognised; a class from a notebook works all the same."""

    class Mine(LRU):
        """A policy in a cell."""

    source = config(policies={"mine": {"use": "vllm", "eviction": Mine}, "lru": "vllm"})
    started: list[str] = []
    for _ in range(2):
        results = run(
            source,
            out=tmp_path / "r",
            on_progress=lambda label, *_: started.append(label),
            executor=Processes(1),
        )
    mine, lru = (results.select(name).summary["hit_rate"] for name in ("mine", "lru"))
    assert list(mine) == list(lru)
    assert started[-2:] == ["mine, cache.num_blocks=24", "mine, cache.num_blocks=48"]
    assert len([label for label in started if label.startswith("lru")]) == 2
    assert len([label for label in started if label.startswith("mine")]) == 4


def test_the_written_configuration_is_the_study(tmp_path: Path) -> None:
    """config.yaml in the folder, run again, is the same study in all its runs."""
    run(config(seeds=[0, 1]), out=tmp_path / "one")
    again = Study.load(tmp_path / "one" / "config.yaml")
    assert again.units() == Study.load(config(seeds=[0, 1])).units()
    assert yaml.safe_load((tmp_path / "one" / "config.yaml").read_text())["seeds"] == [0, 1]


# What fails

BROKEN = """
    from policies.lru import LRU

    class Broken(LRU):
        def victim(self, num_blocks):
            raise RuntimeError("no\\nidea")
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A study whose second policy fails when it must evict."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kvsim_test_failing.py").write_text(textwrap.dedent(BROKEN))
    policy = {"use": "vllm", "eviction": "kvsim_test_failing:Broken"}
    return config(policies={"lru": "vllm", "broken": policy})


@pytest.mark.parametrize("executor", [None, Processes(2)])
def test_a_run_that_fails_is_reported_and_tried_again(
    tmp_path: Path, broken: dict[str, Any], executor: Any
) -> None:
    """The others are kept and in the tables; the failure has its traceback and configuration."""
    with pytest.raises(RunsFailed) as error:
        run(broken, out=tmp_path / "r", executor=executor)
    head, *lines = str(error.value).splitlines()
    assert head == "2 of 5 runs failed and will be tried again next time"
    said = "kvsim_test_failing:Broken raised RuntimeError: no idea (kvsim_test_failing.py:"
    assert lines[0].startswith(f"broken, cache.num_blocks=24: {said}")
    text = Path(lines[0].rpartition("(")[2].rstrip(")")).read_text()
    assert "in victim" in text
    assert "eviction: {use: 'kvsim_test_failing:Broken'}" in text.replace("\n", " ") or (
        "kvsim_test_failing:Broken" in text
    )
    assert error.value.results is not None
    assert list(error.value.results.summary["policy"]) == ["lru", "lru"]
    same_tables(Results.load(tmp_path / "r"), error.value.results)
    started: list[str] = []
    with pytest.raises(RunsFailed):
        run(broken, out=tmp_path / "r", on_progress=lambda label, *_: started.append(label))
    assert [label.split(",")[0] for label in started] == ["broken", "broken"]


def test_a_mended_run_leaves_no_failure_behind(
    tmp_path: Path, broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all runs have succeeded nothing of earlier failures is left."""
    with pytest.raises(RunsFailed):
        run(broken, out=tmp_path / "r")
    monkeypatch.setattr("kvsim_test_failing.Broken.victim", LRU.victim)
    run(broken, out=tmp_path / "r")
    assert not list((tmp_path / "r").rglob("*.failed.txt"))


def test_the_command_exits_with_1_if_a_run_failed(tmp_path: Path, broken: dict[str, Any]) -> None:
    """stderr names every failed run; the table of the others is printed."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(broken, sort_keys=False))
    done = kvsim("run", tmp_path / "c.yaml", "--out", tmp_path / "r", "--jobs", 1)
    assert done.returncode == 1
    assert "kvsim: 2 of 5 runs failed" in done.stderr
    assert done.stdout.splitlines()[1].startswith("lru")
    assert "Traceback" not in done.stderr


def test_two_studies_in_one_folder(tmp_path: Path) -> None:
    """The second is told so before it computes or changes anything."""
    with (
        RunStore(tmp_path / "r").locked(),
        pytest.raises(KvsimError, match=r"r: another run is writing its results here; wait"),
    ):
        run(config(), out=tmp_path / "r")
    run(config(), out=tmp_path / "r")


def test_a_full_disk_stops_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, what was kept stays, and the next run goes on from there."""
    save, saved = Results.save, []

    def full(self: Results, folder: Path) -> Path:
        if len(saved) == 2:
            raise OSError(28, "No space left on device")
        saved.append(folder)
        return save(self, folder)

    with monkeypatch.context() as patched:
        patched.setattr(Results, "save", full)
        with pytest.raises(KvsimError, match=r"cannot write the results: No space left on device"):
            run(config(), out=tmp_path / "r")
    assert not list((tmp_path / "r" / "runs").glob(".new-*"))
    started: list[str] = []
    run(config(), out=tmp_path / "r", on_progress=lambda label, *_: started.append(label))
    assert len(started) == 2
    run(config(), out=tmp_path / "other")
    assert contents(tmp_path / "r") == contents(tmp_path / "other")


def test_the_next_run_sweeps_up(tmp_path: Path) -> None:
    """What a killed process had begun to write disappears."""
    run(config(), out=tmp_path / "r")
    before = contents(tmp_path / "r")
    for name in ("runs/.new-abc/x", ".saving-abc/summary.csv"):
        (tmp_path / "r" / name).parent.mkdir()
        (tmp_path / "r" / name).write_text("half")
    run(config(), out=tmp_path / "r")
    assert contents(tmp_path / "r") == before


def test_results_of_an_older_version_are_replaced_at_the_end(tmp_path: Path) -> None:
    """A folder with tables but no runs is one of ours; it is whole until the new one is."""
    run(config(), out=tmp_path / "r")
    old = {p: d for p, d in contents(tmp_path / "r").items() if not p.startswith("runs")}
    for path in sorted((tmp_path / "r" / "runs").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "r" / "runs").rmdir()
    run(config(), out=tmp_path / "r")
    assert old.items() <= contents(tmp_path / "r").items()


# Processes


def kvsim(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sim.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def test_processes_give_the_same_bytes(tmp_path: Path) -> None:
    """Who computes does not matter."""
    run(config(), out=tmp_path / "one")
    run(config(), out=tmp_path / "two", executor=Processes(2))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


DEADLY = """
    import os, signal
    from policies.lru import LRU

    class Deadly(LRU):
        def victim(self, num_blocks):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_run_that_kills_its_process_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pool goes down with it, the other runs do not."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kvsim_test_deadly.py").write_text(textwrap.dedent(DEADLY))
    policy = {"use": "vllm", "eviction": "kvsim_test_deadly:Deadly"}
    source = config(policies={"deadly": policy, **POLICIES}, sweep={"cache.num_blocks": [24]})
    with pytest.raises(RunsFailed, match=r"(?s)1 of 4 runs failed.*deadly.*the process .* died"):
        run(source, out=tmp_path / "r", executor=Processes(2))
    assert list(Results.load(tmp_path / "r").summary["policy"]) == ["lru", "fifo"]


def descendants(pid: int) -> list[int]:
    """The processes that *pid* started, and theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(path.parent.name)
            found += [child, *descendants(child)]
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """kill -9 of the parent or of workers, again and again; the tables in the end are the same."""
    policies = {name: {"use": "vllm", "eviction": name} for name in ("lru", "fifo", "sieve")}
    workload = {**config()["workload"], "num_requests": 10_000}
    sizes = {"cache.num_blocks": [24, 32, 48, 64, 96, 128, 192, 256]}
    source = config(policies=policies, sweep=sizes, workload=workload, seeds=[0, 1])
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(source, sort_keys=False))
    run(tmp_path / "c.yaml", out=tmp_path / "calm")
    command = [sys.executable, "-m", "sim.cli", "run", str(tmp_path / "c.yaml")]
    command += ["--out", str(tmp_path / "r"), "--jobs", "2"]
    rng = np.random.default_rng(0)
    num_killed = 0
    for attempt in range(6):
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT
        ) as process:
            assert process.stderr is not None
            process.stderr.readline()  # the first run has begun
            if attempt % 2:
                time.sleep(float(rng.uniform(0.5, 1.2)))
                for pid in descendants(process.pid)[-1:]:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(float(rng.uniform(0.2, 1.2)))
            workers = descendants(process.pid)
            process.kill()
            process.stderr.close()
        if process.returncode != -signal.SIGKILL:
            break  # a fast machine: it was done already
        num_killed += 1
        deadline = time.monotonic() + 10
        while any(map(is_alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(is_alive, workers)), "workers end with their parent"
    assert num_killed >= 3
    assert kvsim(*command[3:]).returncode == 0
    for name in ("summary.csv", "requests.parquet", "series.parquet"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()
