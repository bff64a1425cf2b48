"""A replay in the tables of a run: the same hits as `replay` counts, and no times made up."""

from __future__ import annotations

import numpy as np
import pytest

from policies.vllm import VLLMBlockManager
from sim.replay import replay
from sim.replay_record import NO_ROOM, record_replay
from sim.results import Results
from workloads.shared_prefix import SharedPrefix


def recorded(num_blocks: int, num_requests: int, decode: bool = False) -> Results:
    workload = SharedPrefix(num_requests=num_requests, num_prefixes=20)
    record = record_replay(VLLMBlockManager(num_blocks), workload, decode=decode)
    return Results.from_run("lru", record.requests, record.series, record.totals)


@pytest.mark.parametrize("decode", [False, True])
def test_the_counts_are_those_of_replay(decode: bool) -> None:
    """Hit tokens, queries, evictions and refusals; every request knows its own hit."""
    results = recorded(150, 400, decode)
    workload = SharedPrefix(num_requests=400, num_prefixes=20)
    plain = replay(VLLMBlockManager(150), workload, decode=decode)
    row = results.summary.iloc[0]
    assert row["prefix_cache_hits"] == plain.hit_tokens > 0
    assert row["prefix_cache_queries"] == plain.query_tokens
    assert row["num_evicted_blocks"] == plain.evicted_blocks > 0
    assert row["refused"] == plain.refused > 0
    cached = results.requests["num_cached_tokens"]
    assert cached[cached >= 0].sum() == plain.hit_tokens
    refused = results.requests[results.requests["status"] == "refused"]
    assert (refused["reason"] == NO_ROOM).all()
    assert (refused["num_cached_tokens"] == -1).all()


def test_there_are_no_latencies() -> None:
    """No clock, no times: not even a queueing time of 0."""
    table = recorded(4096, 50).requests
    for name in ("queue_time", "ttft", "tpot", "e2e", "first_scheduled_time", "finish_time"):
        assert table[name].isna().all()


def test_rates_over_time_end_as_the_run_does() -> None:
    """Since the start: the hit rate; of the last 1,000 requests: what those hit."""
    results = recorded(4096, 2560)  # sampled every 256 requests, so also at the end
    last = results.series.iloc[-1]
    assert last["hit_rate"] == pytest.approx(results.hit_rate)
    recent = results.requests.iloc[-1000:]
    window = recent["num_cached_tokens"].sum() / recent["num_prompt_tokens"].sum()
    assert last["hit_rate_window"] == pytest.approx(window)
    assert results.summary["hit_rate_window"][0] == last["hit_rate_window"]
    assert len(results.series) == 10
    pool = results.series[["num_used_blocks", "num_cached_blocks", "num_blank_blocks"]].sum(axis=1)
    assert (pool == 4095).all()
    assert (np.diff(results.series["time"]) >= 0).all()


def test_the_peak_is_the_largest_request() -> None:
    """One request at a time: nothing else holds memory."""
    results = recorded(4096, 100)
    longest = results.requests["num_prompt_tokens"].max()
    assert results.summary["peak_used_blocks"][0] == -(-longest // 16)


def test_an_empty_replay() -> None:
    """Case L3: no request is no error."""
    record = record_replay(VLLMBlockManager(64), Nothing(), decode=False)
    table = Results.from_run("lru", record.requests, record.series, record.totals)
    assert np.isnan(table.summary["hit_rate"][0])


class Nothing(SharedPrefix):
    """A workload without requests."""

    def __init__(self) -> None:
        self.block_size = 16
        self.num_prefixes = 1

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(())

    def __len__(self) -> int:
        return 0
