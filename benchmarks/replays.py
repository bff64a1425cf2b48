"""Replay without a clock: spans against blocks, and the price of a policy of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.inputs import BLOCK_SIZES, CONVERSATION, Settings, tenth
from benchmarks.measure import Outcome, Row, in_fresh_process, repeated
from benchmarks.user_policy import OrderedDictLRU, RankedLRU
from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.cache import BlockManager, EvictionPolicy
from sim.replay import ReplayResult, replay
from sim.workload import Workload

NEEDS = CONVERSATION
TITLE = "Replay, LRU, pool of a tenth of the footprint"

Policy = Callable[[], EvictionPolicy]


def name(manager: str, block_size: int) -> str:
    """What a row is called."""
    return f"{manager}, {block_size}-token blocks"


def rows(settings: Settings) -> Iterator[Row]:
    """Spans, blocks and two policies in plain Python, at every block size."""
    jobs: list[tuple[str, type[BlockManager], Policy, int]] = [
        ("spans", VLLMBlockManager, LRU, settings.repetitions),
        ("spans, user's OrderedDict LRU", VLLMBlockManager, OrderedDictLRU, settings.repetitions),
        ("spans, user's Ranked LRU", VLLMBlockManager, RankedLRU, settings.repetitions),
        ("blocks (reference)", ReferenceBlockManager, LRU, 1),
    ]
    for block_size in BLOCK_SIZES:
        for label, manager, policy, repetitions in jobs:
            yield in_fresh_process(
                name(label, block_size),
                f"{block_size}",
                conversation,
                settings,
                block_size,
                manager,
                policy,
                repetitions,
            )


def conversation(
    settings: Settings,
    block_size: int,
    manager: Callable[..., BlockManager],
    policy: Policy,
    repetitions: int,
) -> Outcome:
    """The conversation trace through a fresh manager, several times."""
    workload = settings.conversation(block_size)
    num_blocks = tenth(workload)
    fresh = partial(_fresh, manager, policy, num_blocks, block_size)
    return replayed(workload, fresh, repetitions)


def replayed(workload: Workload, fresh: Callable[[], BlockManager], repetitions: int) -> Outcome:
    """*workload* through the managers that *fresh* makes."""

    def once() -> tuple[float, ReplayResult]:
        result = replay(fresh(), workload)
        return result.seconds, result

    seconds, result = repeated(once, repetitions)
    num_blocks = fresh().num_blocks
    work = f"{result.hit_blocks:,} of {result.query_blocks:,} blocks hit in {num_blocks:,}"
    if result.refused:
        work += f", {result.refused} requests refused"
    return Outcome(result.requests, result.query_blocks, seconds, work)


def _fresh(
    manager: Callable[..., BlockManager], policy: Policy, num_blocks: int, block_size: int
) -> BlockManager:
    return manager(num_blocks, block_size, eviction=policy())
