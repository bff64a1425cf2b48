"""An oracle that is sometimes wrong: what is a prediction of the next use worth?

What a request leaves behind is ranked by its next use. For each request the prediction is right
with probability *accuracy*; otherwise one moment, drawn evenly from the rest of the trace, stands
for all its blocks. With accuracy 1 it hits as much as `belady` wherever no block is stored anew
before it can be hit. The noise model is ours.

Differs from MIN: a block that will be stored anew counts as needed when blocks behind it are; among
concurrent requests, only those admitted after a release can be the next use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

import numpy as np

from policies.stepped import Stepped
from sim.analysis.next_use import NEVER, NextUse, next_uses
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.footprint import Footprint, prompt, with_answer
from sim.request import Request


class NoisyOracle(Stepped):
    """Evict what is needed last, as far as known; *accuracy*: 0 to 1; *seed* for the mistakes.

    *answers*: False if answers get no memory (a replay without *decode*). One draw per request,
    the same under every manager.
    """

    is_offline: ClassVar[bool] = True

    def __init__(self, accuracy: float = 0.8, seed: int = 0, answers: bool = True) -> None:
        if not 0 <= accuracy <= 1:
            raise ConfigError(f"accuracy is {accuracy}; it must be from 0 to 1")
        self.accuracy = accuracy
        self.seed = seed
        self.answers = answers
        self._numbers: dict[int | str, int] = {}

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._last_admitted = -1

    def prepare(self, requests: Sequence[Request]) -> None:
        self._numbers = {request.request_id: i for i, request in enumerate(requests)}
        self._next_uses = [
            NextUse(starts, [*accumulate(reversed(uses), min)][::-1])
            for starts, uses in next_uses([self._footprint(request) for request in requests])
        ]
        rng, num = np.random.default_rng(self.seed), len(requests)
        is_wrong = (rng.random(num) >= self.accuracy).tolist()
        moments = rng.integers(np.arange(1, num + 1), num, endpoint=True).tolist() if num else []
        self._guesses = [moment if w else None for w, moment in zip(is_wrong, moments, strict=True)]

    def _footprint(self, request: Request) -> Footprint:
        footprint = (with_answer if self.answers else prompt)(request)
        if prompt(request).num_blocks > self.pool.num_blocks:  # it will be refused
            return footprint._replace(num_hittable=0, num_stored=0, num_unhashed=0)
        return footprint

    def touch(self, span: Span, request: Request, now: float) -> None:
        self._last_admitted = max(self._last_admitted, self._number(request))

    def remember(self, span: Span, request: Request, now: float) -> None:
        self.touch(span, request, now)
        span.note = (self._number(request), self._last_admitted)

    def step(self, span: Span) -> tuple[int, int]:
        number, last_admitted = span.note
        guess = self._guesses[number]
        if guess is not None:
            return -guess, span.num_blocks
        end, first = span.start + span.num_blocks, span.start
        while True:
            starts, uses = self._next_uses[number]
            i = bisect_right(starts, end - 1) - 1
            first = max(first, starts[i])
            if uses[i] > last_admitted or uses[i] == NEVER:
                return -uses[i], end - first
            number = uses[i]

    def _number(self, request: Request) -> int:
        """The place of *request* in the order of arrival."""
        number = self._numbers.get(request.request_id)
        if number is None:
            raise ConfigError(
                f"NoisyOracle: request {request.request_id!r} is unknown; this policy is offline: "
                "give all requests to prepare() before the run"
            )
        return number
