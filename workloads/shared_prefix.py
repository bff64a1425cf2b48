"""Synthetic traffic: popular system prompts, each followed by a question of its own.

The simplest workload that rewards a prefix cache. Requests arrive as a Poisson process; the
popularity of the shared prefixes follows Zipf's law; lengths are lognormal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.errors import ConfigError
from sim.keys import POSITION_BITS, SegmentKeys
from sim.request import Request
from sim.workload import Workload
from workloads.arguments import real_number, whole_number
from workloads.arrivals import Poisson, arrival_times


class SharedPrefix(Workload):
    """*num_requests* requests that share *num_prefixes* prompts; equal arguments, equal requests.

    *rate*: requests per second. *zipf*: the k-th prefix is chosen with weight k ** -zipf (0: all
    alike). *prefix_tokens*, *suffix_tokens*, *output_tokens*: mean lengths of the shared part, the
    rest of the prompt and the answer, in tokens; each *_cv* is the standard deviation over the
    mean (0: constant). Every length is at least 1. Suffixes and answers are never shared.

    Each component has its own random stream, so a longer run begins with the shorter one, and
    another rate moves only the arrivals.
    """

    def __init__(
        self,
        rate: float = 8.0,
        num_requests: int = 10_000,
        *,
        num_prefixes: int = 200,
        zipf: float = 1.0,
        prefix_tokens: int = 1024,
        prefix_cv: float = 0.5,
        suffix_tokens: int = 256,
        suffix_cv: float = 1.0,
        output_tokens: int = 128,
        output_cv: float = 1.0,
        block_size: int = 16,
        seed: int = 0,
    ) -> None:
        self.block_size = _whole("block_size", block_size)
        self.seed = _whole("seed", seed, least=0)
        self.num_prefixes = _whole("num_prefixes", num_prefixes)
        num_requests = _whole("num_requests", num_requests)
        rate = real_number("SharedPrefix", "rate", rate, above=0)
        zipf = real_number("SharedPrefix", "zipf", zipf)

        streams = (np.random.default_rng(s) for s in np.random.SeedSequence(self.seed).spawn(5))
        arrivals, choice, prefix, suffix, output = streams
        self._arrivals = arrival_times(Poisson(rate), num_requests, arrivals, "SharedPrefix")
        weights = np.arange(1, self.num_prefixes + 1, dtype=np.float64) ** -zipf
        self._prefixes = choice.choice(num_prefixes, num_requests, p=weights / weights.sum())

        prefixes = self._draw(prefix, "prefix", self.num_prefixes, prefix_tokens, prefix_cv)
        suffixes = self._draw(suffix, "suffix", num_requests, suffix_tokens, suffix_cv)
        outputs = self._draw(output, "output", num_requests, output_tokens, output_cv)
        self._prefix_ends = prefixes[self._prefixes]
        self._prompt_ends = self._prefix_ends + suffixes
        self._ends = self._prompt_ends + outputs

    def __iter__(self) -> Iterator[Request]:
        ends = (self._prefix_ends, self._prompt_ends, self._ends)
        columns: tuple[Any, ...] = (self._arrivals, self._prefixes, *ends)
        # Memoryviews yield plain Python numbers, one at a time.
        rows = zip(*(memoryview(column) for column in columns), strict=True)
        for i, (arrival, prefix, prefix_end, prompt_end, end) in enumerate(rows):
            ids = (prefix, self.num_prefixes + i, -1 - i)
            keys = SegmentKeys(ids, (prefix_end, prompt_end, end), self.block_size)
            yield Request(i, keys, prompt_end, end - prompt_end, arrival)

    def __len__(self) -> int:
        return len(self._arrivals)

    def _draw(
        self, rng: np.random.Generator, part: str, num: int, mean: int, cv: float
    ) -> npt.NDArray[np.int64]:
        """*num* lognormal lengths in tokens, rounded, at least 1."""
        mean = _whole(f"{part}_tokens", mean)
        cv = real_number("SharedPrefix", f"{part}_cv", cv)
        variance = np.log1p(cv * cv)  # of the logarithm
        lengths = rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), num).round()
        longest = (self.block_size << POSITION_BITS) // 4  # the three parts together are shorter
        if lengths.max() > longest:
            raise ConfigError(
                f"SharedPrefix: {part}_tokens is {mean} and {part}_cv is {cv}, which draws "
                f"{lengths.max():.3g} tokens; the limit is {longest}; lower one of them"
            )
        return np.maximum(lengths, 1).astype(np.int64)


def _whole(name: str, value: int, least: int = 1) -> int:
    return whole_number("SharedPrefix", name, value, least)
