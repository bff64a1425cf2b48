"""Skipping over steps and spans changes the cost of a run and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.block_states import COLUMN
from sim.calendar import Calendar
from sim.engine import Engine
from sim.keys import SegmentKeys
from sim.latency import Constant, Linear, Roofline
from sim.macro import MacroScheduler
from sim.recorder import SERIES, RunRecord
from sim.request import Request
from sim.scheduler import Scheduler
from sim.scheduler_config import SchedulerConfig

TIMES = ("arrival_time", "first_scheduled_time", "first_token_time", "finish_time")


def conversations(rng: np.random.Generator, block_size: int, slots: int) -> list[Request]:
    """Sessions whose next prompt continues the last answer, or not; some clients hang up."""
    requests: list[Request] = []
    segment = 10
    for session in range(int(rng.integers(3, 12))):
        ids, ends, arrival = [int(rng.integers(3))], [int(rng.integers(1, 12))], rng.random() * 20
        for _ in range(int(rng.integers(1, 5))):
            question, answer = int(rng.integers(1, 20)), int(rng.integers(1, 25))
            prompt = ends[-1] + question
            if prompt + answer > slots * 1.2:
                break
            ids, ends = [*ids, segment, segment + 1], [*ends, prompt, prompt + answer]
            segment += 2
            known_private = rng.random() < 0.5
            requests.append(
                Request(
                    f"{session}-{len(ids)}",
                    SegmentKeys(ids, ends, block_size, prompt if known_private else None),
                    prompt,
                    answer,
                    arrival_time=float(arrival),
                    priority=int(rng.integers(3)),
                    abort_time=float(arrival + rng.random() * 30) if rng.random() < 0.1 else None,
                    skip_reading_prefix_cache=bool(rng.random() < 0.05),
                )
            )
            if known_private:  # the answer was promised to be nobody else's: a new one follows
                ids = [*ids[:-1], segment]
                segment += 1
            arrival += rng.random() * 25
    requests.sort(key=lambda request: request.arrival_time)
    return requests


def scenario(seed: int, manager: type, *, macro_steps: bool) -> RunRecord:
    """A random engine over a random pool; everything but the two arguments depends on the seed."""
    rng = np.random.default_rng(seed)
    block_size, num_blocks = int(rng.integers(1, 6)), int(rng.integers(8, 40))
    requests = conversations(rng, block_size, num_blocks * block_size)
    chunked = bool(rng.random() < 0.8)
    config = SchedulerConfig(
        max_num_batched_tokens=int(rng.choice([3, 8, 16, 64])) if chunked else 256,
        max_num_seqs=int(rng.choice([1, 2, 4, 16])),
        max_model_len=int(rng.integers(20, 80)) if rng.random() < 0.2 else None,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=int(rng.choice([0, 0, 4])),
        policy="priority" if rng.random() < 0.25 else "fcfs",
        scheduler_reserve_full_isl=bool(rng.random() < 0.7),
        rules="0.23" if rng.random() < 0.2 else "0.33",
    )
    latency = [Constant(0.5), Linear(decode_ms=400), Roofline(layer_overhead_us=9000)][seed % 3]
    pool = manager(
        num_blocks,
        block_size,
        free_order="tail" if rng.random() < 0.5 else "unhashed_first",
        watermark=0.1 if rng.random() < 0.2 else 0.0,
        enable_caching=bool(rng.random() < 0.9),
        max_model_len=config.max_model_len,
    )
    until = float(rng.random() * 60 + 1) if rng.random() < 0.1 else None
    engine = Engine(
        pool,
        latency=latency,
        scheduler=config,
        until=until,
        series_interval=float(rng.choice([0.3, 2.0, 10.0])),
        macro_steps=macro_steps,
    )
    return engine.run(requests)


def assert_same(one: RunRecord, other: RunRecord) -> None:
    """Equal in everything; times to 1e-9 of their size."""
    for name, column in one.requests.items():
        if name in TIMES:
            np.testing.assert_allclose(column, other.requests[name], rtol=1e-9, err_msg=name)
        else:
            assert column == other.requests[name], name
    for name in SERIES:
        np.testing.assert_allclose(one.series[name], other.series[name], rtol=1e-9, err_msg=name)
    if COLUMN in other.series:  # it has block ids
        assert one.series[COLUMN] == other.series[COLUMN]
    end = one.totals.pop("end_time"), other.totals.pop("end_time")
    assert end[0] == pytest.approx(end[1], rel=1e-9)
    assert one.totals == other.totals


@pytest.mark.parametrize("part", range(6))
def test_same_run_with_macro_steps_and_with_spans(part):
    """300 random engines: plain steps on blocks = macro steps on blocks = macro steps on spans."""
    for seed in range(part * 50, (part + 1) * 50):
        plain = scenario(seed, ReferenceBlockManager, macro_steps=False)
        for manager in (ReferenceBlockManager, VLLMBlockManager):
            expected = RunRecord(plain.requests, plain.series, dict(plain.totals))
            assert_same(expected, scenario(seed, manager, macro_steps=True))


def test_the_scenarios_exercise_what_they_should():
    """They preempt, abort, refuse, finish and hit: nothing is compared in vain."""
    statuses, preemptions, hits = set(), 0, 0
    for seed in range(60):
        record = scenario(seed, VLLMBlockManager, macro_steps=True)
        statuses |= set(record.requests["status"])
        preemptions += record.totals["num_preemptions"]
        hits += record.totals["prefix_cache_hits"]
    assert statuses == {"finished", "aborted", "refused", "unfinished"}
    assert preemptions > 50
    assert hits > 1000


def test_macro_steps_really_skip():
    """One request that decodes 10,000 tokens is scheduled a handful of times."""
    calls = []

    class Counting(MacroScheduler):
        def schedule(self, now=0.0):
            calls.append(now)
            return super().schedule(now)

    engine = Engine(VLLMBlockManager(2000), latency=Constant(1.0), series_interval=1e9)
    engine.scheduler = Counting(engine.manager)
    record = engine.run([Request(0, SegmentKeys([1], [10_010], 16), 10, 10_000)])
    assert record.totals["num_steps"] == 10_000
    assert record.requests["finish_time"] == [10_000.0]
    assert len(calls) < 10


def test_plain_steps_are_an_option():
    """`macro_steps=False` uses the plain scheduler."""
    assert type(Engine(VLLMBlockManager(9), macro_steps=False).scheduler) is Scheduler


def test_calendar_by_hand():
    """Block size 4, 6 tokens computed at step 0: new blocks at steps 2 and 6, the end at 7."""
    calendar = Calendar(block_size=4)
    request = Request("a", SegmentKeys([1], [20], 4), 6, 9)
    request.num_computed_tokens, request.num_output_tokens = 6, 1
    calendar.join(request, num_outputs=9, stores=True)
    needing, filling = [], []
    while calendar.entries:
        if calendar.needing():
            needing.append(calendar.step)
        if calendar.filling():
            filling.append(calendar.step)
        calendar.advance()
        calendar.ending()
    assert (needing, filling, calendar.step) == ([2, 6], [1, 5], 8)
    assert (request.num_computed_tokens, request.num_output_tokens) == (14, 9)
    assert calendar.context == 0
