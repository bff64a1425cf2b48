"""Hits of queue-like policies on public traces, block by block, against independent programs.

The numbers are of a pool that holds every content once: what a request misses but finds behind the
gap is taken over in place. It makes room for all that a request misses, and then inserts this from
the deepest on, telling each miss with its insertion. vLLM gives new memory also for what it finds
behind the gap, so where blocks are lost from the middle of a prompt its pool holds duplicates, and
tells misses before it evicts; so hits differ by up to 1.5 % (FIFO). Convention "all ids" of
test_ranked_numbers.
"""

from __future__ import annotations

import pytest

from policies.arc import ARC
from policies.clock import Clock
from policies.fifo import FIFO
from policies.s3fifo import S3FIFO
from policies.sieve import Sieve
from policies.two_q import TwoQ
from policies.vllm import VLLMBlockManager
from sim.cache import Pool, Span
from sim.replay import replay

SIZES = (2_000, 5_859, 20_000)
POLICIES = {
    "clock": Clock,
    "sieve": Sieve,
    "s3fifo": S3FIFO,
    "arc": lambda: ARC("vllm"),
    "two_q": TwoQ,
    "fifo": FIFO,
}
HITS = {
    "conversation": {
        "clock": (15790, 40090, 84262),
        "sieve": (17210, 27950, 60582),
        "s3fifo": (21635, 45524, 66018),
        "arc": (16686, 36329, 82344),
        "two_q": (21176, 36622, 74954),
        "fifo": (15408, 36202, 74331),
    },
    "synthetic": {
        "clock": (17989, 38271, 71051),
        "sieve": (15876, 33218, 72106),
        "s3fifo": (17761, 37906, 67098),
        "arc": (16304, 38361, 72055),
        "two_q": (17344, 36520, 65343),
    },
}
TOLERANCE = {
    "s3fifo": 0.001,  # ours has room for one ghost more, and what is in use keeps its place
    "two_q": 0.001,  # one ghost more
    "arc": 0.001,  # ours moves a reused block to T2 when it is hit, not when it is released
}


class Block(Span):
    """A block with its content."""

    def __init__(self, content, start):
        super().__init__(1, start)
        self.content = content

    def key(self, i):
        return self.content


class Once(Pool):
    """Blocks in a map, each content once; `serve` is the whole life of a request."""

    block_size = 512

    def __init__(self, num_blocks, policy):
        self.num_blocks = num_blocks
        self.policy = policy
        self.blocks = {}
        policy.bind(self)

    def cut(self, span, num_blocks):
        raise AssertionError("a span of one block cannot be cut")

    def serve(self, request):
        keys, blocks, policy = request.keys, self.blocks, self.policy
        path = [keys[i] for i in range(len(keys))]
        num_hits = next((i for i, key in enumerate(path) if key not in blocks), len(path))
        for key in path:
            if key in blocks:
                policy.hit(blocks[key], request, request.arrival_time)
                blocks[key].ref_cnt = 1
        new = [i for i, key in enumerate(path) if key not in blocks]
        for _ in range(len(blocks) + len(new) - self.num_blocks):
            victim, _ = policy.victim(1)
            victim.num_blocks = 0
            policy.evicted(victim, 1)
            del blocks[victim.content]
        for i in reversed(range(len(path))):
            if path[i] not in blocks:
                policy.miss(request, i, i + 1)
                blocks[path[i]] = Block(path[i], i)
            blocks[path[i]].ref_cnt = 0
            policy.release(blocks[path[i]], request, request.arrival_time)
        return num_hits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "name"), [(trace, name) for trace, rows in HITS.items() for name in rows]
)
def test_hits_with_every_content_once(trace, name, all_ids):
    requests = list(all_ids(trace))
    for num_blocks, hits in zip(SIZES, HITS[trace][name], strict=True):
        pool = Once(num_blocks, POLICIES[name]())
        found = sum(pool.serve(request) for request in requests)
        assert abs(found - hits) <= TOLERANCE.get(name, 0) * hits, (num_blocks, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(POLICIES))
def test_duplicates_change_little(name, all_ids):
    """vLLM's pool, where a content may be held twice: within 2 % of the same numbers."""
    requests = list(all_ids("conversation"))
    for num_blocks, hits in zip(SIZES, HITS["conversation"][name], strict=True):
        manager = VLLMBlockManager(
            num_blocks + 1,
            512,
            eviction=POLICIES[name](),
            null_block=False,
            free_order="unhashed_first",
        )
        assert replay(manager, requests).hit_blocks == pytest.approx(hits, rel=0.02)
