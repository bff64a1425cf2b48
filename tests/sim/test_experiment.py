from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError, KvsimError, TraceError
from sim.results import Results
from sim.spec import schema
from sim.studies.experiment import Experiment
from sim.studies.study import RunsFailed, Study, run

TABLES = ("summary.csv", "requests.parquet", "series.parquet")
FILES = {*TABLES, "config.yaml", "versions.json", "runs"}


def config(**sections: Any) -> dict[str, Any]:
    """A small experiment; *sections* replace its own."""
    return {
        "name": "small",
        "cache": {"num_blocks": 64, "block_size": 4},
        "engine": {"max_num_batched_tokens": 64},
        "workload": {
            "use": "shared_prefix",
            "num_requests": 20,
            "num_prefixes": 3,
            "prefix_tokens": 12,
            "suffix_tokens": 8,
            "output_tokens": 6,
        },
        "report": {"plots": False},
        **sections,
    }


def refused(source: Any, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as error:
        Study.load(source, overrides).run()
    assert "\n" not in str(error.value)
    return str(error.value)


def same_tables(one: Results, other: Results) -> None:
    for name in ("summary", "requests", "series"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# What a run gives


def test_defaults() -> None:
    """Only num_blocks and a workload are needed: vLLM's manager with LRU, linear latency."""
    experiment = Experiment.load({"cache": {"num_blocks": 8}, "workload": "shared_prefix"})
    assert list(experiment.managers) == ["lru"]
    assert experiment.resolved()["policies"]["lru"]["use"] == "vllm"
    assert experiment.resolved()["latency"]["use"] == "linear"
    assert experiment.cache == {
        "num_blocks": 8,
        "block_size": 16,
        "kv_bytes_per_token": 2 * 32 * 8 * 128 * 2,  # keys and values, layers, heads, dim, bytes
    }


def test_every_policy_serves_the_same_requests() -> None:
    """Runs are paired: equal requests under every label; only what happened to them differs."""
    policies = {"tail": "reference", "off": {"use": "reference", "enable_caching": False}}
    results = run(config(policies=policies))
    assert list(results.summary["policy"]) == ["tail", "off"]
    tables = [table for _, table in results.requests.groupby("policy", sort=False)]
    given = ["request_id", "arrival_time", "num_prompt_tokens", "max_tokens"]
    one, other = (table[given].reset_index(drop=True) for table in tables)
    pd.testing.assert_frame_equal(one, other)
    assert results.summary["prefix_cache_hits"][0] > 0
    assert results.summary["prefix_cache_hits"][1] == 0


def test_sections_reach_what_they_configure() -> None:
    """Cache keys go to managers that ask for them, engine keys to scheduler and engine."""
    small = config(
        cache={"num_blocks": 64, "block_size": 4, "null_block": False, "watermark": 0.25},
        engine={"max_num_batched_tokens": 16, "max_model_len": 40, "until": 0.5},
        policies={"a": "reference", "b": {"use": "reference", "num_blocks": 32}},
    )
    experiment = Experiment.load(small)
    engines = [experiment._engine(label) for label in "ab"]
    managers: list[Any] = [engine.manager for engine in engines]
    assert [manager.num_blocks for manager in managers] == [64, 32]
    assert [manager.watermark_blocks for manager in managers] == [16, 8]
    assert [manager.max_model_len for manager in managers] == [40, 40]
    assert engines[0].scheduler.config.max_num_batched_tokens == 16
    assert engines[0].until == 0.5
    assert (run(small).requests["status"] == "unfinished").any()


def test_block_sizes_may_differ_between_policies() -> None:
    """A label with its own block_size gets the same requests, keyed for that size."""
    policies = {"4": "reference", "8": {"use": "reference", "block_size": 8, "num_blocks": 32}}
    results = run(config(policies=policies))
    assert list(results.summary["block_size"]) == [4, 8]
    totals = results.summary["prompt_tokens"]
    assert totals[0] == totals[1]


def test_the_seed_is_everyones() -> None:
    """Case N6: the seed fixes all draws, another changes them; global state is untouched."""
    np.random.seed(1)
    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    one = run(config(seed=7))
    np.random.seed(2)
    same_tables(one, run(config(seed=7)))
    np.random.seed(1)
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]
    other = run(config(seed=8)).requests
    for name in ("arrival_time", "num_prompt_tokens", "max_tokens"):
        assert (one.requests[name] != other[name]).any()


def test_policies_draw_from_a_seed_of_their_own() -> None:
    """A random policy must not repeat the workload's draws; its seed follows the experiment's."""
    seeds = [schema.manager_seed(seed) for seed in range(100)]
    assert len({*seeds, *range(100)}) == 200
    assert schema.manager_seed(7) == seeds[7]


def test_objects_from_python() -> None:
    """A notebook may pass a manager, a policy class or a policy; a used manager is refused."""
    manager = ReferenceBlockManager(64, 4)
    specs = {"made": manager, "class": {"use": ReferenceBlockManager, "eviction": LRU}}
    specs["object"] = {"use": "reference", "eviction": LRU()}
    results = run(config(policies=specs))
    assert results.summary["prefix_cache_hits"].nunique() == 1
    assert "policies.made: this manager has been used" in refused(
        config(policies={"made": manager})
    )


def test_progress_names_every_run() -> None:
    """on_progress hears label, number and count before each run."""
    heard: list[Any] = []
    run(
        config(policies={"a": "reference", "b": "vllm"}),
        on_progress=lambda *a: heard.append(a),
    )
    assert heard == [("a", 1, 2), ("b", 2, 2)]


def test_a_run_in_which_nothing_completes(tmp_path: Path) -> None:
    """Case L3: all requests too large: the report is complete, counts them, and holds no NaN."""
    small = config(cache={"num_blocks": 2, "block_size": 4})
    results = run(small, out=tmp_path / "r")
    row = json.loads(results.to_json())[0]
    assert (row["finished"], row["refused"], row["ttft_p50"]) == (0, 20, None)
    assert {path.name for path in (tmp_path / "r").iterdir()} == FILES


# Errors


BASE = "cache: {num_blocks: 64}\nworkload: {use: shared_prefix, num_requests: 5}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block_szie: 32", "x.yaml:3: block_szie: unknown key; did you mean 'cache.block_size'?"),
        ("num_blocks: 3", "x.yaml:3: num_blocks: unknown key; did you mean 'cache.num_blocks'?"),
        ("max_num_seqs: 3", "x.yaml:3: max_num_seqs: unknown key; did you mean 'engine.max_num_se"),
        ("polices: {a: reference}", "x.yaml:3: polices: unknown key; did you mean 'policies'?"),
        ("engine:\n  num_blocks: 3", "x.yaml:4: engine.num_blocks: unknown key; did you mean 'cac"),
        ("engine:\n  max-num-seqs: 3", "x.yaml:4: engine.max-num-seqs: unknown key; did you mean"),
        ("report: {plot: true}", "x.yaml:3: report.plot: unknown key; did you mean 'plots'?"),
        ("report: {plots: [memory, memroy]}", "x.yaml:3: report.plots[1] is 'memroy'; pictures ar"),
        ("report: {plots: [memory, off]}", "x.yaml:3: report.plots[1] is false; it must be text"),
        (
            "policies:\n  a:\n    use: reference\n    eviction:\n      use: lru\n      alpha: 1",
            "x.yaml:8: policies.a.eviction.alpha: unknown to lru (it takes: nothing)",
        ),
        (
            "policies: {a: {use: reference, block-size: 3}}",
            "x.yaml:3: policies.a.block-size: unknown to reference; did you mean 'block_size'?",
        ),
        ("latency: {use: linear, decode: 3}", "x.yaml:3: latency.decode: unknown to linear; did "),
    ],
)
def test_unknown_keys_are_errors(tmp_path: Path, text: str, message: str) -> None:
    """Case N3: misspelt, hyphened, at the wrong level, nested, in a list: path and nearest name."""
    path = tmp_path / "x.yaml"
    path.write_text(BASE + text)
    assert refused(path).removeprefix(f"{tmp_path}/").startswith(message)


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ("{num_blocks: 9, block_szie: 4}", "x.yaml:1: cache.block_szie: unknown key; did you mean"),
        ("{num_blocks: 9, block-size: 4}", "x.yaml:1: cache.block-size: unknown key; did you mean"),
        (
            "{num_blocks: 9, max_num_seqs: 4}",
            "x.yaml:1: cache.max_num_seqs: unknown key; did you me",
        ),
        (
            "{num_blocks: 9, free_order: no}",
            "x.yaml:1: cache.free_order is false; it must be one of",
        ),
        ("{num_blocks: 16GiB}", "x.yaml:1: cache.num_blocks is '16GiB'; it must be a whole number"),
        ("{num_blocks: ~}", "x.yaml:1: cache.num_blocks is null; it must be a whole number"),
        ("{num_blocks: 1e-5}", "x.yaml:1: cache.num_blocks is 1e-05; it must be a whole number"),
        ("{num_blocks: 0}", "x.yaml:1: cache.num_blocks is 0; it must be at least 1"),
        ("{num_blocks: 1}", "x.yaml:1: cache.num_blocks is 1; it must be at least 2"),
        ("{block_size: 4}", "x.yaml: policies.lru: vllm needs num_blocks; it takes:"),
        ("8", "x.yaml:1: cache is 8; it must be a mapping of keys"),
    ],
)
def test_bad_cache_sections(tmp_path: Path, cache: str, message: str) -> None:
    """Case N1, N3: the cache's own keys and those it hands to managers, by file, line and path."""
    path = tmp_path / "x.yaml"
    path.write_text(f"cache: {cache}\nworkload: shared_prefix\n")
    assert refused(path).removeprefix(f"{tmp_path}/").startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: NO", "x.yaml:3: name is false; it must be text (YAML reads on, off, yes and no as"),
        ("name: a/b", "x.yaml:3: name is 'a/b'; it must be usable as a folder's name"),
        ("name: ..", "x.yaml:3: name is '..'; it must be usable as a folder's name"),
        ("seed: -1", "x.yaml:3: seed is -1; it must be at least 0"),
        ("seed: 1.5", "x.yaml:3: seed is 1.5; it must be a whole number"),
        ("policies: {on: reference}", "x.yaml:3: in policies: the key on is read as true, not as"),
        ("policies: {a: off}", "x.yaml:3: policies.a is false; it must be the name of a block man"),
        (
            "policies: {a: {use: reference, eviction: no}}",
            "x.yaml:3: policies.a.eviction is false; it must be the name of an eviction policy",
        ),
        ("policies: [lru, off]", "x.yaml:3: policies is ['lru', False]; it must be a mapping of"),
        ("policies: {}", "x.yaml:3: policies: is empty; write at least one"),
        ("engine: {max_num_seqs: 0}", "x.yaml:3: engine.max_num_seqs is 0; it must be at least 1"),
        ("engine: {policy: lifo}", "x.yaml:3: engine.policy is 'lifo'; it must be one of fcfs, p"),
        ("engine: {until: 0}", "x.yaml:3: engine.until is 0.0 s; it must be greater than 0"),
        ("latency: {use: linear, decode_ms: 0}", "x.yaml:3: latency.decode_ms is 0.0; it must be"),
        ("latency:", "x.yaml:3: latency is null; it must be the name of a latency model"),
    ],
)
def test_bad_values(tmp_path: Path, text: str, message: str) -> None:
    """Case N2 and ranges: each is refused by file, line and path, with value and rule."""
    path = tmp_path / "x.yaml"
    path.write_text(f"{BASE}{text}\n")
    assert refused(path).removeprefix(f"{tmp_path}/").startswith(message)


