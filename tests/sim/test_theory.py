"""What queueing and caching theory says must come out of engine and replay too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.vllm import VLLMBlockManager
from sim.engine import Engine
from sim.latency import Constant
from sim.recorder import RunRecord
from sim.replay import replay
from sim.scheduler_config import SchedulerConfig
from workloads.shared_prefix import SharedPrefix


def serve(rate: float, num_requests: int, steps: int = 1, **options: Any) -> RunRecord:
    """One request at a time, each for *steps* steps of 1 / *steps* seconds."""
    workload = SharedPrefix(
        rate, num_requests, prefix_tokens=8, suffix_tokens=8, output_tokens=steps, output_cv=0.0
    )
    engine = Engine(
        VLLMBlockManager(64, 16),
        latency=Constant(1.0 / steps),
        scheduler=SchedulerConfig(max_num_seqs=1),
        **options,
    )
    return engine.run(workload)


@pytest.mark.parametrize(("rate", "steps"), [(0.5, 1), (0.8, 1), (0.5, 4)])
def test_one_server_with_constant_service_is_m_d_1(rate: float, steps: int) -> None:
    """Pollaczek and Khinchine: the mean wait is load / (2 (1 - load)) services; here within 4 %."""
    columns = serve(rate, 40_000, steps).requests
    waits = np.subtract(columns["first_scheduled_time"], columns["arrival_time"])
    assert waits.mean() == pytest.approx(rate / (2 * (1 - rate)), rel=0.04)
    finished = np.subtract(columns["finish_time"], columns["first_scheduled_time"])
    np.testing.assert_allclose(finished, 1.0)


def test_an_idle_server_lets_nobody_wait() -> None:
    """The other limit: at a load near 0 every request starts as it arrives."""
    columns = serve(0.001, 300).requests
    waits = np.subtract(columns["first_scheduled_time"], columns["arrival_time"])
    assert np.count_nonzero(waits) <= 1


def test_littles_law() -> None:
    """Requests in the system on average = arrivals per second x seconds in the system.

    Samples are taken between steps, so who arrives in a step of 0.02 s is seen 0.01 s late.
    """
    record = serve(0.8, 4000, steps=50, series_interval=0.02)
    columns, series = record.requests, record.series
    end = record.totals["end_time"]
    seconds = np.subtract(columns["finish_time"], columns["arrival_time"])
    inside = np.add(series["num_running"], series["num_waiting"])
    mean_inside = np.average(inside[:-1], weights=np.diff(series["time"]))
    assert mean_inside == pytest.approx(len(seconds) / end * seconds.mean(), rel=0.02)


@pytest.mark.parametrize("zipf", [0.7, 1.0])
@pytest.mark.parametrize("num_blocks", [50, 200])
def test_zipf_and_lru_is_ches_approximation(zipf: float, num_blocks: int) -> None:
    """Independent draws of one block each: LRU's hit rate within 2 % of Che et al. (2002)."""
    num_contents, num_warm = 1000, 20_000
    workload = SharedPrefix(
        num_requests=120_000,
        num_prefixes=num_contents,
        zipf=zipf,
        prefix_tokens=16,
        prefix_cv=0.0,
        suffix_tokens=1,
        suffix_cv=0.0,
        block_size=16,
    )
    # The token behind the block takes another one, which is reused first and never cached.
    manager = VLLMBlockManager(num_blocks + 1, 16, free_order="unhashed_first", null_block=False)
    hits: list[int] = []
    replay(manager, workload, hits=hits)
    measured = np.mean(np.array(hits[num_warm:]) > 0)

    weights = np.arange(1, num_contents + 1.0) ** -zipf
    shares = weights / weights.sum()
    low, high = 0.0, 1e9  # the characteristic time, in requests
    for _ in range(200):
        time = (low + high) / 2
        if np.sum(-np.expm1(-shares * time)) > num_blocks:
            high = time
        else:
            low = time
    expected = float(np.sum(shares * -np.expm1(-shares * low)))
    assert measured == pytest.approx(expected, rel=0.02)
