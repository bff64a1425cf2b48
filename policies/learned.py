"""A learned policy, as an example: keep what a small network expects to be reused soon.

The first part of the requests is for training. Before the run it is replayed without a memory
limit: each time a request lets go of a span, the span's past is noted, and later whether it was
reused within the *horizon*. A network learns to tell from the past. In the run a span is ranked by
what the network says when it is released, and gets the lowest rank when the horizon has passed
without a reuse; among equal ranks the least recently used goes.

No leakage, if you look at the right numbers: of the requests behind the first part nothing is used
before it happens, but a run begins with those that the network was trained on. Judge it by the
rest (`configs/questions/learned.yaml` cuts the first part off).

Needs the extra `torch`, for training only. Idea: Song et al., "Learning relaxed Belady for content
distribution network caching" (LRB), NSDI 2020. Differs from LRB: trained once, before the run; a
probability for one horizon, not the time of the next use; spans with one history instead of
objects; every span in order instead of a sample, since ranks hold until the horizon has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from weakref import WeakKeyDictionary

from policies.reuse_examples import Examples, features, used
from policies.reuse_network import train
from policies.timed import Timed
from policies.vllm import VLLMBlockManager
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.replay import replay
from sim.request import Request

NUM_RANKS = 32  # probabilities are rounded to so many steps: within one, recency decides
EXPIRED = -1
FACTORS = (1, 2, 4, 8)  # horizons that are tried, in turnovers of the pool


class Learned(Timed):
    """Evict what is least likely to be reused within *horizon* seconds, by a network's estimate.

    *training*: the share of the requests, from the first on, that it learns from. *horizon*: by
    default 1, 2, 4 or 8 times the time in which they bring as many new blocks as the pool has:
    what hits most in the last third of them, with a network for the rest.
    *min_examples*: with fewer it refuses to run. *seed*: of the network's first weights.
    """

    is_offline: ClassVar[bool] = True  # it must be given the first part before the run

    def __init__(
        self,
        training: float = 0.3,
        horizon: float | None = None,
        min_examples: int = 100,
        seed: int = 0,
    ) -> None:
        if not 0 < training < 1:
            raise ConfigError(f"training is {training}; it must be a share, between 0 and 1")
        if horizon is not None and not horizon > 0:
            raise ConfigError(f"horizon is {horizon} s; it must be more than 0")
        self.training = training
        if min_examples < 0:
            raise ConfigError(f"min_examples is {min_examples}; it must be at least 0")
        self.horizon = horizon
        self.min_examples = min_examples
        self.seed = seed

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        # Tokens hit, of requests that have not ended. One that ends without a span of its own says
        # nothing: its number goes with it.
        self._num_hit: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._ending: tuple[Request | None, int] = (None, 0)  # the one that ends now, its hits

    def prepare(self, requests: Sequence[Request]) -> None:
        known = requests[: int(self.training * len(requests))]
        examples = Examples(known, self.pool.block_size)
        self._horizon = self.horizon or self._best_horizon(known)
        rows, labels, weights = examples.labelled(self._horizon)
        if len(rows) < self.min_examples:
            raise ConfigError(
                f"Learned: {len(rows)} examples to learn from, {self.min_examples} is the least "
                f"(min_examples); give a horizon below {self._horizon:.4g} s, a smaller pool, or a "
                "larger share for training"
            )
        self._network = train(rows, labels, weights, seed=self.seed)

    def _best_horizon(self, known: Sequence[Request]) -> float:
        """The one that hits most in the last third of *known*, with a network for the rest."""
        num_fit = len(known) * 2 // 3
        examples = Examples(known[:num_fit], self.pool.block_size)
        turnover = examples.turnover(self.pool.num_blocks)
        return max(
            (factor * turnover for factor in FACTORS),
            key=lambda horizon: self._num_hits(known, num_fit, examples, horizon),
        )

    def _num_hits(
        self, known: Sequence[Request], num_fit: int, examples: Examples, horizon: float
    ) -> int:
        """Tokens hit behind the first *num_fit* requests; none if there is too little to learn."""
        rows, labels, weights = examples.labelled(horizon)
        if len(rows) < max(1, self.min_examples):
            return -1
        trial = Learned(self.training, horizon, seed=self.seed)
        manager = VLLMBlockManager(
            self.pool.num_blocks, self.pool.block_size, eviction=trial, null_block=False
        )
        trial._horizon, trial._network = horizon, train(rows, labels, weights, seed=self.seed)
        hits: list[int] = []
        replay(manager, known, hits=hits)
        return sum(hit for hit in hits[num_fit:] if hit > 0)

    def touch(self, span: Span, request: Request, now: float) -> None:
        span.note = used(span.note, now)
        self._num_hit[request] = (span.start + span.num_blocks) * self.pool.block_size

    def rank(self, span: Span, request: Request, now: float) -> int:
        span.note = span.note or used(None, now)
        if self._ending[0] is not request:
            self._ending = (request, self._num_hit.pop(request, 0))
        seen = features(span.note, request, self._ending[1])
        return int(self._network.probability(seen) * NUM_RANKS)

    def until(self, span: Span, request: Request, now: float) -> float:
        return now + self._horizon

    def rank_after(self, span: Span, rank: int) -> int:
        return EXPIRED
