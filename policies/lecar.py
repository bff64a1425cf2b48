"""LeCaR: a coin between LRU and LFU, weighted by what each of them has done wrong.

Each eviction asks LRU with probability w and LFU with 1 - w. What an expert evicted (unless both
would have) is remembered; when it is missed, that expert loses weight by the factor
exp(-*learning_rate* * d^t), where t is the number of block uses since, and d = 0.005^(1 / pool).
Parameters: *learning_rate* (0.45); *lru_weight* (0.5), w at the start; *history* (0.5), the share
of the pool that each expert's ghosts may have; *seed*: of the coin.
Source: Vietri et al., "Driving cache replacement with ML-based LeCaR", HotStorage 2018;
libCacheSim's LeCaR, to which it is equal on requests of one block but for the random numbers
(libCacheSim's coin has steps of 0.01).

Differs from the paper: a request's misses move the weights once, all together. The coin's sides
come in runs whose lengths have the same distribution as with single tosses, and which end early
when the weights change.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log

import numpy as np

from policies.ghosts import Ghosts, Run
from policies.insertion_queue import offer
from policies.lfu import LFU
from policies.lru import LRU
from policies.ranked import Ranked
from sim.cache import EvictionPolicy, Pool, Span
from sim.errors import ConfigError
from sim.keys import BlockKeys
from sim.request import Request

LARGEST_REGRET = 23.0  # ln(1e10): no weight is below 1e-10


class Oldest(Ranked):
    """LRU that can pass over what may not go."""

    def rank(self, span: Span, request: Request, now: float) -> int:
        return 0  # ties: released earliest, then deeper


class LeCaR(EvictionPolicy):
    """Evict what LRU or LFU would, by a coin that learns."""

    def __init__(
        self,
        learning_rate: float = 0.45,
        lru_weight: float = 0.5,
        history: float = 0.5,
        seed: int = 0,
    ) -> None:
        if not learning_rate >= 0:
            raise ConfigError(f"learning_rate is {learning_rate}; it must be at least 0")
        if not 0 < lru_weight < 1:
            raise ConfigError(f"lru_weight is {lru_weight}; it must be between 0 and 1")
        if not history >= 0:
            raise ConfigError(f"history is {history}; it must be at least 0")
        self.learning_rate = learning_rate
        self.lru_weight = lru_weight
        self.history = history
        self.seed = seed

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._lru, self._lfu = Oldest() if pool.leaf_only else LRU(), LFU()
        for expert in (self._lru, self._lfu):
            expert.bind(pool)
        self._ghosts = Ghosts(), Ghosts()  # of what LRU and what LFU evicted
        self._most_ghosts = int(self.history * pool.num_blocks)
        self._keys: dict[Span, BlockKeys] = {}  # of what was ever released and is cached
        self._regret = log((1 - self.lru_weight) / self.lru_weight)  # ln of LFU's weight over LRU's
        self._decay = log(0.005) / pool.num_blocks
        self._rng = np.random.default_rng(self.seed)
        self._uses = 0  # block uses so far: the clock of the regret
        self._is_disputed = False  # the last victim: only one expert would evict it
        self._side: int | None = None  # what the coin shows: 0 LRU, 1 LFU, None: to be tossed
        self._run = 0  # for how many more evictions it shows that

    # Learning

    def miss(self, request: Request, start: int, stop: int) -> None:
        self._trim(self._most_ghosts)
        of_lru, of_lfu = (ghosts.find(request.keys, start, stop) for ghosts in self._ghosts)
        if of_lru or of_lfu:
            regret = self.learning_rate * (self._sum(of_lru) - self._sum(of_lfu))
            self._regret = max(-LARGEST_REGRET, min(self._regret + regret, LARGEST_REGRET))
            self._side, self._run = None, 0  # the coin is another one now

    def _trim(self, num_blocks: int) -> None:
        for ghosts in self._ghosts:
            ghosts.trim(num_blocks)

    def _sum(self, runs: list[Run]) -> float:
        """d^t for every block of *runs*; the order of the sum must not depend on the runs."""
        num_blocks: dict[int, int] = {}
        for run in runs:
            num_blocks[run.note] = num_blocks.get(run.note, 0) + run.stop - run.start
        now = self._uses + 1
        return sum(n * exp(self._decay * (now - then)) for then, n in sorted(num_blocks.items()))

    @property
    def weight(self) -> float:
        """The probability that LRU is asked."""
        return 1 / (1 + exp(self._regret))

    # Using

    def release(self, span: Span, request: Request, now: float) -> None:
        if span not in self._keys:
            self._uses += span.num_blocks
            keys, start, stop = request.keys, span.start, span.start + span.num_blocks
            self._keys[span] = keys
            for ghosts in self._ghosts:
                ghosts.take(keys, start, stop)
        self._lru.release(span, request, now)
        self._lfu.release(span, request, now)

    def hit(self, span: Span, request: Request, now: float) -> None:
        self._uses += span.num_blocks
        self._lru.hit(span, request, now)
        self._lfu.hit(span, request, now)

    def split(self, upper: Span, lower: Span) -> None:
        if lower in self._keys:
            self._keys[upper] = self._keys[lower]
        self._lru.split(upper, lower)
        self._lfu.split(upper, lower)

    def unlocked(self, span: Span) -> None:
        self._lru.unlocked(span)
        self._lfu.unlocked(span)

    # Evicting

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        span, other = self._candidates()
        self._is_disputed = span is not other
        if span is other:
            return offer(span, num_blocks)
        if not self._run:
            self._toss()
        return offer(other if self._side else span, min(num_blocks, self._run))

    def _candidates(self) -> tuple[Span, Span]:
        """What LRU and what LFU would evict."""
        return self._lru.victim(1)[0], self._lfu.victim(1)[0]

    def _toss(self) -> None:
        """The coin's next side, and how often in a row it shows it: then comes the other side."""
        weight = self.weight
        self._side = int(self._rng.random() >= weight) if self._side is None else 1 - self._side
        again = 1 - weight if self._side else weight
        u = 1.0 - self._rng.random()  # above 0
        self._run = 1 + (int(log(u) / log(again)) if 0 < again < 1 else 0)

    def evicted(self, span: Span, num_blocks: int) -> None:
        keys = self._keys[span]
        if self._is_disputed:
            start = span.start + span.num_blocks
            self._ghosts[self._side or 0].push(keys, start, start + num_blocks, self._uses)
            self._trim(self._most_ghosts + 1)  # what makes room is taken out after it
            self._run -= num_blocks
        self._lru.evicted(span, num_blocks)
        self._lfu.evicted(span, num_blocks)
        if not span.num_blocks:
            del self._keys[span]

    def forget(self, span: Span) -> None:
        self._lru.forget(span)
        self._lfu.forget(span)
        del self._keys[span]

    def __iter__(self) -> Iterator[Span]:
        """The spans held, least recently used first."""
        return iter(self._lru)
