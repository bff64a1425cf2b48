"""The scheduler, on schedules small enough to be worked out by hand."""

from __future__ import annotations

from itertools import count

import pytest

from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError
from sim.keys import TokenKeys
from sim.request import Request, RequestStatus
from sim.scheduler import Scheduler
from sim.scheduler_config import SchedulerConfig
from sim.stats import PrefixCacheStats

_fresh_token = count(1_000_000)


class Run:
    """A scheduler over a small pool, stepped by hand."""

    def __init__(self, usable: int, block_size: int, *, watermark: float = 0.0, **config) -> None:
        self.manager = ReferenceBlockManager(
            usable + 1, block_size, watermark=watermark, free_order="unhashed_first"
        )
        self.scheduler = Scheduler(self.manager, SchedulerConfig(**config))
        self.totals = PrefixCacheStats()

    def add(self, name: str, prompt: list[int], outputs: int, **fields) -> Request:
        """A request whose answer's tokens occur nowhere else."""
        tokens = prompt + [next(_fresh_token) for _ in range(outputs)]
        keys = TokenKeys(tokens, self.manager.block_size)
        request = Request(name, keys, len(prompt), outputs, **fields)
        self.scheduler.add(request)
        return request

    def step(self):
        step = self.scheduler.schedule()
        if step.stats:
            self.totals.add(step.stats)
        self.scheduler.update(step)
        return step

    def drain(self, limit: int = 100) -> list[list[str]]:
        """Who was scheduled in each step until nothing is left."""
        log = []
        while (self.scheduler.running or self.scheduler.waiting) and len(log) < limit:
            log.append([row.request.request_id for row in self.step().scheduled])
        self.manager.check()
        return log


def tokens(start: int, num_tokens: int) -> list[int]:
    return list(range(start, start + num_tokens))


def test_resumed_request_stays_out_of_the_hit_rate():
    """Case A2: what a preempted request finds of its own is counted apart."""
    run = Run(usable=5, block_size=2)
    run.add("R1", tokens(0, 4), 4)
    second = run.add("R2", tokens(100, 4), 2)
    log = run.drain()
    assert (run.totals.queries, run.totals.hits) == (8, 0)
    assert (run.totals.preempted_queries, run.totals.preempted_hits) == (5, 2)
    assert second.num_preemptions == 1
    assert log == [["R1", "R2"], ["R1"], ["R1"], ["R1"], ["R2"]]


def test_one_lookup_per_request_not_per_chunk():
    """Case A4: chunks of one prompt are counted once; 13 steps in all."""
    run = Run(usable=20, block_size=4, max_num_batched_tokens=2)
    num_steps = 0
    for name, prompt in (
        ("W", tokens(0, 13)),
        ("R", tokens(0, 12) + tokens(50, 4)),
        ("D", tokens(90, 8)),
    ):
        run.add(name, prompt, 1)
        num_steps += len(run.drain())
    assert (run.totals.queries, run.totals.hits, num_steps) == (37, 12, 13)


def test_hit_rate_is_in_tokens():
    """Case A5: 8 of 15 tokens for one request, 8 of 24 for the run."""
    run = Run(usable=20, block_size=4)
    run.add("W", tokens(0, 9), 1)
    run.drain()
    request = run.add("R", tokens(0, 8) + tokens(50, 7), 1)
    run.drain()
    assert request.num_cached_tokens == 8
    assert (run.totals.hits, run.totals.queries) == (8, 24)


def test_preempted_request_goes_to_the_front_and_nothing_overtakes_it():
    """Case G6: R3 would fit but waits behind the preempted R2."""
    run = Run(usable=4, block_size=2)
    run.add("R1", tokens(0, 4), 4)
    second = run.add("R2", tokens(100, 4), 2)
    run.add("R3", tokens(200, 2), 1)
    assert run.drain() == [["R1", "R2"], ["R1"], ["R1"], ["R1"], ["R2", "R3"]]
    assert second.num_preemptions == 1


@pytest.mark.parametrize(
    ("watermark", "log", "preemptions"),
    [
        (0.0, [["R1", "R2", "R3"], ["R1", "R2"], ["R3"]], 1),
        (0.2, [["R1", "R2"], ["R1", "R2"], ["R3"], ["R3"]], 0),
    ],
)
def test_watermark_holds_back_admissions_while_others_run(watermark, log, preemptions):
    """Case G7: off by default; with it R3 waits instead of being preempted."""
    run = Run(usable=9, block_size=4, watermark=watermark)
    run.add("R1", tokens(0, 16), 2)
    run.add("R2", tokens(100, 12), 2)
    third = run.add("R3", tokens(200, 4), 2)
    assert run.drain() == log
    assert third.num_preemptions == preemptions


