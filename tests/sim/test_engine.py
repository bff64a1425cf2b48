"""The engine: a clock around the scheduler, checked on runs worked out by hand."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest

from policies.reference import ReferenceBlockManager
from sim.engine import Engine
from sim.errors import ConfigError, KvsimError
from sim.keys import SegmentKeys
from sim.latency import Constant
from sim.request import Request
from sim.scheduler_config import SchedulerConfig

_fresh_id = count(1_000)


def request(name, prompt: int, outputs: int, arrival: float = 0.0, *, block_size=4, **fields):
    """A request that shares nothing with any other."""
    if prompt + outputs:
        keys = SegmentKeys([next(_fresh_id)], [prompt + outputs], block_size)
    else:
        keys = SegmentKeys([0], [1], block_size)
    return Request(name, keys, prompt, outputs, arrival_time=arrival, **fields)


def run(requests, *, usable=50, block_size=4, until=None, interval=None, **scheduler):
    """The record of a run in which every step takes one second."""
    engine = Engine(
        ReferenceBlockManager(usable + 1, block_size),
        latency=Constant(1.0),
        scheduler=SchedulerConfig(**scheduler),
        until=until,
        series_interval=interval,
    )
    return engine.run(requests)


def test_life_cycle_of_one_request():
    """Arrival 0.5, prefill 0.5-1.5, two more tokens: TTFT 1 s, end at 3.5 s."""
    record = run([request("a", 8, 3, 0.5)])
    row = {name: column[0] for name, column in record.requests.items()}
    assert row["first_scheduled_time"] == 0.5
    assert row["first_token_time"] == 1.5
    assert row["finish_time"] == 3.5
    assert (row["status"], row["num_output_tokens"]) == ("finished", 3)
    assert record.totals["num_steps"] == 3


def test_arrivals_during_a_step_wait_for_the_next():
    """A request that arrives at 0.4 is first scheduled at 1.0, one that arrives at 1.0 as well."""
    record = run([request("a", 8, 3), request("b", 8, 1, 0.4), request("c", 8, 1, 1.0)])
    assert record.requests["first_scheduled_time"] == [0.0, 1.0, 1.0]


def test_the_engine_sleeps_between_bursts():
    """Case M3: a wait that ended is cancelled: one step per request however long it slept."""
    record = run([request("a", 8, 1), request("b", 8, 1, 105.0), request("c", 8, 1, 105.0)])
    assert record.requests["first_scheduled_time"] == [0.0, 105.0, 105.0]
    assert record.totals["num_steps"] == 2
    assert record.totals["end_time"] == 106.0


def test_ties_keep_their_order():
    """Case M1: 100 requests of one instant are served in the order in which they were given."""
    requests = [request(i, 4, 1, 5.0) for i in range(100)]
    record = run(requests, max_num_seqs=1)
    assert record.requests["finish_time"] == [6.0 + i for i in range(100)]


def test_nothing_happens_at_the_horizon_itself():
    """Case M2: of arrivals at 0, 5, 10, 10, 10 and a horizon of 10 two are served, none partly."""
    requests = [request(i, 4, 1, t) for i, t in enumerate((0, 5, 10, 10, 10))]
    record = run(requests, until=10.0)
    assert record.requests["status"] == ["finished"] * 2 + ["unfinished"] * 3
    assert record.totals["end_time"] == 10.0


def test_prompt_larger_than_the_pool_is_refused_and_the_next_is_served():
    """Case G1: 50 blocks with the null block hold 784 tokens; 785 and 1002 are refused."""
    requests = [
        request("A", 1002, 1, block_size=16),
        request("B", 20, 1, block_size=16),
        request("A'", 784, 1, block_size=16),
        request("A''", 785, 1, block_size=16),
    ]
    record = run(requests, usable=49, block_size=16)
    assert record.requests["status"] == ["refused", "finished", "finished", "refused"]
    assert record.requests["reason"][0] == (
        "prompt and answer need 63 blocks of 16 tokens; the pool has 49"
    )


def test_request_that_fits_at_first_but_can_never_end_is_refused():
    """Case G2: 16 prompt tokens in 4 blocks: 1 output completes in a step, 2 can never."""
    record = run([request("a", 16, 1), request("b", 16, 2)], usable=4)
    assert record.requests["status"] == ["finished", "refused"]
    assert record.totals["num_steps"] == 1


def test_empty_prompts_and_answers_are_refused():
    """Case G3: nothing is divided by zero; the others run."""
    record = run([request("a", 0, 1), request("b", 4, 1), request("c", 0, 0), request("d", 4, 0)])
    assert record.requests["status"] == ["refused", "finished", "refused", "refused"]
    assert "prompt is empty" in record.requests["reason"][0]
    assert "max_tokens" in record.requests["reason"][3]


def test_without_chunking_a_prompt_over_the_budget_is_refused():
    """It would block the head of the queue for ever."""
    record = run(
        [request("a", 20, 1), request("b", 8, 1)],
        max_num_batched_tokens=16,
        enable_chunked_prefill=False,
    )
    assert record.requests["status"] == ["refused", "finished"]


def test_prompt_beyond_max_model_len_is_refused():
    """As vLLM's front end does."""
    record = run([request("a", 20, 1), request("b", 19, 5)], max_model_len=20)
    assert record.requests["status"] == ["refused", "finished"]
    assert record.requests["num_output_tokens"] == [0, 1]


