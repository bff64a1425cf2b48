"""TensorRT-LLM's retention priorities: one LRU queue per level, the lowest level goes first.

A request's hints give its level and, if they have `duration_s`, how long it holds after its last
use; then its blocks move to the tail of the default level. The latest request to use a block
overwrites its level. Source: TensorRT-LLM `batch_manager/evictionPolicy.cpp`.

Differs from TensorRT-LLM: one level per request, not per range of tokens; expired blocks move at
the next event, not at a refresh pass; one tier.
"""

from __future__ import annotations

import math
from typing import ClassVar

from policies.ranked import Rank
from policies.timed import Timed
from sim.cache import Span
from sim.errors import ConfigError
from sim.request import Request

HIGHEST = 100


class Priority(Timed):
    """Evict the lowest level, 0 to 100, least recently used first.

    Needs the hint `priority`; the hint `duration_s` (seconds) is optional.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"priority"})

    def __init__(self, default_priority: int = 35) -> None:
        self.default_priority = _level("default_priority", default_priority)

    def touch(self, span: Span, request: Request, now: float) -> None:
        span.note = self._retention(request)

    def rank(self, span: Span, request: Request, now: float) -> int:
        if span.note is None:
            span.note = self._retention(request)
        return int(span.note[0])

    def until(self, span: Span, request: Request, now: float) -> float:
        level, duration = span.note
        return math.inf if level == self.default_priority else now + duration

    def rank_after(self, span: Span, rank: Rank) -> int:
        return self.default_priority

    def _retention(self, request: Request) -> tuple[int, float]:
        hints = request.hints or {}
        where = f"request {request.request_id!r}: priority"
        level = _level(where, hints.get("priority", self.default_priority))
        duration = hints.get("duration_s")
        return level, math.inf if duration is None else duration


def _level(name: str, level: int) -> int:
    if type(level) is not int or not 0 <= level <= HIGHEST:
        raise ConfigError(f"{name} is {level!r}; it must be a whole number from 0 to {HIGHEST}")
    return level
