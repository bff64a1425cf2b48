"""MIN: evict the block that is needed again latest. Offline: it must see all requests beforehand.

Belady 1966, for prefix chains: of blocks needed equally late the deeper goes first, and a block
that another request will store anew before it can be hit again is needed never. Optimal among all
policies in a replay, one request at a time (docs/optimum.md). Insertion is mandatory, as everywhere
in a KV cache: a running request holds its blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from policies.ranked import Ranked
from sim.analysis.next_use import NEVER, NextUse, next_uses
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.footprint import Footprint, prompt, with_answer
from sim.request import Request, RequestStatus


class Belady(Ranked):
    """Evict what the next admissions need last (MIN, the offline optimum).

    The order of admission is taken to be that of arrival, which `fcfs` scheduling keeps. *answers*:
    False if answers get no memory (a replay without *decode*): it matters only where later prompts
    continue them. In a concurrent run it is a very good policy, not a bound: hits change the
    schedule, and two requests that compute the same content keep two copies.
    """

    is_offline: ClassVar[bool] = True

    def __init__(self, answers: bool = True) -> None:
        self._convention = with_answer if answers else prompt
        self._numbers: dict[int | str, int] = {}

    def prepare(self, requests: Sequence[Request]) -> None:
        self._numbers = {request.request_id: i for i, request in enumerate(requests)}
        self._next_uses = next_uses([self._footprint(request) for request in requests])
        self._was_admitted = bytearray(len(requests))

    def _footprint(self, request: Request) -> Footprint:
        footprint = self._convention(request)
        if prompt(request).num_blocks > self.pool.num_blocks:  # will be refused
            return footprint._replace(num_hittable=0, num_stored=0, num_unhashed=0)
        return footprint

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._last_admitted = self._last_passed = -1
        self._due: dict[int, list[Span]] = {}  # what is held for the sake of a request
        self._left: dict[int, list[Span]] = {}  # what a preempted request left behind
        self._left_at: dict[int, int] = {}  # the moment at which it did

    # A span's note says when its blocks are needed, in absolute positions: both parts of a cut
    # span can share it. What a preempted request needs is needed before anything else: such uses
    # are negative, the smaller the sooner.

    def touch(self, span: Span, request: Request, now: float) -> None:
        self._number(request)

    def rank(self, span: Span, request: Request, now: float) -> int:
        number = self._number(request)
        if self._left_at.get(number, self.moment) != self.moment:
            self._come_back(number)
        if _comes_back(request, now):
            self._left_at[number] = self.moment
            span.note = NextUse([0], [number - len(self._numbers)])
        else:
            span.note = self._look_ahead(number, span)
        return -self._latest(span)[1]

    def _come_back(self, number: int) -> None:
        """A preempted request was served again: what it left then and did not use is ordinary."""
        del self._left_at[number]
        for span in self._left.pop(number, ()):
            if span in self._entries and span.note.uses[0] == number - len(self._numbers):
                span.note = self._look_ahead(number, span)
                self._watch(span)
                self._place_again(span)

    def _number(self, request: Request) -> int:
        """The place of *request* in the order of admission; it has been admitted."""
        number = self._numbers.get(request.request_id)
        if number is None:
            raise ConfigError(
                f"Belady: request {request.request_id!r} is unknown; this policy is offline: give "
                "all requests to prepare() before the run"
            )
        self._was_admitted[number] = 1
        if number > self._last_admitted:
            self._last_admitted = number
        return number

    def _look_ahead(self, number: int, span: Span) -> NextUse:
        """The next uses of a span after everybody admitted so far; *number* used it last."""
        found = NextUse([], [])
        self._append(found, number, span.start, span.start + span.num_blocks)
        return found

    def _append(self, found: NextUse, number: int, start: int, stop: int) -> None:
        todo = [(number, start, stop)]  # a block may have been used by thousands meanwhile
        while todo:
            number, start, stop = todo.pop()
            starts, uses = self._next_uses[number]
            i = bisect_right(starts, start) - 1
            end = min(stop, starts[i + 1]) if i + 1 < len(starts) else stop
            if end < stop:
                todo.append((number, end, stop))
            if uses[i] <= self._last_admitted:
                todo.append((uses[i], start, end))
            else:
                found.starts.append(start)
                found.uses.append(uses[i])

    def _latest(self, span: Span) -> tuple[int, int]:
        """Where the run of the span's blocks that are needed latest ends, and when that is.

        Blocks needed by the same request are a run. Mostly the deepest run is needed latest; a
        shallower one is only if somebody is about to store it anew. By leaves the deepest goes
        first all the same.
        """
        starts, uses = span.note
        stop = span.start + span.num_blocks
        if self.pool.leaf_only:
            return stop, uses[bisect_right(starts, stop - 1) - 1]
        first, last = bisect_right(starts, span.start) - 1, bisect_right(starts, stop - 1) - 1
        latest = max(uses[first : last + 1])
        while uses[last] != latest:
            stop = starts[last]
            last -= 1
        return stop, latest

    # Holding

    def _place(self, span: Span, rank: int) -> None:
        super()._place(span, rank)
        self._watch(span)

    def _watch(self, span: Span) -> None:
        """Look at a held *span* again once those who need it have been admitted."""
        starts, uses = span.note
        i, stop = bisect_right(starts, span.start) - 1, span.start + span.num_blocks
        while i < len(starts) and starts[i] < stop:
            if uses[i] < 0:
                self._left.setdefault(uses[i] + len(self._numbers), []).append(span)
            elif uses[i] != NEVER:
                self._due.setdefault(uses[i], []).append(span)
            i += 1

    def _place_again(self, span: Span) -> None:
        """The rank of a held span may have changed; its place among equals has not."""
        rank = -self._latest(span)[1]
        before = self._entries[span]
        if rank != before[0]:
            self._enter((rank, before[1], -(span.start + span.num_blocks), span))

    def split(self, upper: Span, lower: Span) -> None:
        super().split(upper, lower)
        if upper in self._entries:
            self._watch(upper)
            self._place_again(upper)
            self._place_again(lower)

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        while self._last_passed < self._last_admitted:
            self._last_passed += 1
            for span in self._due.pop(self._last_passed, ()):
                if span in self._entries:
                    self._pass(span, self._last_passed)
        span, _ = super().victim(num_blocks)
        end, _ = self._latest(span)
        if end < span.start + span.num_blocks:
            span = self.pool.cut(span, span.start + span.num_blocks - end)
        return span, min(num_blocks, self._num_equal(span))

    def _pass(self, span: Span, number: int) -> None:
        """Request *number* did not use *span*: it hit a copy, or it was refused."""
        starts, uses = span.note
        found = NextUse([], [])
        position, stop = span.start, span.start + span.num_blocks
        i = bisect_right(starts, position) - 1
        while position < stop:
            end = min(stop, starts[i + 1]) if i + 1 < len(starts) else stop
            if uses[i] == number and not self._was_admitted[number]:
                self._append(found, number, position, end)
            else:
                found.starts.append(position)
                found.uses.append(NEVER if uses[i] == number else uses[i])
            position = end
            i += 1
        span.note = found
        self._watch(span)
        self._place_again(span)

    @staticmethod
    def _num_equal(span: Span) -> int:
        """How many of the deepest blocks are needed by the same request."""
        starts: list[int] = span.note[0]
        end = span.start + span.num_blocks
        return end - max(span.start, starts[bisect_right(starts, end - 1) - 1])

    def evicted(self, span: Span, num_blocks: int) -> None:
        super().evicted(span, num_blocks)
        if span.num_blocks:
            self._place_again(span)


def _comes_back(request: Request, now: float) -> bool:
    """Whether *request* was preempted; a replay and a client that hung up never come back."""
    aborted = request.abort_time is not None and now >= request.abort_time
    is_running = request.status is RequestStatus.RUNNING
    return is_running and request.num_output_tokens < request.max_tokens and not aborted
