"""What could be hit at best: a cache without limits, and the offline optimum in a pool of one size.

All numbers are for requests served one at a time in the order of their arrival. Which of them
bounds a concurrent run, and when, is in docs/optimum.md; for a run's own schedule see
`sim.analysis.recording`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sim.analysis.mrc import FreeOrder, lru_curve
from sim.analysis.optimum import Optimum, one_at_a_time
from sim.footprint import Convention, Footprint, prompt, with_answer
from sim.parts import Parts
from sim.request import Request


@dataclass(frozen=True, slots=True)
class Bounds:
    """Hit blocks of one workload in one pool; hit tokens are *block_size* times as many.

    *unbounded*: in a cache without limits, compulsory misses only; *optimum*: MIN, one request at a
    time; *flat*: MIN with nothing held while requests run; *lru*: for comparison. *refused*
    requests do not fit the pool and count nowhere.
    """

    num_blocks: int  # usable blocks of the pool
    block_size: int
    refused: int
    query_blocks: int
    query_tokens: int
    unbounded: int
    flat: int
    optimum: int
    lru: int

    def gap_closed(self, hit_blocks: int) -> float | None:
        """How much of the way from LRU to the optimum *hit_blocks* go: 0 is LRU, 1 is MIN.

        Negative for fewer hits than LRU; None where LRU is optimal.
        """
        gap = self.optimum - self.lru
        return (hit_blocks - self.lru) / gap if gap else None

    def hit_rate(self, hit_blocks: int) -> float | None:
        """Hit tokens over prompt tokens; None if nothing was served."""
        return hit_blocks * self.block_size / self.query_tokens if self.query_tokens else None


def bounds(
    requests: Iterable[Request],
    num_blocks: int,
    convention: Convention = prompt,
    *,
    free_order: FreeOrder = "tail",
) -> Bounds:
    """The bounds of *requests* in a pool of *num_blocks* usable blocks.

    *convention*: what counts as a block and as a hit (`sim.footprint`). *free_order* concerns LRU.
    """
    everyone = list(requests)
    served = [r for r in everyone if convention(r).num_blocks <= num_blocks]
    curve = lru_curve(served, convention, free_order=free_order)
    optimum = replay_optimum(served, convention)
    return Bounds(
        num_blocks=num_blocks,
        block_size=curve.block_size,
        refused=len(everyone) - len(served),
        query_blocks=curve.query_blocks,
        query_tokens=curve.query_tokens,
        unbounded=curve.unbounded,
        flat=optimum.num_hits(num_blocks, pins=False),
        optimum=optimum.num_hits(num_blocks),
        lru=curve.hit_blocks(num_blocks),
    )


def unbounded_hits(requests: Iterable[Request], convention: Convention = prompt) -> int:
    """Blocks of *requests* that hit in a cache without limits, one request at a time."""
    parts, hits = Parts(), 0
    for request in requests:
        footprint = convention(request)
        known = parts.add(footprint.keys, footprint.num_stored)
        hits += min(known, footprint.num_hittable)
    return hits


def replay_optimum(requests: Sequence[Request], convention: Convention = prompt) -> Optimum:
    """MIN for *requests*, served one at a time, in pools of any size."""
    footprints = [convention(request) for request in requests]
    return Optimum([one.keys for one in footprints], one_at_a_time(footprints))


def pool_bounds(
    requests: Iterable[Request], sizes: Sequence[int], *, decode: bool, num_warmup: int = 0
) -> dict[str, dict[str, float | None]]:
    """Hit rates in tokens at several pool sizes (usable blocks): MIN's, and without any limit.

    `{"min": {"9999": 0.37}, "unbounded": {"9999": 0.37}}`; None if nothing was served. Requests
    that do not fit a pool count nowhere, as in a run. The first *num_warmup* requests fill the
    cache, but no rate counts them: MIN is then the most that the others can hit.
    """
    serves = with_answer if decode else prompt
    everyone = list(requests)
    uncounted = {request.request_id for request in everyone[:num_warmup]}

    def convention(request: Request) -> Footprint:
        footprint = serves(request)
        if request.request_id in uncounted:
            return footprint._replace(num_hittable=0, num_tokens=0)
        return footprint

    needs = [serves(request).num_blocks for request in everyone]
    optimum: Optimum | None = None
    most, tokens, unbounded = -1, 0, 0
    found: dict[str, dict[str, float | None]] = {"min": {}, "unbounded": {}}
    for size in sorted(sizes):
        served = [r for r, need in zip(everyone, needs, strict=True) if need <= size]
        if optimum is None or len(served) != most:
            most, tokens = len(served), sum(convention(request).num_tokens for request in served)
            optimum = replay_optimum(served, convention)
            unbounded = lru_curve(served, convention).unbounded
        for name, hits in (("min", optimum.num_hits(size)), ("unbounded", unbounded)):
            block_size = served[0].keys.block_size if served else 0
            found[name][str(size)] = hits * block_size / tokens if tokens else None
    return found
