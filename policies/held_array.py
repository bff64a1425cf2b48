"""The held blocks in an array, so that one can be drawn at random in constant time.

For policies that sample. The last block takes the place of one that leaves. In leaf mode a block
that was drawn and may not go leaves the array until it is told that it may: so every draw but these
is of a block that may go, and all of those are as likely as each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import ClassVar

import numpy as np

from policies.insertion_queue import nothing_may_go
from sim.cache import EvictionPolicy, Pool, Span
from sim.request import Request

NUM_DRAWS = 1024  # at a time: much cheaper than one by one


class HeldArray(EvictionPolicy):
    """Keeps the held blocks, for a policy that decides by `draw`."""

    max_span = 1
    lists_in_order: ClassVar[bool] = False

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._rng = np.random.default_rng(self.seed)
        self._draws: list[float] = []
        self._array: list[Span] = []
        self._places: dict[Span, int] = {}  # of what is in the array
        self._locked: dict[Span, None] = {}  # what else is held

    def draw(self, num: int) -> list[Span]:
        """*num* blocks that may go, with replacement; LookupError if there is none."""
        array, pool = self._array, self.pool
        drawn: list[Span] = []
        while array and len(drawn) < num:
            n = len(array)
            for u in self._uniform(num - len(drawn)):
                span = array[int(u * n)]
                if pool.leaf_only and not pool.may_evict(span):
                    self._leave(span)
                    self._locked[span] = None
                    break  # the array is another one now
                drawn.append(span)
        if not drawn:
            raise nothing_may_go()
        return drawn

    def _uniform(self, num: int) -> list[float]:
        """*num* numbers from 0 to 1."""
        if len(self._draws) < num:
            self._draws += self._rng.random(NUM_DRAWS + num).tolist()
        taken = self._draws[-num:]
        del self._draws[-num:]
        return taken

    def unlocked(self, span: Span) -> None:
        if span in self._locked:
            del self._locked[span]
            self._enter(span)

    def _enter(self, span: Span) -> None:
        self._places[span] = len(self._array)
        self._array.append(span)

    def _leave(self, span: Span) -> None:
        place = self._places.pop(span)
        last = self._array.pop()
        if last is not span:
            self._array[place] = last
            self._places[last] = place

    def release(self, span: Span, request: Request, now: float) -> None:
        self._enter(span)

    def hit(self, span: Span, request: Request, now: float) -> None:
        if not span.ref_cnt:
            self._drop(span)

    def _drop(self, span: Span) -> None:
        if span in self._places:
            self._leave(span)
        else:
            del self._locked[span]

    def split(self, upper: Span, lower: Span) -> None:
        raise AssertionError("a span of one block cannot be cut")

    def evicted(self, span: Span, num_blocks: int) -> None:
        self.forget(span)

    def forget(self, span: Span) -> None:
        self._drop(span)
        span.note = None

    def __iter__(self) -> Iterator[Span]:
        """The blocks held, in no order."""
        return chain(self._array, self._locked)