def test_booleans_are_fine_where_they_are_meant() -> None:
    """Case N2: `enable_caching: off` is the boolean it looks like."""
    experiment = Experiment.load(config(), ["cache.enable_caching=off"])
    assert experiment._engine("lru").manager.enable_caching is False


def test_a_cache_key_must_have_an_effect() -> None:
    """A value that every policy overrides would mislead whoever reads the config."""
    cache = {"num_blocks": 64, "block_size": 4, "watermark": 0.1}
    own = {"use": "reference", "watermark": 0.2}
    assert refused(config(cache=cache, policies={"a": own})).startswith(
        "cache.watermark: has no eff"
    )
    run(config(cache=cache, policies={"a": own, "b": "reference"}))


def test_a_missing_workload_is_named() -> None:
    """The one section without a default."""
    assert refused({"cache": {"num_blocks": 8}}).startswith("workload: is missing")


def test_block_sizes_must_agree() -> None:
    """A workload keyed for other blocks than the manager's would never hit; it is refused."""
    workload = {"use": "shared_prefix", "num_requests": 5, "block_size": 8}
    assert "block_size is 8 tokens, the manager's 4" in refused(config(workload=workload))


def test_overrides_are_checked_like_the_file() -> None:
    """--set of an unknown path names the nearest valid name, and the override as the culprit."""
    message = refused(config(), ("cache.num_blcks=4",))
    assert message.startswith("--set cache.num_blcks: unknown key; did you mean 'num_blocks'?")
    message = refused(config(), ("enigne.max_num_seqs=4",))
    assert message.startswith("--set enigne: unknown key; did you mean 'engine'?")
    assert Experiment.load(config(), ["policies.lru.num_blocks=9"])._engine("lru").manager


