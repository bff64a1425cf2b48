"""How much memory for which hit rate: LRU at every pool size, the optimum at some, the limit."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from sim.analysis.bounds import replay_optimum, unbounded_hits
from sim.analysis.mrc import FreeOrder, HitCurve, lru_curve
from sim.analysis.optimum import Optimum
from sim.analysis.shards import sampled_lru_curve
from sim.errors import ConfigError
from sim.footprint import Convention, prompt
from sim.request import Request
from sim.run_folder import disk_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Policies = Literal["lru", "min", "both"]
NUM_SIZES = 12  # for MIN and for the printed table
NUM_ROWS = 400  # of the LRU curve in the CSV file and in the picture


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Hit rates of one workload by pool size, in usable blocks, one request at a time.

    *title*: what was replayed and under which convention. *minimum*: MIN's hit blocks at each of
    *sizes*, empty if MIN was not asked for. *kv_bytes_per_token*: None if it is not known.
    *sample_one_in*: above 1, *lru* is estimated from so few of the blocks, except for where it
    ends: the limit is exact, as MIN is.
    """

    title: str
    lru: HitCurve
    sizes: tuple[int, ...]
    minimum: dict[int, int] = field(default_factory=dict)
    kv_bytes_per_token: int | None = None
    optimum: Optimum | None = None
    sample_one_in: int = 1

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        convention: Convention = prompt,
        *,
        title: str = "",
        free_order: FreeOrder = "tail",
        policies: Policies = "both",
        sizes: Sequence[int] = (),
        kv_bytes_per_token: int | None = None,
        sample_one_in: int = 1,
    ) -> MemoryCurve:
        """Compute the curves.

        ConfigError if one of *sizes* cannot hold the longest request, or for too small a sample.
        """
        if sample_one_in > 1:
            limit = unbounded_hits(requests, convention)
            lru = sampled_lru_curve(
                requests, sample_one_in, convention, free_order=free_order, unbounded=limit
            )
        else:
            lru = lru_curve(requests, convention, free_order=free_order)
        for size in sizes:
            if size < lru.min_num_blocks:
                raise ConfigError(
                    f"--sizes: {size} blocks do not hold the longest request, which needs "
                    f"{lru.min_num_blocks}; give sizes of at least that"
                )
        sizes = sorted(set(sizes)) or default_sizes(lru, NUM_SIZES)
        optimum = None if policies == "lru" else replay_optimum(requests, convention)
        minimum = {size: optimum.num_hits(size) for size in sizes} if optimum else {}
        return cls(title, lru, tuple(sizes), minimum, kv_bytes_per_token, optimum, sample_one_in)

    @property
    def lru_name(self) -> str:
        """What to call *lru* wherever its numbers are shown."""
        one_in = self.sample_one_in
        return "LRU" if one_in == 1 else f"LRU (estimated from 1 block in {one_in:,})"

    def gib(self, num_blocks: float) -> float | None:
        """The memory of *num_blocks*, if the bytes per token are known."""
        if self.kv_bytes_per_token is None:
            return None
        return num_blocks * self.lru.block_size * self.kv_bytes_per_token / 2**30

    def rate(self, hit_blocks: int) -> float:
        """*hit_blocks* as hit tokens over prompt tokens."""
        return hit_blocks * self.lru.block_size / max(1, self.lru.query_tokens)

    def lru_size(self, hit_rate: float) -> int | None:
        """The smallest pool in which LRU has this token hit rate; None if there is none."""
        return self.lru.size_for(hit_rate)

    def min_size(self, hit_rate: float) -> int | None:
        """The smallest pool in which MIN has this token hit rate; None if there is none."""
        high = self.lru.size_for(hit_rate)
        if self.optimum is None or high is None:
            return None
        optimum, low = self.optimum, self.lru.min_num_blocks - 1

        def reached(num_blocks: int) -> bool:
            return self.rate(optimum.num_hits(num_blocks)) >= hit_rate

        while not reached(high):  # LRU's size is enough for MIN, but it may be an estimate
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(middle) else (middle, high)
        return high

    def rows(self, sizes: Sequence[int]) -> list[dict[str, Any]]:
        """One row per size, None where something is not known."""
        unbounded = self.rate(self.lru.unbounded)
        rows = []
        for size in sizes:
            lru, best = self.lru.hit_blocks(size), self.minimum.get(size)
            rows.append(
                {
                    "num_blocks": size,
                    "gib": self.gib(size),
                    "lru_sample_one_in": self.sample_one_in,
                    "lru_hit_blocks": lru,
                    "lru_hit_rate": self.rate(lru),
                    "min_hit_blocks": best,
                    "min_hit_rate": None if best is None else self.rate(best),
                    "unbounded_hit_rate": unbounded,
                }
            )
        return rows

    def save(self, folder: Path) -> list[Path]:
        """Write `mrc.csv` and `mrc.png` into *folder*; the files."""
        from sim.plots.memory_curves import hit_rate_curve

        sizes = sorted({*default_sizes(self.lru, NUM_ROWS), *self.sizes})
        rows = self.rows(sizes)
        table, picture = folder / "mrc.csv", folder / "mrc.png"
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with table.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, rows[0].keys())
                writer.writeheader()
                writer.writerows(rows)
            cast("Figure", hit_rate_curve(self).figure).savefig(picture)
        return [table, picture]


def default_sizes(curve: HitCurve, num_sizes: int) -> list[int]:
    """Pool sizes from the longest request to where LRU gains nothing more, evenly in log scale."""
    low = max(1, curve.min_num_blocks)
    sizes = np.geomspace(low, max(low, curve.enough), num_sizes)
    return sorted({int(size) for size in np.rint(sizes)})
