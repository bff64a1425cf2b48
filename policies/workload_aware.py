"""Workload-aware eviction: how likely is a block of this kind of request to be reused soon?

Requests of one category, (type, turn), are reused after times that are about exponential; each
category's mean is learnt from the reuses seen. A block idle for t seconds is worth the probability
of a reuse within the next *life_s* seconds: exp(-t/m) - exp(-(t + life_s)/m). That falls with t, so
the oldest block of each category is its only candidate: O(categories) per eviction. Exact.
Source: "KVCache Cache in the Wild" (Qwen), USENIX ATC 2025, arXiv 2506.02634.

Differs from the paper: *life_s* is given, not measured; the mean is a moving average of one
interval per request and category; equal values go by release, not by offset in the prompt. A block
belongs to the category of the request that adopted it last.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from math import expm1, log
from typing import ClassVar

from policies.skipping_queue import SkippingQueue
from sim.cache import EvictionPolicy, Pool, Span
from sim.errors import ConfigError
from sim.request import Request

LEAST_MEAN = 1e-3  # seconds; below it an exponential means nothing


class Category:
    """The idle blocks of one (type, turn), oldest first, and when such blocks are reused."""

    __slots__ = ("log_soon", "mean", "queue", "was_seen")

    def __init__(self, mean: float, life_s: float) -> None:
        self.queue = SkippingQueue()
        self.was_seen = False  # else the mean is a guess
        self.fit(mean, life_s)

    def fit(self, mean: float, life_s: float) -> None:
        """Take *mean* as the mean reuse time."""
        self.mean = max(mean, LEAST_MEAN)
        self.log_soon = log(-expm1(-life_s / self.mean))

    def learn(self, interval: float, learning_rate: float, life_s: float) -> None:
        """A block was reused after *interval* seconds."""
        mean = self.mean + learning_rate * (interval - self.mean) if self.was_seen else interval
        self.was_seen = True
        self.fit(mean, life_s)


Idle = tuple[Category, float, int]  # since when, and the number of the release


class WorkloadAware(EvictionPolicy):
    """Evict what is least likely to be reused soon. Needs the hints `type` and `turn`.

    *life_s*: how far ahead a reuse counts, in seconds. *first_guess_s*: the mean reuse time of a
    category before its first reuse. *learning_rate*: weight of a new interval in the mean.
    *last_turn*: later turns count as this one.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"type", "turn"})
    lists_in_order: ClassVar[bool] = False

    def __init__(
        self,
        life_s: float = 300.0,
        first_guess_s: float = 60.0,
        learning_rate: float = 0.05,
        last_turn: int = 8,
    ) -> None:
        for name, value in (("life_s", life_s), ("first_guess_s", first_guess_s)):
            if not value > 0:
                raise ConfigError(f"{name} is {value} s; it must be more than 0")
        if not 0 < learning_rate <= 1:
            raise ConfigError(f"learning_rate is {learning_rate}; it must be above 0, up to 1")
        self.life_s = life_s
        self.first_guess_s = first_guess_s
        self.learning_rate = learning_rate
        self.last_turn = last_turn

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._categories: dict[tuple[Hashable, int], Category] = {}
        self._idle: dict[Span, Idle] = {}
        self._now = 0.0
        self._num_released = 0
        self._reused: tuple[Request, Category, float] | None = None

    # The note of a span is its category.

    def release(self, span: Span, request: Request, now: float) -> None:
        self._now = now
        category: Category | None = span.note
        if category is None:
            span.note = category = self._category(request)
        self._num_released += 1
        self._idle[span] = (category, now, self._num_released)
        category.queue.append(span)

    def hit(self, span: Span, request: Request, now: float) -> None:
        self._now = now
        if not span.ref_cnt:
            category, since, _ = self._remove(span)
            if self._reused != (request, category, since):  # one interval, however many blocks
                self._reused = (request, category, since)
                category.learn(now - since, self.learning_rate, self.life_s)
        span.note = self._category(request)

    def _category(self, request: Request) -> Category:
        hints = request.hints or {}
        name = (hints["type"], min(hints["turn"], self.last_turn))
        if name not in self._categories:
            self._categories[name] = Category(self.first_guess_s, self.life_s)
        return self._categories[name]

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        now, idle, leaf_only = self._now, self._idle, self.pool.leaf_only
        best: Span | None = None
        best_value, best_number = math.inf, 0
        for category in self._categories.values():
            queue = category.queue
            span = self._candidate(queue) if leaf_only else queue.end.next_free
            if span is None or span is queue.end:
                continue
            _, since, number = idle[span]
            value = (since - now) / category.mean + category.log_soon  # its logarithm
            if value < best_value or (value == best_value and number < best_number):
                best, best_value, best_number = span, value, number
        if best is None:
            raise LookupError("no span that is held may be evicted")
        return best, min(num_blocks, best.num_blocks)

    def _candidate(self, queue: SkippingQueue) -> Span | None:
        """The oldest leaf of a category."""
        while (span := queue.peek()) is not None and not self.pool.may_evict(span):
            queue.set_aside(span)
        return span

    def unlocked(self, span: Span) -> None:
        self._idle[span][0].queue.wake(span)

    def split(self, upper: Span, lower: Span) -> None:
        upper.note = lower.note
        idle = self._idle.get(lower)
        if idle is not None:
            self._idle[upper] = idle
            idle[0].queue.insert_after(upper, lower)

    def evicted(self, span: Span, num_blocks: int) -> None:
        if not span.num_blocks:
            self.forget(span)

    def forget(self, span: Span) -> None:
        self._remove(span)
        span.note = None

    def _remove(self, span: Span) -> Idle:
        idle = self._idle.pop(span)
        idle[0].queue.remove(span)
        return idle

    def __iter__(self) -> Iterator[Span]:
        for category in self._categories.values():
            yield from category.queue
