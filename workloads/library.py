"""Contents that many prompts share: system prompts, documents, passages, images."""

from __future__ import annotations

import numpy as np

from sim.traffic import Ints, Lengths
from workloads.arguments import real_number, whole_number
from workloads.length_models import lengths_of, whole
from workloads.streams import stream


class Library:
    """*num* contents, of which the k-th is asked for with weight k ** -*zipf*.

    *tokens*: how long each is; a content has one length for ever.
    """

    def __init__(
        self, owner: str, name: str, num: int, zipf: float, tokens: Lengths | float
    ) -> None:
        self.name = name
        self.num = whole_number(owner, f"num_{name}s", num, 1)
        weights = np.arange(1, self.num + 1, dtype=np.float64) ** -real_number(owner, "zipf", zipf)
        self._total = np.cumsum(weights / weights.sum())
        self._tokens = lengths_of(tokens, owner, f"{name}_tokens")

    def tokens(self, seed: np.random.SeedSequence) -> Ints:
        """The length of each content."""
        return whole(self._tokens.draw(self.num, stream(seed, self.name, "tokens")))

    def choose(self, num: int, seed: np.random.SeedSequence) -> Ints:
        """*num* contents, independently of each other."""
        drawn = stream(seed, self.name, "choice").random(num)
        return np.minimum(np.searchsorted(self._total, drawn, side="right"), self.num - 1)

    def choose_sets(self, num: int, size: int, seed: np.random.SeedSequence) -> Ints:
        """*num* rows of *size* different contents, in the order in which they were drawn.

        A Gumbel race: the contents with the largest log weight plus noise, which draws one after
        the other without putting back.
        """
        size = min(size, self.num)
        rng = stream(seed, self.name, "choice")
        weights = np.log(np.diff(self._total, prepend=0.0))
        rows = np.empty((num, size), dtype=np.int64)
        for i in range(num):
            scores = weights + rng.gumbel(size=self.num)
            best = np.argpartition(-scores, size - 1)[:size]
            rows[i] = best[np.argsort(-scores[best])]
        return rows