def test_everything_is_checked_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case N3: nothing is simulated when the last policy's constructor refuses its arguments."""
    ran: list[str] = []
    monkeypatch.setattr(Experiment, "run_one", lambda self, label: ran.append(label))
    policies = {"a": "reference", "b": {"use": "reference", "num_blocks": 1}}
    assert refused(config(policies=policies)) == "policies.b.num_blocks is 1; it must be at least 2"
    assert ran == []


# The folder


def test_the_folder_is_complete_and_runs_again(tmp_path: Path) -> None:
    """The resolved config in the folder gives byte-identical tables and itself again."""
    policies = {"lru": "reference", "1e3": {"use": "reference", "num_blocks": 32}}
    source = config(policies=policies, seed=3, report={"plots": ["memory"]})
    results = run(source, overrides=["latency.decode_ms=5"], out=tmp_path / "one")
    assert {path.name for path in (tmp_path / "one").iterdir()} == FILES | {"plots"}
    assert [path.name for path in (tmp_path / "one" / "plots").iterdir()] == ["memory.png"]
    again = run(tmp_path / "one" / "config.yaml", out=tmp_path / "two")
    same_tables(results, again)
    for name in (*TABLES, "config.yaml"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    resolved = yaml.safe_load((tmp_path / "one" / "config.yaml").read_text())
    assert resolved["latency"]["decode_ms"] == 5
    assert resolved["policies"]["1e3"]["num_blocks"] == 32
    assert resolved["policies"]["lru"]["free_order"] == "tail"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]  # no scratch is left


