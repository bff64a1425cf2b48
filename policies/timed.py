"""Ranks that hold until a known moment and then become another: pins, leases, durations.

Exact: before anything is evicted or released, everything whose time has come is re-ranked, in the
order of those times. A manager tells a policy the time with every hit and release; between two of
them the latest one counts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from heapq import heapify, heappop, heappush

from policies.ranked import SPARE_ENTRIES, Entry, Rank, Ranked
from sim.cache import Pool, Span
from sim.request import Request


class Timed(Ranked):
    """Evict the smallest rank, where a rank may end at a moment. *now*: the latest time seen."""

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self.now = -math.inf
        self._ends: dict[Span, float] = {}  # of ranks that end
        self._agenda: list[tuple[float, Entry]] = []  # those, and others that are out of date

    @abstractmethod
    def until(self, span: Span, request: Request, now: float) -> float:
        """When the rank just given ends, in seconds; math.inf for never."""

    @abstractmethod
    def rank_after(self, span: Span, rank: Rank) -> Rank:
        """What follows *rank*; among equal ranks, the one that ended last goes last."""

    def release(self, span: Span, request: Request, now: float) -> None:
        if now != self.now:
            self._pass_time(now)
        super().release(span, request, now)
        end = self.until(span, request, now)
        if end <= now:
            self._place(span, self.rank_after(span, self.rank_of(span)))
        elif end < math.inf:
            self._schedule(span, end)

    def hit(self, span: Span, request: Request, now: float) -> None:
        if now != self.now:
            self._pass_time(now)
        super().hit(span, request, now)

    def split(self, upper: Span, lower: Span) -> None:
        super().split(upper, lower)
        if lower in self._ends:
            self._schedule(upper, self._ends[lower])

    def _schedule(self, span: Span, end: float) -> None:
        self._ends[span] = end
        if len(self._agenda) > 2 * len(self._ends) + SPARE_ENTRIES:
            self._agenda = [(end, self._entries[span]) for span, end in self._ends.items()]
            heapify(self._agenda)
        else:
            heappush(self._agenda, (end, self._entries[span]))

    def _drop(self, span: Span) -> None:
        super()._drop(span)
        self._ends.pop(span, None)

    def _pass_time(self, now: float) -> None:
        """Re-rank every span whose rank ends at or before *now*."""
        self.now = now
        agenda = self._agenda
        while agenda and agenda[0][0] <= now:
            _, entry = heappop(agenda)
            span = entry[3]
            if self._entries.get(span) is entry:
                del self._ends[span]
                self._place(span, self.rank_after(span, entry[0]))
