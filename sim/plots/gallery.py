"""Every picture that some results have to show, drawn and saved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from matplotlib.axes import Axes

from sim.analysis.misses import is_known
from sim.plots.eviction_ages import eviction_age
from sim.plots.gains import gain
from sim.plots.latencies import LATENCY_TITLES, latency_cdf
from sim.plots.miss_classes import misses
from sim.plots.runs import hit_rate_over_time, memory_over_time, memory_panels
from sim.plots.sweeps import focus, hit_rate_by_size, latency_by_size, sweep_axis
from sim.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_all(
    results: Results,
    folder: str | Path,
    formats: Sequence[str] = ("png",),
    names: Collection[str] | None = None,
) -> list[Path]:
    """Draw pictures into *folder*, all that have something to show or those of *names*.

    They are hit_rate, memory, and each latency that any request has.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, ax in pictures(results, names):
        for suffix in formats:
            paths.append(folder / f"{name}.{suffix}")
            cast("Figure", ax.figure).savefig(paths[-1])
    return paths


def pictures(results: Results, names: Collection[str] | None = None) -> Iterator[tuple[str, Axes]]:
    """Every picture of `save_all`, drawn when it is asked for.

    Pictures of single runs are those at one point of a sweep (`sim.plots.sweeps.focus`).
    """
    near = focus(results)
    one = len(near.summary) == 1
    draw: dict[str, Callable[[], Axes]] = {
        "hit_rate": lambda: hit_rate_over_time(near),
        "memory": lambda: memory_over_time(near) if one else memory_panels(near)[0],
    }
    for metric in LATENCY_TITLES:
        if near.requests[metric].notna().any():  # never without a clock
            draw[metric] = partial(latency_cdf, near, metric)
    if sweep_axis(results) is not None:
        draw["hit_rate_by_size"] = partial(hit_rate_by_size, results)
        if results.summary["ttft_p50"].notna().any():
            draw["latency_by_size"] = partial(latency_by_size, results)
        if results.summary["policy"].nunique() > 1:
            draw["gain"] = partial(gain, results)
    if is_known(results) and len(near.requests):
        draw["misses"] = partial(misses, near)
    if "eviction_idle_p50" in near.summary:
        draw["eviction_age"] = partial(eviction_age, near)
    for name, picture in draw.items():
        if names is None or name in names:
            yield name, picture()
