from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from policies.fifo import FIFO
from policies.reference import ReferenceBlockManager
from policies.uncached import UncachedBlockManager
from policies.vllm import VLLMBlockManager
from sim.analysis.explain import NUMBERS, Explanation, explain
from sim.analysis.misses import CLASSES, LOST
from sim.analysis.shared_prefixes import shared_prefixes
from sim.cli import main
from sim.errors import ConfigError
from sim.keys import ChunkKeys
from sim.latency import Linear
from sim.replay import replay
from sim.reports.report import Report
from sim.request import Request
from sim.spec.build import build
from sim.studies.study import run
from sim.workload import Workload
from workloads.mooncake import Mooncake
from workloads.own_rows import write
from workloads.shared_prefix import SharedPrefix
from workloads.transforms import Tenants


class Listed(Workload):
    """Prompts of whole ids of 4 tokens, one second apart; a list of (ids, tokens, session)."""

    def __init__(self, *prompts: tuple[list[int], int, str]) -> None:
        self.block_size = 4
        self.prompts = prompts

    def __iter__(self) -> Any:
        for i, (ids, length, session) in enumerate(self.prompts):
            keys = ChunkKeys(ids, 4, 4, length, length + 1, -1 - i)
            yield Request(i, keys, length, 1, float(i), session=session)

    def __len__(self) -> int:
        return len(self.prompts)


def lost_tokens(found: Explanation) -> int:
    return int(found.requests[list(LOST)].to_numpy().sum())


def test_regret_by_hand() -> None:
    """4 blocks: A (2 blocks) is evicted by B (4) at 1 s, wanted at 2 s: 2 blocks, 1 s, by A."""
    a, b = ([1, 2, 3], 9, "A"), ([5, 6, 7, 8], 16, "B")
    found = explain(VLLMBlockManager(4, 4, null_block=False), Listed(a, b, a))
    table = found.evictions
    first = table[table["session"] == "A"].iloc[0]
    assert (first["time"], first["start"], first["num_blocks"]) == (1.0, 0, 2)
    assert (first["lifetime"], first["idle"], first["num_uses"]) == (1.0, 1.0, 0)
    assert (first["returned_after"], first["num_recomputed"]) == (1.0, 2)
    regret = found.regret()
    assert regret.loc["A", "recomputed_tokens"] == 8
    assert regret.loc["B", "recomputed_tokens"] == 0


def test_refused_requests_are_told() -> None:
    """5 blocks do not fit in 4: the tables are about the two others, and the text says so."""
    a, large = ([1, 2, 3], 9, "A"), ([5, 6, 7, 8, 9], 20, "B")
    found = explain(VLLMBlockManager(4, 4, null_block=False), Listed(a, large, a))
    assert (len(found.requests), found.num_refused) == (2, 1)
    assert "2 of 3 (1 refused: too large for the pool)" in next(found.lines())
    alone = explain(VLLMBlockManager(4, 4, null_block=False), Listed(a, a))
    assert next(alone.lines()).split() == ["requests", "2"]


def test_what_regret_costs_by_hand() -> None:
    """10 us a token: 8 tokens of A were evicted and cost 80 us; nobody wanted B's again."""
    a, b = ([1, 2, 3], 10, "A"), ([5, 6, 7, 8], 16, "B")
    rows = Listed(a, b, a)
    latency = Linear(prefill_us_per_token=10.0)

    class Owned(Listed):
        """The same, of tenants that are called as the sessions."""

        def __iter__(self) -> Any:
            for request in super().__iter__():
                request.hints = {"tenant": f"of {request.session}"}
                yield request

    plain = explain(VLLMBlockManager(4, 4, null_block=False), rows, latency=latency)
    assert "by tenant" not in "\n".join(plain.lines())
    found = explain(VLLMBlockManager(4, 4, null_block=False), Owned(*rows.prompts), latency=latency)
    regret = found.regret("tenant")
    assert regret.loc["of A", "ttft_paid"] == pytest.approx(80e-6)
    assert list(regret.loc["of A", ["num_regretted", "recomputed_tokens"]]) == [1, 8]
    assert list(regret.loc["of B", ["num_regretted", "ttft_paid"]]) == [0, 0]
    text = "\n".join(found.lines())
    assert "each cost        8 tokens, 0.0001 s of TTFT; 0.0 s in all" in text
    assert "    of A                   1            1            8         0.0001" in text


