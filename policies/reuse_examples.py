"""Examples for `policies.learned`: what a span's past was at a release, and when it was reused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from policies.lru import LRU
from policies.vllm import VLLMBlockManager
from sim.cache import Span
from sim.errors import ConfigError
from sim.replay import replay
from sim.request import Request

NO_LIMIT = 2**40  # blocks

Array = npt.NDArray[np.float64]
Features = tuple[float, ...]


class Past(NamedTuple):
    """A span's note: its uses so far, when the last one was, and the time between the last two."""

    uses: int
    last: float  # s
    gap: float  # s


def used(past: Past | None, now: float) -> Past:
    """*past* with one more use."""
    return Past(past.uses + 1, now, now - past.last) if past else Past(1, now, 0.0)


def features(past: Past, request: Request, num_hit_tokens: int) -> Features:
    """What the network sees when *request* lets go of a span: the same for all its blocks."""
    num_new = request.num_prompt_tokens - num_hit_tokens
    numbers = (past.uses, past.gap, num_hit_tokens, num_new, request.max_tokens)
    return (float(past.uses == 1), *map(float, np.log1p(np.maximum(numbers, 0.0))))


class Examples(LRU):
    """What every span's past was when it was released, and when it was reused after that.

    It listens to a replay of *requests* without a memory limit.
    """

    ranks_unhashed: ClassVar[bool] = False  # what has no content is never reused

    def __init__(self, requests: Sequence[Request], block_size: int) -> None:
        self.seen: list[Features] = []
        self.when: list[float] = []
        self.reused: list[float] = []  # when; infinite: never
        self.num_blocks: list[int] = []
        self._num_hit: dict[int | str, int] = {}
        manager = VLLMBlockManager(NO_LIMIT, block_size, eviction=self)
        done = replay(manager, requests)
        self.num_new = done.query_blocks - done.hit_blocks
        self.seconds = self.when[-1] - self.when[0] if self.when else 0.0

    def hit(self, span: Span, request: Request, now: float) -> None:
        super().hit(span, request, now)
        past, example = span.note
        self.reused[example] = now
        span.note = (used(past, now), example)
        self._num_hit[request.request_id] = (span.start + span.num_blocks) * self.pool.block_size

    def release(self, span: Span, request: Request, now: float) -> None:
        super().release(span, request, now)
        past: Past = span.note[0] if span.note else used(None, now)
        span.note = (past, len(self.seen))
        self.seen.append(features(past, request, self._num_hit.get(request.request_id, 0)))
        self.when.append(now)
        self.reused.append(np.inf)
        self.num_blocks.append(span.num_blocks)

    def split(self, upper: Span, lower: Span) -> None:
        super().split(upper, lower)
        past, example = lower.note
        upper.note = (past, len(self.seen))
        for column in (self.seen, self.when, self.reused):
            column.append(column[example])
        self.num_blocks.append(upper.num_blocks)
        self.num_blocks[example] = lower.num_blocks

    def turnover(self, num_blocks: int) -> float:
        """Seconds in which so many new blocks come."""
        if not self.num_new or not self.seconds:
            raise ConfigError(
                "Learned: the requests to learn from bring no new blocks over time; "
                "give horizon, or a larger share for training"
            )
        return num_blocks * self.seconds / self.num_new

    def labelled(self, horizon: float) -> tuple[Array, Array, Array]:
        """Rows of features, whether each was reused within *horizon*, and how many blocks it had.

        Without those whose horizon ends behind the last request: nobody knows.
        """
        when = np.array(self.when)
        is_known = when <= (when.max(initial=-np.inf) - horizon)
        labels = (np.array(self.reused) - when <= horizon).astype(float)
        weights = np.array(self.num_blocks, dtype=float)
        return np.array(self.seen)[is_known], labels[is_known], weights[is_known]
