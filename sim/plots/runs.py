"""Pictures of runs over time: the hit rate, and what the memory holds."""

from __future__ import annotations

from math import ceil, isnan
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sim.plots.latencies import runs
from sim.plots.style import (
    INK,
    LEGEND,
    PLAIN,
    dress,
    label_ends,
    legible,
    look,
    new_axes,
    new_figure,
    say,
    thin,
    time_unit,
)
from sim.results import Results

if TYPE_CHECKING:
    pass

MEMORY = {"used": "#0B4F7D", "cached": "#7FB5D9", "blank": "#E4E8EB"}
"""Darker is fuller, so the picture reads in grey too."""
MEMORY_LABELS = {"used": "in use", "cached": "cached, idle", "blank": "blank"}


def hit_rate_over_time(results: Results, ax: Axes | None = None) -> Axes:
    """The prefix-cache hit rate in tokens: since the start, and thin over the last 1000 requests.

    The number at a line's end is its last value: the rate since the start of the run.
    """
    ax = ax or new_axes(num_labels=len(results.summary))
    scale, unit = time_unit(results.series["time"])
    ends = []
    for i, (label, one) in enumerate(runs(results)):
        run = one.series
        window = thin(run, "hit_rate_window")
        ax.plot(window["time"] / scale, window["hit_rate_window"], **look(i), lw=0.7, alpha=0.35)
        ax.plot(run["time"] / scale, run["hit_rate"], **look(i), linewidth=2.0)
        rates = run["hit_rate"].dropna()
        if len(rates):
            ends.append(
                (rates.iloc[-1], f"{legible(label)}  {rates.iloc[-1]:.1%}", look(i)["color"])
            )
    top = results.series[["hit_rate", "hit_rate_window"]].max().max()
    ax.set_ylim(0, min(1.0, 1.12 * top) if top > 0 else 1.0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_ylabel("hit tokens / queried tokens")
    ax.set_xlabel(f"simulated time ({unit})")
    ax.margins(x=0)
    dress(ax, "Prefix-cache hit rate", "bold: since the start · thin: the last 1,000 requests")
    label_ends(ax, ends)
    if not ends:
        say(ax, "nothing was looked up in the cache")
    return ax


def memory_over_time(
    results: Results, ax: Axes | None = None, *, policy: str | None = None
) -> Axes:
    """Where the blocks of one run are: in use, idle but cached, blank; GiB on the right axis.

    *policy*: which run, if there are several (`memory_panels` shows all of them).
    """
    one = results if policy is None else results.select(policy)
    if len(one.summary) != 1:
        raise ValueError(f"{results!r}: name one run with policy=..., or use memory_panels")
    row = one.summary.iloc[0]
    ax = ax or new_axes()
    draw_memory(ax, one)
    pool = f"{row['num_blocks']:,} blocks of {row['block_size']} tokens"
    dress(ax, f"KV-cache memory: {legible(row['policy'])}", f"{pool} · {peak(row)}")
    grid_on_top(ax)
    above = {"bbox_to_anchor": (1.0, 1.0), "ncols": 3} | LEGEND
    ax.legend(handles=memory_legend(), loc="lower right", **above)
    return ax


def memory_panels(results: Results) -> list[Axes]:
    """`memory_over_time` of every run: one figure, a panel each."""
    num_columns = 1 if len(results.summary) < 2 else 2
    num_rows = max(1, ceil(len(results.summary) / num_columns))
    figure = new_figure(5.5 * num_columns, 0.7 + 2.7 * num_rows)
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True).flatten()
    figure.suptitle("KV-cache memory", x=0.01, ha="left", fontsize=12.5, weight="bold", color=INK)
    figure.legend(handles=memory_legend(), loc="upper right", ncols=3, **LEGEND)
    panels = list(grid[: len(results.summary)])
    for ax, (label, run) in zip(panels, runs(results), strict=True):
        draw_memory(ax, run)
        dress(ax, legible(label), peak(run.summary.iloc[0]))
        grid_on_top(ax)
    for ax in panels[:-num_columns]:
        ax.set_xlabel("")
    for ax in panels[-num_columns:]:  # the right column may end a row earlier than the left
        ax.tick_params(labelbottom=True)
    for ax in grid[len(panels) :]:
        ax.remove()
    return panels


def draw_memory(ax: Axes, one: Results) -> None:
    """The stacked blocks of the only run, on bare axes."""
    row = one.summary.iloc[0]
    scale, unit = time_unit(one.series["time"])
    run = thin(one.series, "num_used_blocks")
    # Back to front, each layer down to 0: layers that only touch would let the paper show through.
    top = run[[f"num_{kind}_blocks" for kind in MEMORY]].to_numpy().cumsum(axis=1)
    colors = list(MEMORY.values())
    for layer in reversed(range(len(colors))):
        color = colors[layer]
        ax.fill_between(run["time"] / scale, top[:, layer], step="post", color=color, linewidth=0)
    num_blocks = max(1, row["num_blocks"])
    ax.set_ylim(0, num_blocks)
    ax.margins(x=0)
    ax.yaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(PLAIN)
    ax.set_ylabel("blocks")
    ax.set_xlabel(f"simulated time ({unit})")
    if not isnan(row["kv_bytes_per_token"]):
        add_bytes_axis(ax, row["kv_bytes_per_token"] * row["block_size"], num_blocks)
    if run.empty:
        say(ax, "no samples")


def add_bytes_axis(ax: Axes, block_bytes: float, num_blocks: int) -> None:
    """The same height in GiB (MiB for a pool under 1 GiB), on the right."""
    size, unit = (2**30, "GiB") if num_blocks * block_bytes >= 2**30 else (2**20, "MiB")
    factor = block_bytes / size
    right = ax.secondary_yaxis(
        "right", functions=(lambda y: np.asarray(y) * factor, lambda y: np.asarray(y) / factor)
    )
    right.set_ylabel(unit, fontsize=9.5, color=INK)
    right.yaxis.set_major_formatter(PLAIN)
    right.tick_params(colors=INK, labelsize=9, length=0)
    right.spines["right"].set_visible(False)


def grid_on_top(ax: Axes) -> None:
    """A faint white grid over the areas, which would hide one below them."""
    ax.grid(True, color="white", alpha=0.35, linewidth=0.8)
    ax.set_axisbelow(False)


def memory_legend() -> list[Patch]:
    """A coloured square for each kind of block."""
    return [Patch(color=color, label=MEMORY_LABELS[kind]) for kind, color in MEMORY.items()]


def peak(row: pd.Series[Any]) -> str:
    """How full the pool of summary row *row* was at most."""
    return "" if isnan(row["peak_usage"]) else f"at most {row['peak_usage']:.1%} in use"
