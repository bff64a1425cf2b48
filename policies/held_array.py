"""The held blocks in an array, so that one can be drawn at random in constant time.

For policies that sample. The last block takes the place of one that leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from policies.insertion_queue import nothing_may_go
from sim.cache import EvictionPolicy, Pool, Span
from sim.request import Request


class HeldArray(EvictionPolicy):
    """Keeps the held blocks in `held`, for a policy that draws from them with `rng`."""

    max_span = 1
    lists_in_order: ClassVar[bool] = False

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self.rng = np.random.default_rng(self.seed)
        self.held: list[Span] = []
        self._places: dict[Span, int] = {}

    def release(self, span: Span, request: Request, now: float) -> None:
        self._places[span] = len(self.held)
        self.held.append(span)

    def hit(self, span: Span, request: Request, now: float) -> None:
        if not span.ref_cnt:
            self._drop(span)

    def _drop(self, span: Span) -> None:
        place = self._places.pop(span)
        last = self.held.pop()
        if last is not span:
            self.held[place] = last
            self._places[last] = place

    def first_leaf(self) -> Span:
        """A block that may go, found by a search from a random place on."""
        held = self.held
        start = int(self.rng.integers(len(held))) if held else 0
        for i in range(len(held)):
            span = held[(start + i) % len(held)]
            if self.pool.may_evict(span):
                return span
        raise nothing_may_go()

    def split(self, upper: Span, lower: Span) -> None:
        raise AssertionError("a span of one block cannot be cut")

    def evicted(self, span: Span, num_blocks: int) -> None:
        self.forget(span)

    def forget(self, span: Span) -> None:
        self._drop(span)
        span.note = None

    def __iter__(self) -> Iterator[Span]:
        """The blocks held, in no order."""
        return iter(self.held)
