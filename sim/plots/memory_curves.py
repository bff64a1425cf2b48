"""The picture of a memory curve: hit rate against pool size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from sim.plots.style import FAINT, INK, PLAIN, dress, label_ends, look, new_axes

if TYPE_CHECKING:
    from sim.analysis.memory_curve import MemoryCurve

NUM_POINTS = 400


def hit_rate_curve(curves: MemoryCurve, ax: Axes | None = None) -> Axes:
    """Token hit rate of LRU, MIN and a cache without limits, against blocks and GiB."""
    ax = ax or new_axes()
    lru, limit = curves.lru, curves.rate(curves.lru.unbounded)
    low = max(1, lru.min_num_blocks)
    high = max(lru.enough, max(curves.sizes, default=low), low + 1)
    sizes = np.unique(np.rint(np.geomspace(low, high, NUM_POINTS)).astype(int))
    rates = [lru.hit_rate(int(size)) for size in sizes]
    ax.plot(sizes, rates, **look(0), linewidth=2.0)
    ends = [(rates[-1], curves.lru_name, look(0)["color"]), (limit, f"no limit {limit:.1%}", FAINT)]
    ax.axhline(limit, color=FAINT, linewidth=1.0, linestyle=(0, (2, 2)))
    if curves.minimum:
        points = sorted(curves.minimum.items())
        best = [curves.rate(hits) for _, hits in points]
        ax.plot([size for size, _ in points], best, **look(1), marker="o", markersize=4)
        ends.append((best[-1], "MIN (optimum)", look(1)["color"]))
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(0, 1.12 * limit if limit else 1.0)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    ax.xaxis.set_major_formatter(PLAIN)
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel(f"pool size (usable blocks of {lru.block_size} tokens)")
    ax.set_ylabel("hit tokens / prompt tokens")
    dress(ax, "Prefix-cache hit rate by pool size", curves.title)
    label_ends(ax, ends)
    if curves.kv_bytes_per_token is not None:
        _add_gib_axis(ax, lru.block_size * curves.kv_bytes_per_token)
    return ax


def _add_gib_axis(ax: Axes, block_bytes: int) -> None:
    """The same widths in GiB, below the blocks."""
    factor = block_bytes / 2**30
    below = ax.secondary_xaxis(
        -0.17, functions=(lambda x: np.asarray(x) * factor, lambda x: np.asarray(x) / factor)
    )
    below.set_xlabel("GiB", fontsize=9.5, color=INK)
    below.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    below.xaxis.set_major_formatter(PLAIN)
    below.xaxis.set_minor_formatter(NullFormatter())
    below.tick_params(which="both", colors=FAINT, labelcolor=INK, labelsize=9)
    below.spines["bottom"].set_color(FAINT)
