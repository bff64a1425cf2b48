"""Continuum: keep an agent's context while it waits for a tool, for as long as that pays.

When a request ends in a tool call, its blocks are pinned for the time t that maximises
P(t) x saved - t, where P(t) is the chance that this tool returns within t seconds and *saved* the
seconds that a hit saves: queueing again and computing the context again. P comes from the calls
seen: of the tool if there are *min_samples*, else of all tools, else exponential with mean 1 s.
Then the blocks are ordinary: LRU. If all is pinned, the newest program gives way.
Source: "Continuum", arXiv 2511.02230.

Differs from the paper: the queueing delay saved is a constant (there: recent delay per memory x a
correlation of turns); t is sought among 64 quantiles of the times seen. A tool's time is the next
arrival in the session minus the end of the request that called it.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Hashable
from typing import ClassVar

from policies.ranked import Rank
from policies.timed import Timed
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.request import Request

NUM_QUANTILES = 64

BELOW_TIMES = 1 << 60  # ranks of what is not pinned are far below all times

Pin = tuple[float, float, Hashable, int]  # end, start of the program, program, last use


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
        self._durations: dict[Hashable, list[float]] = {}  # by tool, sorted
        self._all_durations: list[float] = []
        self._calls: dict[Hashable, tuple[int | str, Hashable, float]] = {}  # open, by program
        self._starts: dict[Hashable, float] = {}
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
        if request is not self._last_arrived:
            self._arrived(request)
        program = _program(request)
        end, start = now + self._pin_time(request, now), self._starts[program]
        self._moment = self.moment
        self._pin = (end, start, program, self.moment)
        self._rank = -start if end > now else self.moment - BELOW_TIMES

    def until(self, span: Span, request: Request, now: float) -> float:
        end: float = span.note[0]
        return end if end > now else math.inf

    def rank_after(self, span: Span, rank: Rank) -> Rank:
        return span.note[3] - BELOW_TIMES

    def _arrived(self, request: Request) -> None:
        """The tool that the program waited for has returned."""
        self._last_arrived = request
        program = _program(request)
        self._starts.setdefault(program, request.arrival_time)
        call = self._calls.get(program)
        if call is None:
            return
        del self._calls[program]
        caller, tool, since = call
        if caller != request.request_id:  # else it was only preempted
            duration = max(0.0, request.arrival_time - since)
            insort(self._durations.setdefault(tool, []), duration)
            insort(self._all_durations, duration)

    def _pin_time(self, request: Request, now: float) -> float:
        """For how many seconds the context of *request*, which ends now, is worth keeping."""
        tool = (request.hints or {})["tool"]
        if tool is None:
            return 0.0
        self._calls[_program(request)] = (request.request_id, tool, now)
        num_tokens = request.num_prompt_tokens + request.max_tokens
        saved = self.queueing_s + num_tokens / self.prefill_tokens_per_s
        for durations in (self._durations.get(tool, []), self._all_durations):
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
