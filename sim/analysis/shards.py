"""The LRU curve from a sample of the blocks, for traces whose every prompt does not fit in memory.

SHARDS (Waldspurger et al., FAST'15) keeps a block if a hash of its key says so; a distance counted
in kept blocks, times the sampling factor, estimates the true one. Prefix chains have roots that
nearly every request uses, and whether such a block falls into the sample would move the whole
curve. So blocks that make up more than *hot_share* of all uses are all kept, each for itself, and
the others are sampled. The exact curve (`sim.analysis.mrc`) costs time by the run, not by the
block: it is usually the faster one too, and needs more memory only because it keeps every prompt's
keys.

A sample of `LEAST_SAMPLED` blocks misses the hit rates of the Mooncake traces by 1 point on average
and by 3 to 6 at worst; of fewer blocks no curve is made.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from math import ceil

import numpy as np

from sim.analysis.mrc import FreeOrder, HitCurve, Sums, curve
from sim.errors import ConfigError
from sim.footprint import Convention, Footprint, prompt
from sim.request import Request
from sim.workload import Workload

MASK = (1 << 64) - 1
LEAST_SAMPLED = 1000
"""Different blocks that a sample needs, besides those that are all kept."""


def sampled_lru_curve(
    requests: Workload | Sequence[Request],
    one_in: int,
    convention: Convention = prompt,
    *,
    free_order: FreeOrder = "tail",
    hot_share: float = 0.001,
    seed: int = 0,
    unbounded: int | None = None,
) -> HitCurve:
    """`lru_curve` estimated from one block in *one_in*; two passes over *requests*.

    *unbounded*: the hits in a cache without limit. Where they are known (`unbounded_hits`), the
    curve ends there, and is about twice as accurate. ConfigError if too few blocks are sampled.
    """
    num_uses = sum(convention(request).num_stored for request in requests)
    hot = hot_blocks(requests, convention, hot_share * num_uses)
    sample = _Sample(len(requests), one_in, hot, seed)
    at_tail = free_order == "tail"
    last_unhashed = longest = query_tokens = 0
    block_size = 1
    for request in requests:
        footprint = convention(request)
        num_unhashed = footprint.num_unhashed
        sample.use(footprint, num_unhashed if at_tail else 0, 0 if at_tail else last_unhashed)
        last_unhashed = num_unhashed
        longest = max(longest, footprint.num_blocks)
        query_tokens += footprint.num_tokens
        block_size = footprint.keys.block_size
    if one_in > 1:
        _check_size(one_in, sample.num_sampled)
    estimate = curve(
        sample.starts,
        sample.lengths,
        block_size=block_size,
        num_requests=len(requests),
        query_tokens=query_tokens,
        query_blocks=num_uses,
        min_num_blocks=longest,
        num_twice=0,
    )
    # The sample stands for more or fewer uses and hits than there were; shares are more accurate.
    scale = num_uses / max(1, sample.num_uses)
    if unbounded is not None:
        if unbounded and not estimate.unbounded:
            raise ConfigError(f"--sample is {one_in}: nothing that it keeps is hit; {REMEDY}")
        scale = unbounded / max(1, estimate.unbounded)
    return replace(estimate, hits=np.rint(estimate.hits * scale).astype(np.int64))


REMEDY = "give a smaller one, or none: the exact curve is usually as fast"


def _check_size(one_in: int, num_sampled: int) -> None:
    if num_sampled < LEAST_SAMPLED:
        raise ConfigError(
            f"--sample is {one_in}: it keeps {num_sampled:,} different blocks, and fewer than "
            f"{LEAST_SAMPLED:,} say little; {REMEDY}"
        )


def hot_blocks(
    requests: Workload | Sequence[Request], convention: Convention, num_uses: float
) -> set[Hashable]:
    """Blocks used more than about *num_uses* times, by lossy counting down each path.

    A block is counted once its parent is, which is used at least as often. Counts are too low by a
    tenth of the limit at most, and by one for each block above.
    """
    counts: dict[Hashable, int] = {}
    late: dict[Hashable, int] = {}  # what a block may have been used before it was counted
    period = ceil(10 * len(requests) / max(1.0, num_uses))
    for number, request in enumerate(requests, start=1):
        keys, _, num_stored, *_ = convention(request)
        for i in range(num_stored):
            key = keys[i]
            if key not in counts:
                counts[key], late[key] = 1, number // period
                break
            counts[key] += 1
        if number % period == 0:
            for key in [k for k, n in counts.items() if n + late[k] <= number // period]:
                del counts[key], late[key]
    return {key for key, count in counts.items() if count + late[key] > num_uses}


class _Sample:
    """The list of `sim.analysis.mrc`, of which only hot and sampled blocks are known one by one."""

    def __init__(self, num_requests: int, one_in: int, hot: set[Hashable], seed: int) -> None:
        self._one_in = one_in
        self._hot = hot
        self._seed = seed
        self._sums = Sums(num_requests)
        self._last_use: dict[Hashable, int] = {}
        self._number = 0
        self.num_uses = 0  # of blocks, estimated
        self.starts: list[int] = []
        self.lengths: list[int] = []

    @property
    def num_sampled(self) -> int:
        """Different blocks that the sample has besides the hot ones."""
        return sum(key not in self._hot for key in self._last_use)

    def use(self, footprint: Footprint, num_unhashed: int, shift: int) -> None:
        """Move a path to the front; blocks that were in the list are noted with their place."""
        last_use, number = self._last_use, self._number
        moved: dict[int, int] = {}  # request -> blocks of its run that are on this path
        num_blocks = num_unhashed
        for i, key, weight in self._kept(footprint):
            run = last_use.get(key)
            if run is not None:
                before = moved.get(run, 0)
                moved[run] = before + weight
                if i < footprint.num_hittable:
                    self.starts.append(self._sums.behind(run) + before + shift)
                    self.lengths.append(weight)
            last_use[key] = number
            num_blocks += weight
            self.num_uses += weight
        for run, weight in moved.items():
            self._sums.add(run, -weight)
        self._sums.add(number, num_blocks)
        self._number += 1

    def _kept(self, footprint: Footprint) -> list[tuple[int, Hashable, int]]:
        """Of a path the blocks that are kept: place, key, and for how many each stands."""
        keys, num_stored = footprint.keys, footprint.num_stored
        kept: list[tuple[int, Hashable, int]] = []
        for i in range(num_stored):
            key = keys[i]
            if key not in self._hot:
                break
            kept.append((i, key, 1))
        one_in, seed = self._one_in, self._seed
        for i in islice(range(num_stored), len(kept), None):
            key = keys[i]
            if mixed(key, seed) % one_in == 0:
                kept.append((i, key, one_in))
        return kept


def mixed(key: Hashable, seed: int) -> int:
    """64 well-mixed bits of *key*, the same in every process."""
    if not isinstance(key, int):
        key = int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "little")
    z = (key + seed * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & MASK  # splitmix64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31