def test_abort_while_running_and_while_waiting():
    """A client that hangs up frees its memory at once and is not served further."""
    record = run(
        [request("a", 8, 100, abort_time=3.5), request("b", 8, 2, abort_time=0.5)],
        max_num_seqs=1,
    )
    assert record.requests["status"] == ["aborted", "aborted"]
    assert record.requests["num_output_tokens"] == [3, 0]
    assert record.requests["finish_time"] == [3.5, 0.5]


def test_no_requests_at_all():
    """An empty workload gives an empty record."""
    record = run([])
    assert record.requests["request_id"] == []
    assert record.totals["num_steps"] == 0


def test_series_counts_every_block_in_one_state():
    """Used, cached and blank blocks always add up to the pool, and usage ends at 0."""
    rng = np.random.default_rng(0)
    requests = [
        request(i, int(rng.integers(1, 40)), int(rng.integers(1, 9)), i * 0.7) for i in range(60)
    ]
    record = run(requests, usable=20, interval=1.0)
    states = ("num_used_blocks", "num_cached_blocks", "num_blank_blocks")
    assert set(np.sum([record.series[name] for name in states], axis=0)) == {20}
    assert record.series["num_used_blocks"][-1] == 0
    assert max(record.series["num_used_blocks"]) <= record.totals["peak_used_blocks"] <= 20
    assert record.totals["num_preemptions"] == sum(record.requests["num_preemptions"]) > 0


def test_requests_come_back_as_they_went_in():
    """Two runs over the same request objects give the same record."""
    requests = [request(i, 10, 3, i * 0.1) for i in range(20)]
    first, second = run(requests), run(requests)
    assert repr(first.requests) == repr(second.requests)
    assert math.isnan(requests[0].finish_time)


def test_unsorted_arrivals_are_refused():
    """A workload that goes back in time is an error that names the request."""
    with pytest.raises(KvsimError, match=r"request b arrives at 1\.0 s"):
        run([request("a", 4, 1, 2.0), request("b", 4, 1, 1.0)])


@pytest.mark.parametrize("late", [math.inf, math.nan, 1e12])
def test_arrivals_that_the_clock_cannot_tell_apart_are_refused(late):
    """Steps would take no time; the error names the request."""
    with pytest.raises(KvsimError, match=r"request b arrives at .* s; it must be at most 1e\+10 s"):
        run([request("a", 4, 1, 2.0), request("b", 4, 1, late)])


def test_block_sizes_must_agree():
    """Keys for one block size and memory for another give nonsense: refused."""
    with pytest.raises(ConfigError, match="block_size is 8"):
        run([request("a", 4, 1, block_size=8)])