def test_every_default_is_in_the_resolved_config() -> None:
    """What was not written down is: engine limits, latency, workload, manager."""
    resolved = Experiment.load({"cache": {"num_blocks": 8}, "workload": "shared_prefix"}).resolved()
    assert resolved["seed"] == 0
    assert resolved["engine"]["max_num_seqs"] == 256
    assert resolved["latency"]["prefill_us_per_token"] == 45.0
    assert resolved["workload"]["rate"] == 8.0
    assert resolved["policies"]["lru"]["null_block"] is True


def test_versions_say_what_was_read(tmp_path: Path) -> None:
    """The trace's SHA-256, the workload's notes and the versions stand beside the tables."""
    rows = [
        {"timestamp": t, "input_length": 4, "output_length": 1, "hash_ids": [i]}
        for i, t in enumerate((5, 0))
    ]
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload = {"use": "mooncake", "path": str(trace), "trace_block_size": 4}
    run(config(workload=workload), out=tmp_path / "r")
    versions = json.loads((tmp_path / "r" / "versions.json").read_text())
    digest = subprocess.run(["sha256sum", trace], capture_output=True, text=True, check=True).stdout
    assert versions["workload"]["files"] == {"t.jsonl": digest.split()[0]}
    assert versions["workload"]["num_requests"] == 2
    assert "sorted" in versions["workload"]["notes"][0]
    assert versions["numpy"] == np.__version__


