"""A queue that is passed over is, to everyone else, a queue."""

from __future__ import annotations

import random

import pytest

from policies.arc import ARC
from policies.clock import Clock
from policies.fifo import FIFO
from policies.lecar import LeCaR
from policies.lfu import LFU
from policies.lirs import LIRS
from policies.random_choice import Random
from policies.s3fifo import S3FIFO
from policies.skipping_queue import SkippingQueue
from policies.slru import SLRU
from policies.two_q import TwoQ
from policies.vllm import VLLMBlockManager
from policies.wtinylfu import WTinyLFU
from sim.cache import Span
from sim.keys import SegmentKeys
from sim.request import Request


@pytest.mark.parametrize("seed", range(30))
def test_it_is_a_list_with_sleepers(seed):
    """Against a plain list: order, first, and the first not asleep, after every operation."""
    rng = random.Random(seed)
    actions = ("append", "append", "prepend", "cut", "pass", "pass", "wake", "remove")
    queue, plain, asleep = SkippingQueue(), [], set()

    def forget(span):
        queue.remove(span)
        plain.remove(span)
        asleep.discard(span)

    for step in range(400):
        action = rng.choice(actions)
        span = rng.choice(plain) if plain else None
        if action in ("append", "prepend"):
            new = Span(8, start=step)
            getattr(queue, action)(new)
            plain.insert(len(plain) if action == "append" else 0, new)
        elif span is None:
            continue
        elif action == "cut" and span.num_blocks > 1:
            upper = Span(span.num_blocks // 2, span.start)
            span.start, span.num_blocks = span.start + upper.num_blocks, span.num_blocks // 2
            queue.insert_after(upper, span)
            plain.insert(plain.index(span) + 1, upper)
        elif action == "pass":
            found = queue.peek()
            if found is not None:
                queue.set_aside(found)
                asleep.add(found)
        elif action == "wake":
            queue.wake(span)
            asleep.discard(span)
        elif action == "remove":
            forget(span)
        assert list(queue) == plain
        assert queue.peek() is next((each for each in plain if each not in asleep), None)
        assert bool(queue) == bool(plain)
        if plain:
            assert queue.first is plain[0]


@pytest.mark.parametrize(
    "policy", [FIFO, Clock, S3FIFO, SLRU, TwoQ, ARC, LIRS, WTinyLFU, LFU, LeCaR, Random]
)
def test_what_may_not_go_is_not_looked_at_again_and_again(policy):
    """By leaves: 300 prompts, then what continues each of them, then 600 others.

    The prompts are older than what may go first. To look at all of them for every victim would take
    hundreds of looks each; it is a few.
    """
    manager = VLLMBlockManager(1_400, 1, eviction=policy(), null_block=False, victims="leaf")
    looks, num_blocks = 0, 0
    may_evict = manager.may_evict

    def counted(span):
        nonlocal looks
        looks += 1
        return may_evict(span)

    manager.may_evict = counted
    requests = [([i], [2]) for i in range(300)]
    requests += [([i, 1_000 + i], [2, 4]) for i in range(300)]
    requests += [([10_000 + i], [4]) for i in range(600)]
    for number, (ids, ends) in enumerate(requests):
        keys = SegmentKeys([*ids, -1 - number], [*ends, ends[-1] + 1], 1)
        manager.serve(Request(number, keys, ends[-1], 1), ends[-1])
        num_blocks += ends[-1]
    assert manager.num_evicted_blocks > 1_000
    assert looks < 3 * manager.num_evicted_blocks