@pytest.mark.parametrize("eviction", ["lru", "mru", "sieve"])
def test_the_cost_is_shared_among_all_that_are_to_blame(eviction: str) -> None:
    """At a price per token, what evictions cost is the price of all evicted tokens."""
    spec = {"use": "vllm", "eviction": eviction}
    manager = build("manager", spec, known={"num_blocks": 400, "block_size": 16})
    of = SharedPrefix(num_requests=300, num_prefixes=20, suffix_tokens=64)
    latency = Linear(prefill_us_per_token=10.0)
    found = explain(manager, Tenants(of, num_tenants=3), latency=latency)
    tokens = found.requests["evicted"].sum()
    price = pytest.approx(10e-6 * tokens, rel=0.01)  # a last token alone is cheaper
    assert tokens > 0
    assert found.evictions["ttft_paid"].sum() == price
    regret = found.regret("tenant")
    assert sorted(regret.index) == [0, 1, 2]
    assert regret["recomputed_tokens"].sum() == tokens
    for by in ("session", "start"):
        assert found.regret(by)["ttft_paid"].sum() == price


def test_a_run_that_comes_back_in_parts() -> None:
    """Of 4 evicted blocks 2 are wanted, later all 4: 2 + 2 are recomputed, none twice."""
    long, short = ([1, 2, 3, 4, 9], 17, "A"), ([1, 2, 8], 9, "A")
    other = ([21, 22, 23, 24, 25], 20, "B")
    found = explain(
        VLLMBlockManager(5, 4, null_block=False), Listed(long, other, short, other, long)
    )
    assert lost_tokens(found) == 4 * found.evictions["num_recomputed"].sum()
    assert found.evictions["num_recomputed"].max() <= 4


@pytest.mark.parametrize("make", [VLLMBlockManager, ReferenceBlockManager])
@pytest.mark.parametrize("decode", [False, True])
def test_the_books_of_tokens_and_blocks_agree(make: Any, decode: bool) -> None:
    """Hits, evictions and lost tokens are those of a plain replay; every lost block was evicted."""
    workload = SharedPrefix(num_requests=300, num_prefixes=20, output_tokens=20)
    manager = make(400)
    found = explain(manager, workload, decode=decode)
    plain = replay(make(400), workload, decode=decode)
    assert found.requests["hit"].sum() == plain.hit_tokens
    assert found.evictions["num_blocks"].sum() == plain.evicted_blocks > 0
    assert lost_tokens(found) == 16 * found.evictions["num_recomputed"].sum()
    assert (found.requests[list(CLASSES)].sum(axis=1) == found.requests["num_prompt_tokens"]).all()
    assert found.gaps["num_blocks"].sum() * 16 == plain.hit_tokens
    assert sum(found.shares().values()) == pytest.approx(1)
    answers = found.evictions["num_answer_blocks"].sum()
    assert (answers > 0) == decode


@pytest.mark.parametrize("eviction", ["mru", "lfu", "sieve"])
def test_lost_tokens_were_evicted_or_orphaned(eviction: str) -> None:
    """Policies that leave gaps: what is lost was evicted, or is there below something evicted."""
    spec = {"use": "vllm", "eviction": eviction}
    manager = build("manager", spec, known={"num_blocks": 400, "block_size": 16})
    found = explain(manager, SharedPrefix(num_requests=400, num_prefixes=30, suffix_tokens=64))
    lost = lost_tokens(found)
    assert found.requests["orphan"].sum() == 16 * found.num_orphans_wanted
    assert lost == 16 * (found.evictions["num_recomputed"].sum() + found.num_orphans_wanted) > 0


def test_spans_and_blocks_tell_the_same(kvsim_data: Path) -> None:
    """By spans and block by block the same blocks are evicted at the same moments."""
    workload = Mooncake(kvsim_data / "mooncake" / "synthetic_trace.jsonl.xz", limit=400)
    tables = []
    for make in (VLLMBlockManager, ReferenceBlockManager):
        found = explain(make(2500, 512, eviction=FIFO()), workload)
        rows = found.evictions.loc[found.evictions.index.repeat(found.evictions["num_blocks"])]
        tables.append(rows.groupby("time").agg({"idle": ["count", "sum", "max"]}))
    pd.testing.assert_frame_equal(*tables)


