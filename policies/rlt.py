"""Randomized leaf token: pick a leaf of the prefix tree at random, drop the block at its end.

No access pattern can be hard for it, unlike LRU over leaves. A leaf is idle content that no other
idle content continues; it loses one block per pick, and where all of it is gone what was before it
may be the next leaf. So a usable prefix stays under every manager.
Source: "KVRouting", arXiv 2601.18999 (drops tokens; here a block is the unit).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import ClassVar

import numpy as np

from sim.cache import EvictionPolicy, Pool, Span
from sim.request import Request

NUM_DRAWS = 1024  # at a time: much cheaper than one by one


class RLT(EvictionPolicy):
    """Evict the last block of a leaf, each leaf with the same probability; *seed* for the draws."""

    lists_in_order: ClassVar[bool] = False

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._rng = np.random.default_rng(self.seed)
        self._draws: list[float] = self._rng.random(NUM_DRAWS).tolist()
        self._leaves: list[Span] = []
        self._places: dict[Span, int] = {}  # of leaves
        self._keys: dict[Span, Hashable] = {}  # of all other idle spans: of their last block
        self._inner: dict[Hashable, dict[Span, None]] = {}  # and the spans by those keys
        self._above: dict[Span, Hashable] = {}  # of all idle spans: the key of the block before
        self._num_children: dict[Hashable, int] = {}  # idle spans that continue a key
        self._numbers: dict[Span, int] = {}  # of the releases of all idle spans
        self._num_released = 0

    def release(self, span: Span, request: Request, now: float) -> None:
        self._num_released += 1
        self._numbers[span] = self._num_released
        self._continue(span, request.keys[span.start - 1] if span.start else None)
        if self._is_continued(span):
            self._enclose(span)
        else:
            self._add_leaves([span])

    def _continue(self, span: Span, above: Hashable) -> None:
        """*span* continues the block *above*, if there is one."""
        self._above[span] = above
        if above is not None:
            self._num_children[above] = self._num_children.get(above, 0) + 1

    def _is_continued(self, span: Span) -> bool:
        return span.key(span.num_blocks - 1) in self._num_children

    def _enclose(self, span: Span) -> None:
        """Hold *span* as no leaf."""
        key = self._keys[span] = span.key(span.num_blocks - 1)
        self._inner.setdefault(key, {})[span] = None

    def hit(self, span: Span, request: Request, now: float) -> None:
        if not span.ref_cnt:
            self.forget(span)

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        while True:
            span = self._leaves[int(self._draws[-1] * len(self._leaves))]
            if not self._is_continued(span):
                return span, 1
            self._fill(self._places.pop(span), [])  # since then another copy was continued
            self._enclose(span)

    def evicted(self, span: Span, num_blocks: int) -> None:
        self._draws.pop()  # one per block evicted, however often a victim was asked for
        if not self._draws:
            self._draws = self._rng.random(NUM_DRAWS).tolist()
        if not span.num_blocks:
            self.forget(span)

    def forget(self, span: Span) -> None:
        del self._numbers[span]
        new_leaves = self._abandon(self._above.pop(span))
        if span in self._places:
            self._fill(self._places.pop(span), new_leaves)
        else:
            key = self._keys.pop(span)
            self._inner[key].pop(span)
            if not self._inner[key]:
                del self._inner[key]
            self._add_leaves(new_leaves)

    def _abandon(self, key: Hashable) -> list[Span]:
        """One idle span less continues *key*; the spans that are leaves for it."""
        if key is None:
            return []
        self._num_children[key] -= 1
        if self._num_children[key]:
            return []
        del self._num_children[key]
        new_leaves = sorted(self._inner.pop(key, ()), key=self._numbers.__getitem__)
        for span in new_leaves:
            del self._keys[span]
        return new_leaves

    def _fill(self, place: int, new_leaves: list[Span]) -> None:
        """A leaf has left its *place*: to the first of *new_leaves*, or else to the last leaf.

        So a chain of single blocks keeps one place while it shrinks, as a long span does.
        """
        if new_leaves:
            heir, *new_leaves = new_leaves
        else:
            heir = self._leaves.pop()
        if place < len(self._leaves):
            self._leaves[place] = heir
            self._places[heir] = place
        self._add_leaves(new_leaves)

    def _add_leaves(self, spans: list[Span]) -> None:
        for span in spans:
            self._places[span] = len(self._leaves)
            self._leaves.append(span)

    def split(self, upper: Span, lower: Span) -> None:
        if lower in self._above:
            self._numbers[upper] = self._numbers[lower]
            self._above[upper] = self._above[lower]
            self._continue(lower, upper.key(upper.num_blocks - 1))
            self._enclose(upper)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._above)
