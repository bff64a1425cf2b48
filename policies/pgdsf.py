"""RAGCache's prefix-aware GDSF: uses times the measured price of a token, averaged over misses.

Each request that computes a block pays T(cached, new) for its new tokens; the block's price is the
mean of T / new over the requests that computed it. Here T is the linear and attention work of
prefill as in `gdsf`, not a profile. All blocks that one request computed share a price.
Source: Jin et al., "RAGCache", arXiv 2404.12457, section 5.1.

Differs from the paper: blocks, not documents; prices and counts are lost at eviction, so the mean
is over one miss; one tier. The paper evicts leaves only: use a manager that does.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from policies.aging import Aging
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.request import Request


class PGDSF(Aging):
    """Evict the smallest clock + uses x price; *crossover_tokens*: context that doubles work."""

    def __init__(self, crossover_tokens: float = 30_000) -> None:
        if not crossover_tokens > 0:
            raise ConfigError(
                f"crossover_tokens is {crossover_tokens}; it must be more than 0 tokens"
            )
        self.crossover_tokens = crossover_tokens

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        # Tokens hit, of requests that have not ended. One that ends without a span of its own says
        # nothing: its number goes with it.
        self._num_hit: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._ending: tuple[int, float] = (0, 0.0)  # the moment, and the price of its new blocks

    def touch(self, span: Span, request: Request, now: float) -> None:
        self._num_hit[request] = (span.start + span.num_blocks) * self.pool.block_size
        uses, price = span.note or (1, None)
        span.note = (uses + 1, price)

    def value(self, span: Span, request: Request, now: float) -> float:
        if self._ending[0] != self.moment:
            self._ending = (self.moment, self._price(request))
        uses, price = span.note or (1, None)
        if price is None:
            price = self._ending[1]
            span.note = (uses, price)
        return float(uses * price)

    def _price(self, request: Request) -> float:
        """Work per new token of *request*, in units of a token's linear work."""
        cached = self._num_hit.pop(request, 0)
        return 1 + (cached + request.num_prompt_tokens) / 2 / self.crossover_tokens