def test_without_out_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python, results are returned; a folder is written only where one is named."""
    monkeypatch.chdir(tmp_path)
    run(config())
    assert list(tmp_path.iterdir()) == []
    run(config(report={"out": "here", "plots": False}))
    assert (tmp_path / "here" / "summary.csv").is_file()
    run(config(report={"out": "here", "plots": False}), out="there")
    assert (tmp_path / "there" / "summary.csv").is_file()


def test_earlier_results_are_replaced_as_a_whole(tmp_path: Path) -> None:
    """A second run into the same folder leaves no file of the first."""
    run(config(report={"plots": ["memory"]}), out=tmp_path / "r")
    assert (tmp_path / "r" / "plots" / "memory.png").is_file()
    run(config(seed=1), out=tmp_path / "r")
    assert {path.name for path in (tmp_path / "r").iterdir()} == FILES


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, KvsimError, OSError])
@pytest.mark.parametrize("place", ["sim.engine.Engine.run", "sim.results.Results.save"])
def test_a_failed_run_leaves_earlier_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: type[BaseException]
) -> None:
    """Ctrl-C, a bug, a bad input, a full disk, early or late: tables stay, no scratch does."""
    run(config(), out=tmp_path / "r")
    before = contents(tmp_path)

    def fail(*_: Any) -> None:
        raise error("stop")

    monkeypatch.setattr(place, fail)
    expected: type[BaseException] = RunsFailed if place.endswith("Engine.run") else error
    if place.endswith("save") and error is OSError:
        expected = KvsimError
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else expected):
        run(config(seed=1), out=tmp_path / "r")
    after = contents(tmp_path)
    failures = {name for name in after if name.endswith(".failed.txt")}
    assert {name: after[name] for name in after.keys() - failures} == before
    assert len(failures) == (expected is RunsFailed and error is not KeyboardInterrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_an_interrupted_replacement_is_mended_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only some of the new tables could be moved, running again needs no simulation."""
    run(config(), out=tmp_path / "r")
    replace = os.replace

    def fail(source: Any, target: Any) -> None:
        if Path(target) == tmp_path / "r" / "summary.csv":
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(KvsimError, match="r: cannot write the results: No space left on de"):
            run(config(seed=1), out=tmp_path / "r")
    monkeypatch.setattr("sim.engine.Engine.run", None)
    run(config(seed=1), out=tmp_path / "r")
    monkeypatch.undo()
    run(config(seed=1), out=tmp_path / "new")
    assert contents(tmp_path / "r") == contents(tmp_path / "new")