def test_the_prefixes_that_could_save_most() -> None:
    """Three requests of two sessions share two blocks: 2 x 8 tokens; then one more pair."""
    rows = [([1, 2, 3], 10, "A"), ([1, 2, 4], 12, "B"), ([1, 2, 3], 12, "A"), ([7, 8], 8, "C")]
    table = shared_prefixes(list(Listed(*rows)), 2)
    assert list(table["reusable_tokens"]) == [16, 0]
    assert list(table[["num_requests", "num_sessions", "num_tokens"]].iloc[0]) == [3, 2, 8]


def test_a_manager_without_a_policy_is_refused() -> None:
    """There is nothing to watch where nothing is cached."""
    with pytest.raises(ConfigError, match="has no eviction policy of its own to watch"):
        explain(UncachedBlockManager(64), SharedPrefix(num_requests=3))


def test_the_command(kvsim_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What became of the tokens, evictions and their ages on stdout; the tables in a folder."""
    trace = str(kvsim_data / "mooncake" / "synthetic_trace.jsonl.xz")
    out = tmp_path / "e"
    assert (
        main(["explain", trace, "--num-blocks", "5000", "--policy", "s3fifo", "--out", str(out)])
        == 0
    )
    text = capsys.readouterr().out
    for word in ("prompt tokens", "wanted again", "lifetime", "reused after", "orphans"):
        assert word in text
    assert {path.stem for path in out.iterdir()} == {"requests", "evictions", "gaps", "prefixes"}
    assert len(pd.read_parquet(out / "evictions.parquet")) > 0


def test_the_command_knows_tenants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace with the hint `tenant` has a row for each; another price gives other seconds."""
    trace = tmp_path / "t.jsonl"
    write(Tenants(SharedPrefix(num_requests=300, num_prefixes=20), num_tenants=2), trace)

    def rows(*options: str) -> list[list[str]]:
        assert main(["explain", str(trace), "--num-blocks", "400", *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("  by tenant"))
        return [line.split() for line in lines[start + 1 : start + 3]]

    cheap, dear = rows(), rows("--latency", "{use: linear, prefill_us_per_token: 10000}")
    assert {row[0] for row in cheap} == {"0", "1"}
    assert [row[:4] for row in cheap] == [row[:4] for row in dear]
    for row in dear:
        assert float(row[4]) == pytest.approx(0.01 * float(row[3]), rel=0.01)
    assert all(float(one[4]) < float(other[4]) for one, other in zip(cheap, dear, strict=True))


def test_evictions_are_columns_of_a_study(tmp_path: Path) -> None:
    """`evictions: true` adds what `explain` finds; a manager without a policy has NaN there."""
    config: dict[str, Any] = {
        "mode": "replay",
        "evictions": True,
        "cache": {"block_size": 16},
        "workload": {"use": "shared_prefix", "num_requests": 300, "num_prefixes": 20},
        "policies": {"lru": "vllm", "none": "uncached"},
        "sweep": {"cache.num_blocks": [400, 600]},
        "report": {"plots": ["eviction_age"]},
    }
    results = run(config, out=tmp_path / "r")
    lru = results.select("lru", num_blocks=400).summary.iloc[0]
    workload = SharedPrefix(num_requests=300, num_prefixes=20)
    found = explain(VLLMBlockManager(400), workload).numbers()
    assert {name: lru[name] for name in NUMBERS} == found
    assert results.select("none").summary["eviction_idle_p50"].isna().all()
    assert (tmp_path / "r" / "plots" / "eviction_age.png").is_file()
    assert "eviction_age" in [figure.name for figure in Report.of(tmp_path / "r").figures]
    for wrong in ({"mode": "engine"}, {"warm_start": config["workload"], "bounds": False}):
        with pytest.raises(ConfigError, match="evictions: evictions are watched"):
            run({**config, **wrong})
