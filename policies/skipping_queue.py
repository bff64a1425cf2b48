"""A queue whose front can be passed over without being looked at again and again.

Policies give up the first span that may go. What comes before it may not: a request uses it, or, in
leaf mode, longer content hangs on it. A sweep sets such spans aside; they keep their place in the
order, and are looked at again when someone says that this has changed. So a victim costs O(log n),
not a walk over all that is older.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from policies.free_queue import FreeQueue
from sim.cache import Span

SPARE_ENTRIES = 64

Entry = tuple[int, int, Span]  # number of the setting aside, - end of the span, span


class SkippingQueue(FreeQueue):
    """Spans in order; those set aside are the first of them, asleep until `wake`."""

    __slots__ = ("_aside", "_asleep", "_awake", "_first", "_last", "_order")

    def __init__(self) -> None:
        super().__init__()
        self._aside: dict[Span, Entry] = {}
        self._asleep: set[Span] = set()  # of those
        self._awake: list[Entry] = []  # heaps, with entries that are out of date
        self._order: list[Entry] = []
        self._first = self._last = 0  # numbers given so far

    def peek(self) -> Span | None:
        """The first span that is not asleep, or None."""
        awake, aside = self._awake, self._aside
        while awake:
            entry = awake[0]
            if aside.get(entry[2]) is entry and entry[2] not in self._asleep:
                return entry[2]
            heappop(awake)
        first = self.end.next_free
        return None if first is self.end else first

    def set_aside(self, span: Span) -> None:
        """Pass over *span*, which `peek` gave: it keeps its place, but sleeps."""
        if span not in self._aside:
            super().remove(span)
            self._last += 1
            self._enter(self._last, span)
        self._asleep.add(span)

    def wake(self, span: Span) -> None:
        """*span* may go now, perhaps: look at it again."""
        if span in self._asleep:
            self._asleep.remove(span)
            heappush(self._awake, self._aside[span])
            self._tidy()

    def _enter(self, number: int, span: Span) -> None:
        """Set *span* aside, awake."""
        entry = self._aside[span] = (number, -(span.start + span.num_blocks), span)
        heappush(self._order, entry)
        heappush(self._awake, entry)
        self._tidy()

    def _tidy(self) -> None:
        """Drop what is out of date, once that is most of a heap."""
        aside, asleep = self._aside, self._asleep
        most = 2 * len(aside) + SPARE_ENTRIES
        if len(self._order) > most:
            self._order = sorted(aside.values())
        if len(self._awake) > most:
            self._awake = sorted(entry for entry in aside.values() if entry[2] not in asleep)

    # What every queue can

    def __bool__(self) -> bool:
        return bool(self._aside) or super().__bool__()

    @property
    def first(self) -> Span:
        order, aside = self._order, self._aside
        while order:
            if aside.get(order[0][2]) is order[0]:
                return order[0][2]
            heappop(order)
        return super().first

    def prepend(self, span: Span) -> None:
        self._first -= 1
        self._enter(self._first, span)

    def insert_after(self, span: Span, place: Span) -> None:
        entry = self._aside.get(place)
        if entry is None:
            super().insert_after(span, place)
        else:  # a part that was cut off: the same number, a smaller depth
            self._enter(entry[0], span)

    def remove(self, span: Span) -> None:
        if self._aside.pop(span, None) is None:
            super().remove(span)
        self._asleep.discard(span)

    def __iter__(self) -> Iterator[Span]:
        yield from [entry[2] for entry in sorted(self._aside.values(), key=lambda e: e[:2])]
        yield from super().__iter__()