@pytest.mark.parametrize("names", [["notes.md"], ["config.yaml"], ["summary.csv", "x"]])
def test_foreign_folders_are_refused(tmp_path: Path, names: list[str]) -> None:
    """A folder that is not results, or holds anything besides, is never replaced."""
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="is no results folder of kvsim alone"):
        run(config(), out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("name", ["notes.md", "plots/mine.svg"])
def test_results_with_additions_are_refused(tmp_path: Path, name: str) -> None:
    """What a user put beside the tables is not thrown away with them."""
    run(config(), out=tmp_path / "r")
    (tmp_path / "r" / "plots").mkdir()
    (tmp_path / "r" / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"it holds {name}"):
        run(config(), out=tmp_path / "r")
    assert (tmp_path / "r" / name).read_text() == "mine"


def test_unwritable_places_get_one_line_before_the_run(tmp_path: Path) -> None:
    """A file in the way, as the folder or above it, is told before anything is simulated."""
    (tmp_path / "f").write_text("")
    with pytest.raises(ConfigError, match="f: is a file; results need a folder"):
        run(config(), out=tmp_path / "f")
    with pytest.raises(
        KvsimError, match=r"cannot write the results: (Not a directory|File exists)"
    ):
        run(config(), out=tmp_path / "f" / "r")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent_gets_one_line(tmp_path: Path) -> None:
    """A folder without write permission is told before anything is simulated."""
    tmp_path.chmod(0o500)
    with pytest.raises(KvsimError, match="cannot write the results: Permission denied"):
        run(config(), out=tmp_path / "r")
    tmp_path.chmod(0o700)


def test_python_objects_are_marked_in_the_folder(tmp_path: Path) -> None:
    """A config with objects from Python cannot be repeated, and its file says so."""
    source = config(policies={"a": {"use": "reference", "eviction": LRU()}})
    run(source, out=tmp_path / "r")
    text = (tmp_path / "r" / "config.yaml").read_text()
    assert text.startswith("# Every value in effect; what is from Python cannot be")
    with pytest.raises(
        ConfigError, match=r"<policies\.lru:LRU from Python>' is not an import path"
    ):
        run(tmp_path / "r" / "config.yaml")


def test_the_pictures_named_in_a_config_are_those_drawn(tmp_path: Path) -> None:
    """`report.plots: true` draws what has something to show, all by names that `plots` accepts."""
    run(config(report={"plots": True}), out=tmp_path / "r")
    drawn = {path.stem for path in (tmp_path / "r" / "plots").iterdir()}
    assert {"hit_rate", "memory", "ttft", "tpot", "e2e", "queue_time"} <= drawn
    assert drawn <= set(schema.PICTURES)
    run(config(report={"plots": ["ttft"]}), out=tmp_path / "r")
    assert [path.stem for path in (tmp_path / "r" / "plots").iterdir()] == ["ttft"]


# Determinism

TIES = """
    from collections.abc import Iterator
    from sim.keys import ChunkKeys
    from sim.request import Request
    from sim.workload import Workload

    class Ties(Workload):
        def __init__(self, block_size: int = 16) -> None:
            self.block_size = block_size

        def __iter__(self) -> Iterator[Request]:
            for i in range(50):
                keys = ChunkKeys([0, 1 + i % 7], 8, self.block_size, 16, 24, -1 - i)
                yield Request(f"request-{i}", keys, 16, 8, 0.0)

        def __len__(self) -> int:
            return 50
"""


@pytest.mark.slow
def test_equal_runs_are_equal_bytes_in_every_process(tmp_path: Path) -> None:
    """Case M6: 50 requests at t = 0 with text ids, five hash seeds: every file is the same."""
    (tmp_path / "kvsim_test_ties.py").write_text(textwrap.dedent(TIES))
    policies = {"tail": "reference", "first": {"use": "reference", "free_order": "unhashed_first"}}
    source = config(
        cache={"num_blocks": 24, "block_size": 4},
        workload="kvsim_test_ties:Ties",
        policies=policies,
    )
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(source, sort_keys=False))
    root = Path(schema.__file__).parents[2]
    found = []
    for seed in ("0", "1", "2", "4294967295", "random"):
        folder = tmp_path / f"r-{seed}"
        subprocess.run(
            [sys.executable, "-m", "sim.cli", "run", tmp_path / "c.yaml", "--out", folder],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            check=True,
            capture_output=True,
        )
        found.append(contents(folder))
    assert FILES - {"runs"} <= found[0].keys()
    assert Results.load(tmp_path / "r-0").summary["num_preemptions"].sum() > 0
    for name, data in found[0].items():
        assert all(other[name] == data for other in found), name


def test_trace_errors_stay_trace_errors(tmp_path: Path) -> None:
    """A bad trace is told by its own file and line, not by the policy that met it first."""
    (tmp_path / "t.jsonl").write_text("{}\n")
    workload = {"use": "mooncake", "path": str(tmp_path / "t.jsonl")}
    with pytest.raises(TraceError, match=r"^\S*t\.jsonl:1: "):
        run(config(workload=workload))


def test_folders_above_the_results_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing parents are created; a run that fails leaves only the record of its failure."""
    run(config(), out=tmp_path / "a" / "b" / "r")
    assert (tmp_path / "a" / "b" / "r" / "summary.csv").is_file()

    def fail(*_: Any) -> None:
        raise KvsimError("stop")

    monkeypatch.setattr("sim.engine.Engine.run", fail)
    with pytest.raises(KvsimError, match=r"^policies\.lru: stop$"):
        run(config())
    with pytest.raises(
        RunsFailed, match=r"(?s)^1 of 1 runs failed .*\nlru: stop \(.*failed.txt\)$"
    ):
        run(config(), out=tmp_path / "a" / "c" / "d" / "r")
    assert [path.name for path in (tmp_path / "a" / "c" / "d" / "r").iterdir()] == ["runs"]
