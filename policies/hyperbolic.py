"""Hyperbolic caching: uses per time in the cache, smallest of a sample first.

A block's value is its number of uses since it was inserted, divided by the time since then. Time is
counted in block uses. As all values change all the time, *num_samples* (64) held blocks are drawn,
with replacement, and the one with the smallest value goes; ties: the one drawn first. *seed*: of
the draws.
Source: Blankstein, Sen and Freedman, "Hyperbolic caching: flexible caching for web applications",
USENIX ATC 2017; libCacheSim's Hyperbolic, to which it is equal on requests of one block but for the
random numbers.

Differs from the paper: no cost or size, no expiry. A sample is of blocks, hence single blocks.
"""

from __future__ import annotations

from math import inf

from policies.held_array import HeldArray
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.request import Request


class Hyperbolic(HeldArray):
    """Evict what was used least for its age; `span.note`: uses, and the time of insertion."""

    def __init__(self, num_samples: int = 64, seed: int = 0) -> None:
        super().__init__(seed)
        if num_samples < 1:
            raise ConfigError(f"num_samples is {num_samples}; it must be at least 1")
        self.num_samples = num_samples

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._uses = 0  # of all blocks: the clock

    def release(self, span: Span, request: Request, now: float) -> None:
        super().release(span, request, now)
        uses, inserted = span.note or (0, None)
        if inserted is None:
            self._uses += 1
            span.note = (uses + 1, self._uses)

    def hit(self, span: Span, request: Request, now: float) -> None:
        super().hit(span, request, now)
        self._uses += 1
        uses, inserted = span.note or (0, None)
        span.note = (uses + 1, inserted)

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        now = self._uses + 1
        lowest = inf
        for span in self.draw(self.num_samples):
            uses, inserted = span.note
            value = uses / (now - inserted)
            if value < lowest:
                best, lowest = span, value
        return best, 1
