"""What a policy costs: the conversation trace through every one of them, and the LRU curve."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from benchmarks.inputs import CONVERSATION, Settings, tenth
from benchmarks.measure import Outcome, Row, in_fresh_process, repeated, timed
from policies import POLICIES
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.analysis.mrc import lru_curve
from sim.cache import BlockManager, EvictionPolicy
from sim.replay import ReplayResult, replay
from sim.request import Request
from sim.spec.build import build

NEEDS = CONVERSATION
TITLE = "Policies: 16-token blocks, pool of a tenth of the footprint"

BLOCK_SIZE = 16
CURVE = "exact LRU curve for all pool sizes"
BLOCKS = "lru, block by block"
NUM_FEW = 1_000  # requests for rules that need single blocks
HINTS = ("type", "turn", "tool", "priority", "steps_to_execution", "fixed_tokens", "ttl_s")


def rows(settings: Settings) -> Iterator[Row | str]:
    """LRU and the rest by spans; rules for single blocks beside LRU block by block; the curve."""
    by_spans = [name for name in POLICIES if name not in ("lru", "learned")]
    single = [name for name in by_spans if _policy(name).max_span]
    by_spans = [name for name in by_spans if name not in single]
    if settings.quick:
        by_spans, single = by_spans[:2], single[:1]
    for name in ("lru", *by_spans):
        yield in_fresh_process(name, "spans", replayed, settings, name, settings.repetitions)
    yield in_fresh_process(CURVE, "spans", curve, settings)
    for name in (BLOCKS, *single):
        yield in_fresh_process(name, "blocks", few_replayed, settings, name)
    yield "learned: trains first, see configs/questions/learned.yaml"


def replayed(settings: Settings, name: str, repetitions: int) -> Outcome:
    """The whole trace; an offline policy is shown it before the clock starts."""
    requests = _hinted(settings)
    num_blocks = tenth(settings.conversation(BLOCK_SIZE))
    seconds, result = repeated(
        lambda: _once(VLLMBlockManager, name, num_blocks, requests), repetitions
    )
    return _outcome(result, seconds, num_blocks)


def few_replayed(settings: Settings, name: str) -> Outcome:
    """The first requests only, block by block."""
    requests = list(islice(_hinted(settings), NUM_FEW))
    num_blocks = tenth(settings.conversation(BLOCK_SIZE))
    policy = "lru" if name == BLOCKS else name
    seconds, result = _once(ReferenceBlockManager, policy, num_blocks, requests)
    return _outcome(result, [seconds], num_blocks)


def curve(settings: Settings) -> Outcome:
    """Hits at every pool size, in one pass."""
    requests = list(settings.conversation(BLOCK_SIZE))
    seconds, found = timed(lambda: lru_curve(requests))
    work = f"hits at all sizes up to {found.enough:,} blocks"
    return Outcome(len(requests), found.query_blocks, [seconds], work)


def _once(
    kind: type[BlockManager], name: str, num_blocks: int, requests: list[Request]
) -> tuple[float, ReplayResult]:
    policy = _policy(name, num_blocks)
    manager = kind(num_blocks, BLOCK_SIZE, eviction=policy)  # type: ignore[call-arg]
    if policy.is_offline:
        policy.prepare(requests)
    result = replay(manager, requests)
    return result.seconds, result


def _policy(name: str, num_blocks: int = 8) -> EvictionPolicy:
    policy: EvictionPolicy = build(
        "policy", name, known={"num_blocks": num_blocks, "block_size": BLOCK_SIZE, "seed": 0}
    )
    return policy


def _hinted(settings: Settings) -> list[Request]:
    """The requests with made-up hints, for policies that need some: few different values."""
    requests = list(settings.conversation(BLOCK_SIZE))
    for number, request in enumerate(requests):
        request.hints = dict.fromkeys(HINTS, number % 4)
    return requests


def _outcome(result: ReplayResult, seconds: list[float], num_blocks: int) -> Outcome:
    work = f"{result.hit_blocks:,} of {result.query_blocks:,} blocks hit in {num_blocks:,}"
    return Outcome(result.requests, result.query_blocks, seconds, work)