def test_watermark_does_not_hold_back_the_first():
    """Case G7: a request that fills the pool alone is admitted at once."""
    run = Run(usable=9, block_size=4, watermark=0.2)
    run.add("alone", tokens(0, 36), 1)
    assert run.drain() == [["alone"]]


def test_two_requests_that_cannot_end_together():
    """Case G10: one preemption, and the first always progresses."""
    run = Run(usable=4, block_size=2)
    run.add("R1", tokens(0, 3), 5)
    second = run.add("R2", tokens(100, 3), 5)
    log = run.drain()
    assert second.num_preemptions == 1
    assert log[2] == ["R1"]
    assert [max(i for i, step in enumerate(log, 1) if r in step) for r in ("R1", "R2")] == [5, 8]


def test_the_whole_prompt_is_matched_before_chunks_are_cut():
    """Case H1: 12 of 16 tokens hit and cost no budget: one step instead of four."""
    run = Run(usable=20, block_size=4, max_num_batched_tokens=4)
    run.add("W", tokens(0, 13), 1)
    assert len(run.drain()) == 4
    request = run.add("R", tokens(0, 12) + tokens(50, 4), 1)
    assert len(run.drain()) == 1
    assert request.num_cached_tokens == 12


def test_chunks_need_not_end_at_a_block_edge():
    """Case H3: chunks 6, 6, 2; 1, 3 and 3 blocks are findable after them."""
    run = Run(usable=8, block_size=4, max_num_batched_tokens=6)
    run.add("R", tokens(0, 14), 1)
    chunks, stored = [], []
    for _ in range(3):
        step = run.scheduler.schedule()
        chunks.append(step.scheduled[0].num_tokens)
        stored.append(run.manager.num_stored_blocks("R"))
        run.scheduler.update(step)
    assert (chunks, stored) == ([6, 6, 2], [1, 3, 3])


def test_no_chunking_stops_at_the_first_prompt_over_the_budget():
    """With chunked prefill off nothing behind a prompt that exceeds the rest of the budget runs."""
    run = Run(usable=20, block_size=4, max_num_batched_tokens=12, enable_chunked_prefill=False)
    run.add("a", tokens(0, 8), 1)
    run.add("b", tokens(100, 8), 1)
    run.add("c", tokens(200, 2), 1)
    assert run.drain() == [["a"], ["b", "c"]]


def test_long_prefill_cap_is_lifted_for_a_lone_request():
    """vLLM 0.33 caps a long prefill only while others are known; 0.23 always."""
    for rules, num_steps in (("0.33", 1), ("0.23", 4)):
        run = Run(usable=20, block_size=4, long_prefill_token_threshold=4, rules=rules)
        run.add("a", tokens(0, 16), 1)
        assert len(run.drain()) == num_steps


def test_same_step_hit():
    """A request of the same step hits what an earlier one has only been scheduled to compute."""
    run = Run(usable=20, block_size=4)
    run.add("a", tokens(0, 12), 1)
    second = run.add("b", tokens(0, 9), 1)
    assert len(run.drain()) == 1
    assert second.num_cached_tokens == 8


def test_priority_order_and_victim():
    """Priority scheduling admits the smallest number first and preempts the largest."""
    run = Run(usable=4, block_size=2, policy="priority")
    low = run.add("low", tokens(0, 4), 3, priority=9)
    run.add("high", tokens(100, 4), 3, priority=1)
    assert [row.request.request_id for row in run.step().scheduled] == ["high", "low"]
    run.drain()
    assert low.num_preemptions == 1


def test_abort_frees_memory_wherever_the_request_is():
    """Running, waiting and unknown requests can be aborted; only the first two are."""
    run = Run(usable=4, block_size=2, max_num_seqs=1)
    running, waiting = run.add("a", tokens(0, 4), 9), run.add("b", tokens(100, 4), 9)
    run.step()
    assert run.scheduler.abort(running)
    assert run.scheduler.abort(waiting)
    assert not run.scheduler.abort(waiting)
    assert run.manager.usage == 0.0
    assert run.drain() == []
    assert running.status is waiting.status is RequestStatus.ABORTED


def test_max_model_len_ends_a_request():
    """The answer stops when prompt and answer reach max_model_len."""
    run = Run(usable=20, block_size=4, max_model_len=10)
    request = run.add("a", tokens(0, 8), 50)
    run.drain()
    assert request.num_tokens == 10


@pytest.mark.parametrize(
    "config",
    [{"max_num_seqs": 0}, {"max_num_batched_tokens": 0}, {"long_prefill_token_threshold": -1}],
)
def test_impossible_limits_are_refused(config):
    """A limit that admits nothing is a config error that names the limit."""
    with pytest.raises(ConfigError, match=next(iter(config))):
        SchedulerConfig(**config)
