"""Continuum: keep an agent's context while it waits for a tool, for as long as that pays.

When a request ends in a tool call, its blocks are pinned for the time t that maximises
P(t) x saved - t, where P(t) is the chance that this tool returns within t seconds and *saved* the
seconds that a hit saves: queueing again and computing the context again. P comes from the calls
seen: of the tool if there are *min_samples*, else of all tools, else exponential with mean 1 s.
Then the blocks are ordinary: LRU. If all is pinned, the newest program gives way.
Source: "Continuum", arXiv 2511.02230.

Differs from the paper: the queueing delay saved is a constant (there: recent delay per memory x a
correlation of turns); t is sought among 64 quantiles of the times seen. A tool's time is the next
arrival in the session minus the end of the request that called it. What is remembered is bounded:
the latest 10,000 times of each tool and of all (more if *min_samples* is), and of programs the
100,000 seen last: one that was forgotten and comes back counts as new.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import ClassVar, NamedTuple

from policies.ranked import Rank
from policies.timed import Timed
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.request import Request

NUM_QUANTILES = 64
MOST_DURATIONS = 10_000  # of each tool, and of all
MOST_PROGRAMS = 100_000

BELOW_TIMES = 1 << 60  # ranks of what is not pinned are far below all times

Pin = tuple[float, float, Hashable, int]  # end, start of the program, program, last use


class Call(NamedTuple):
    """A tool that a program waits for."""

    caller: int | str  # the request that called it
    tool: Hashable
    since: float


class Durations:
    """The latest *most* times, in seconds; `values` has them sorted."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.values: list[float] = []
        self._latest: deque[float] = deque()

    def add(self, duration: float) -> None:
        """One more; the oldest goes if they are too many."""
        self._latest.append(duration)
        insort(self.values, duration)
        if len(self.values) > self.most:
            del self.values[bisect_left(self.values, self._latest.popleft())]


class Continuum(Timed):
    """Evict what waits for no tool, LRU; then the pins of the newest programs.

    Needs the hint `tool`: the tool that the answer calls, or None. A program is a
    `Request.session`. *queueing_s*: seconds in the queue that a hit saves; *prefill_tokens_per_s*:
    to price recomputing; *min_samples*: calls before a distribution is trusted.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"tool"})

    def __init__(
        self,
        queueing_s: float = 1.0,
        prefill_tokens_per_s: float = 10_000.0,
        min_samples: int = 100,
    ) -> None:
        if not queueing_s >= 0:
            raise ConfigError(f"queueing_s is {queueing_s} s; it must be at least 0")
        if not prefill_tokens_per_s > 0:
            raise ConfigError(
                f"prefill_tokens_per_s is {prefill_tokens_per_s}; it must be more than 0"
            )
        self.queueing_s = queueing_s
        self.prefill_tokens_per_s = prefill_tokens_per_s
        self.min_samples = min_samples

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._most_durations = max(MOST_DURATIONS, self.min_samples)
        self._durations: dict[Hashable, Durations] = {}  # by tool
        self._all_durations = Durations(self._most_durations)
        # Start and open call of each session, the one seen last at the end.
        self._programs: OrderedDict[Hashable, tuple[float, Call | None]] = OrderedDict()
        self._last_arrived: Request | None = None
        # The pin of the blocks that the latest request to end leaves behind, and their rank.
        self._moment = -1
        self._pin: Pin = (0.0, 0.0, None, 0)
        self._rank = 0.0

    def touch(self, span: Span, request: Request, now: float) -> None:
        if request is not self._last_arrived:
            self._arrived(request)

    def rank(self, span: Span, request: Request, now: float) -> float:
        if self._moment != self.moment:
            self._decide(request, now)
        pin = self._pin
        earlier: Pin | None = span.note
        if earlier and earlier[0] > pin[0] and earlier[2] != pin[2]:
            span.note = (*earlier[:3], self.moment)  # another program keeps it for longer
            return -earlier[1]
        span.note = pin
        return self._rank

    def _decide(self, request: Request, now: float) -> None:
        tool = (request.hints or {})["tool"]
        start = self._ended(request, tool, now)
        end = now + (0.0 if tool is None else self._pin_time(request, tool))
        self._moment = self.moment
        self._pin = (end, start, _program(request), self.moment)
        self._rank = -start if end > now else self.moment - BELOW_TIMES

    def until(self, span: Span, request: Request, now: float) -> float:
        end: float = span.note[0]
        return end if end > now else math.inf

    def rank_after(self, span: Span, rank: Rank) -> Rank:
        return span.note[3] - BELOW_TIMES

    def _arrived(self, request: Request) -> None:
        """The tool that the program waited for has returned."""
        self._last_arrived = request
        start, call = self._programs.get(request.session, (request.arrival_time, None))
        if call and call.caller != request.request_id:  # else it was only preempted
            duration = max(0.0, request.arrival_time - call.since)
            self._durations.setdefault(call.tool, Durations(self._most_durations)).add(duration)
            self._all_durations.add(duration)
        self._remember(request, start, None)

    def _ended(self, request: Request, tool: Hashable, now: float) -> float:
        """*request* calls *tool*, if any; when its program started."""
        if request is not self._last_arrived:
            self._arrived(request)
        start, call = self._programs.get(request.session, (request.arrival_time, None))
        if tool is not None:
            call = Call(request.request_id, tool, now)
        self._remember(request, start, call)
        return start

    def _remember(self, request: Request, start: float, call: Call | None) -> None:
        """The session of *request* is the one seen last; one request alone leaves nothing."""
        if request.session is None:
            return
        programs = self._programs
        programs[request.session] = (start, call)
        programs.move_to_end(request.session)
        if len(programs) > MOST_PROGRAMS:
            programs.popitem(last=False)

    def _pin_time(self, request: Request, tool: Hashable) -> float:
        """For how many seconds the context of *request*, which calls *tool*, is worth keeping."""
        num_tokens = request.num_prompt_tokens + request.max_tokens
        saved = self.queueing_s + num_tokens / self.prefill_tokens_per_s
        of_tool = self._durations.get(tool)
        for durations in (of_tool.values if of_tool else [], self._all_durations.values):
            if len(durations) >= self.min_samples:
                return _best_time(durations, saved)
        return max(0.0, math.log(saved)) if saved else 0.0  # where saved * exp(-t) is 1


def _program(request: Request) -> Hashable:
    """The session; a request without one is a program of its own."""
    return ("", request.request_id) if request.session is None else request.session


def _best_time(durations: list[float], saved: float) -> float:
    """The t among *durations*, or 0, with the largest P(t) * saved - t."""
    num = len(durations)
    best, best_gain = 0.0, 0.0
    for i in range(0, num, max(1, num // NUM_QUANTILES)):
        gain = (i + 1) / num * saved - durations[i]
        if gain > best_gain:
            best, best_gain = durations[i], gain
    return best
