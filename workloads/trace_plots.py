"""Pictures of a workload before any cache: load, lengths, reuse, sharing, popularity.

Every function takes a workload and returns the `Axes`; `save` writes them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from sim.analysis.mrc import lru_curve
from sim.errors import ConfigError
from sim.plots.style import INK, PLAIN, dress, look, new_axes, say
from sim.workload import Workload
from workloads.profile import Seen
from workloads.sharing_tree import branches

NUM_BINS = 120
REUSE_BINS = np.geomspace(1e-2, 1e7, 400).tolist()  # s
MOST_FOR_TREE = 3000  # requests
LEAST_SHARE = 0.002  # of the requests of the tree; thinner branches cannot be seen


def arrival_rate(workload: Workload) -> Axes:
    """Requests a second over time."""
    ax = new_axes()
    times = np.array([request.arrival_time for request in workload])
    span = float(times[-1]) or 1.0
    counts, edges = np.histogram(times, bins=min(NUM_BINS, max(1, len(times))), range=(0, span))
    ax.stairs(counts * len(counts) / span, edges, fill=True, **_colour(0), alpha=0.8)
    ax.set_xlabel("time (s)")
    ax.set_ylabel("requests / s")
    dress(ax, "Arrivals", f"{len(times):,} requests in {span:,.0f} s")
    return ax


def length_cdf(workload: Workload) -> Axes:
    """Cumulative distribution of prompt and answer lengths."""
    ax = new_axes()
    requests = list(workload)
    for i, (label, values) in enumerate(
        {
            "prompt": [request.num_prompt_tokens for request in requests],
            "answer": [request.max_tokens for request in requests],
        }.items()
    ):
        _cdf(ax, np.array(values, dtype=np.float64), look(i), label)
    ax.set_xlabel("tokens")
    ax.set_ylabel("requests at most as long")
    ax.legend(frameon=False)
    dress(ax, "Lengths", f"{len(requests):,} requests")
    return ax


def reuse_time(workload: Workload) -> Axes:
    """Cumulative distribution of the time until a unit is asked for again."""
    ax = new_axes()
    seen = Seen(REUSE_BINS)
    for request in workload:
        seen.add(request)
    num = int(seen.reuse.sum())
    if num:
        ax.plot(REUSE_BINS, np.cumsum(seen.reuse)[:-1] / num, **look(0))
        _log_shares(ax)
    else:
        say(ax, "nothing is reused")
    ax.set_xlabel("seconds since the last use")
    ax.set_ylabel("reuses within")
    dress(ax, "Reuse time", f"{num:,} reuses of {len(seen.uses):,} different units")
    return ax


def reuse_distance(workload: Workload) -> Axes:
    """Hits of LRU by pool size: a block is hit if its reuse distance is below the size."""
    ax = new_axes()
    curve = lru_curve(workload)
    low, high = max(1, curve.min_num_blocks // 10), max(curve.enough, 2)
    sizes = np.unique(np.geomspace(low, max(high, low + 1), NUM_BINS).astype(np.int64))
    rates = [curve.hit_blocks(int(size)) / max(1, curve.query_blocks) for size in sizes]
    ax.plot(sizes, rates, **look(0))
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(PLAIN)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel(f"reuse distance (blocks of {curve.block_size} tokens)")
    ax.set_ylabel("blocks reused within")
    dress(ax, "Reuse distance", f"{curve.query_blocks:,} full blocks of prompts")
    return ax


def popularity(workload: Workload) -> Axes:
    """How often each unit is asked for, by rank."""
    ax = new_axes()
    seen = Seen()
    for request in workload:
        seen.add(request)
    counts = np.sort(seen.uses)[::-1]
    if len(counts):
        ranks = np.unique(np.geomspace(1, len(counts), NUM_BINS).astype(np.int64))
        ax.plot(ranks, counts[ranks - 1], **look(0))
        ax.set_xscale("log")
        ax.set_yscale("log")
    ax.set_xlabel("rank of the unit")
    ax.set_ylabel("requests that have it")
    dress(ax, "Popularity", f"{len(counts):,} different units")
    return ax


def sharing_tree(workload: Workload) -> Axes:
    """Prefixes that prompts share: width is the number of prompts, depth the tokens."""
    ax = new_axes()
    requests = list(islice(workload, MOST_FOR_TREE))
    found = branches(requests, least=max(2, round(LEAST_SHARE * len(requests))))
    for i, branch in enumerate(found):
        ax.add_patch(
            Rectangle(
                (branch.left, branch.top),
                branch.num_requests,
                branch.bottom - branch.top,
                facecolor=look(i % 6)["color"],
                alpha=0.55,
                edgecolor=INK,
                linewidth=0.3,
            )
        )
    ax.set_xlim(0, len(requests))
    ax.set_ylim(max([branch.bottom for branch in found], default=1), 0)
    ax.set_xlabel("prompts")
    ax.set_ylabel("tokens from the start")
    dress(ax, "Shared prefixes", f"of the first {len(requests):,} prompts; what few share is blank")
    return ax


PLOTS: dict[str, Callable[[Workload], Axes]] = {
    "arrivals": arrival_rate,
    "lengths": length_cdf,
    "reuse_time": reuse_time,
    "reuse_distance": reuse_distance,
    "popularity": popularity,
    "sharing_tree": sharing_tree,
}
WITHOUT_CONTENT = ("arrivals", "lengths")


def save(workload: Workload, folder: Path) -> list[Path]:
    """Draw all plots that *workload* has the content for into *folder*; their paths."""
    names: Sequence[str] = list(PLOTS) if workload.has_content else WITHOUT_CONTENT
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.png" for name in names]
        for name, path in zip(names, paths, strict=True):
            figure = PLOTS[name](workload).get_figure(root=True)
            assert figure is not None
            figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror}); name another") from None
    return paths


def _cdf(ax: Axes, values: npt.NDArray[np.float64], how: dict[str, Any], label: str) -> None:
    shares = np.linspace(0, 1, 501)
    ax.plot(np.quantile(values, shares), shares, label=label, **how)
    _log_shares(ax)


def _log_shares(ax: Axes) -> None:
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(PLAIN)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))


def _colour(i: int) -> dict[str, Any]:
    return {"color": look(i)["color"]}
