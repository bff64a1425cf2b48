"""Pictures of sweeps: what more memory, another load or another policy is worth.

Each takes `Results`, draws on *ax* or on a figure of its own, and returns the `Axes`. Over seeds,
lines are means and bands reach from the lowest to the highest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from sim.errors import KvsimError
from sim.misses import CLASSES, attribution
from sim.results import Results
from sim.style import INK, LEGEND, PLAIN, dress, label_ends, legible, look, new_axes, new_figure

SIZE = "cache.num_blocks"
ON_COLOR = "#20262B"  # on a light colour; stays dark where ink becomes light
MISS_COLORS = {
    "hit": "#0072B2",
    "lost": "#D55E00",
    "last_token": "#E69F00",
    "partial": "#B8BFC5",
    "compulsory": "#E4E8EB",
}
MISS_LABELS = {
    "hit": "hit",
    "lost": "lost (was cached before)",
    "last_token": "last-token rule",
    "partial": "partial block",
    "compulsory": "new content",
}


def sweep_axis(results: Results) -> str | None:
    """The axis that pictures show from left to right: the pool's size, else the first of numbers.

    None if nothing but policies and seeds was varied.
    """
    axes = [name for name in results.axes if name != "seed"]
    varied = [name for name in axes if results.summary[name].nunique() > 1]
    numbers = [name for name in varied if pd.api.types.is_numeric_dtype(results.summary[name])]
    if SIZE in numbers:
        return SIZE
    return next(iter([*numbers, *varied]), None)


def focus(results: Results, policies: Collection[str] = ()) -> Results:
    """The runs at the one point where hit rates differ most, at its first seed.

    *policies*: whose hit rates; all by default.
    """
    if not results.axes:
        return results
    names = list(results.axes)
    table = results.summary
    table = table[table["policy"].isin(policies)] if policies else table
    spread = table.groupby(names, sort=False, dropna=False)["hit_rate"].agg(np.ptp)
    at = spread.fillna(-1).idxmax()
    values = at if isinstance(at, tuple) else (at,)
    chosen = dict(zip(names, values, strict=True))
    if "seed" in chosen:
        chosen["seed"] = results.summary["seed"].iloc[0]
    return results.select(**chosen)


def hit_rate_by_size(results: Results, ax: Axes | None = None, *, x: str | None = None) -> Axes:
    """Hit rate of every policy along one axis of the sweep, with MIN and without limit if known.

    *x*: the axis; by default the pool's size. Other axes must have been selected.
    """
    x = _only_axis(results, x)
    table = results.summary
    policies = list(dict.fromkeys(table["policy"]))
    ax = ax or new_axes(num_labels=len(policies) + 2)
    ends = []
    places = _places(table[x])
    for i, (policy, rows) in enumerate(_by_policy(table, policies)):
        values = _line(ax, rows, x, "hit_rate", places, marker="o", markersize=3.5, **look(i))
        ends.append((values[-1], legible(policy), look(i)["color"]))
    top = table["hit_rate"].max()
    if "min_hit_rate" in table:
        for name, label, style in (
            ("min_hit_rate", "MIN", (0, (4, 2))),
            ("unbounded_hit_rate", "no limit", (0, (1, 2))),
        ):
            values = _line(ax, table, x, name, places, color=INK, linewidth=1.3, linestyle=style)
            ends.append((values[-1], label, INK))
        top = table["unbounded_hit_rate"].max()
    _x_axis(ax, table, x, places)
    ax.set_ylim(0, min(1.0, 1.12 * top) if top > 0 else 1.0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylabel("hit tokens / prompt tokens")
    dress(ax, f"Hit rate by {axis_words(x)}", _about(results))
    label_ends(ax, ends)
    return ax


def latency_by_size(
    results: Results, metric: str = "ttft", ax: Axes | None = None, *, x: str | None = None
) -> Axes:
    """Percentiles of *metric* (ttft, tpot, e2e, queue_time) along one axis of the sweep."""
    x = _only_axis(results, x)
    table = results.summary
    policies = list(dict.fromkeys(table["policy"]))
    ax = ax or new_axes(num_labels=len(policies) + 2)
    places = _places(table[x])
    styles = {"p50": "-", "p95": (0, (4, 2)), "p99": (0, (1, 1.5))}
    ends = []
    for i, (policy, rows) in enumerate(_by_policy(table, policies)):
        color = look(i)["color"]
        for name, style in styles.items():
            column = f"{metric}_{name}"
            values = _line(ax, rows, x, column, places, color=color, linestyle=style, lw=1.6)
            if name == "p50":
                ends.append((values[-1], legible(policy), color))
    _x_axis(ax, table, x, places)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(PLAIN)
    ax.set_ylabel("seconds")
    dress(ax, f"{metric.upper()} by {axis_words(x)}", "solid: p50 · dashed: p95 · dotted: p99")
    label_ends(ax, [end for end in ends if end[0] > 0])
    return ax


def gain(
    results: Results,
    baseline: str | None = None,
    ax: Axes | None = None,
    *,
    x: str | None = None,
    table: pd.DataFrame | None = None,
) -> Axes:
    """Percentage points of hit rate that every policy gains over *baseline* (the first), by cell.

    Grey numbers are differences that could be chance (`Results.compare`, whose *table* may be given
    if it is there already).
    """
    x = _only_axis(results, x)
    table = results.compare(baseline) if table is None else table
    policies = list(dict.fromkeys(table["policy"]))
    columns = list(dict.fromkeys(results.summary[x]))
    grid = np.full((len(policies), len(columns)), np.nan)
    clear = np.zeros(grid.shape, dtype=bool)
    for _, row in table.iterrows():
        cell = policies.index(row["policy"]), columns.index(row[x])
        grid[cell], clear[cell] = 100 * row["difference"], row["is_clear"]
    if ax is None:
        ax = new_figure(7.5, 1.6 + 0.38 * len(policies)).add_subplot()
    most = max(0.1, float(np.nanmax(np.abs(grid)))) if grid.size else 1.0
    ax.imshow(grid, cmap="RdBu", norm=TwoSlopeNorm(0, -1.25 * most, 1.25 * most), aspect="auto")
    for (i, j), value in np.ndenumerate(grid):
        if not np.isnan(value):
            strong = abs(value) > 0.75 * most
            color = "white" if strong else (ON_COLOR if clear[i, j] else "#8A939A")
            text = f"{value:+.1f}"
            ax.text(j, i, text, ha="center", va="center", fontsize=8.5, color=color)
    ax.set_xticks(range(len(columns)), [_word(value) for value in columns])
    ax.set_yticks(range(len(policies)), [legible(policy) for policy in policies])
    ax.set_xlabel(axis_words(x))
    base = table["baseline"].iloc[0] if len(table) else "the baseline"
    dress(ax, f"Hit rate against {base}", "percentage points · grey numbers could be chance")
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def misses(results: Results, ax: Axes | None = None) -> Axes:
    """What became of every prompt token, one bar per run: hit, lost, or why it could not be hit."""
    table = attribution(results)
    shares = table[list(CLASSES)].div(table[list(CLASSES)].sum(axis=1).clip(lower=1), axis=0)
    varied = [name for name in results.axes if table[name].nunique() > 1]
    labels = [
        legible(", ".join([str(row["policy"]), *(f"{_word(row[name])}" for name in varied)]))
        for _, row in table.iterrows()
    ]
    if ax is None:
        ax = new_figure(7.5, 1.7 + 0.34 * len(table)).add_subplot()
    left = np.zeros(len(table))
    places = np.arange(len(table))
    for name in CLASSES:
        share = shares[name].to_numpy()
        ax.barh(places, share, 0.68, left, color=MISS_COLORS[name], label=MISS_LABELS[name])
        for place, width in enumerate(share):
            if width > 0.06:
                color = "white" if name in ("hit", "lost") else ON_COLOR
                middle = left[place] + width / 2
                ax.text(
                    middle, place, f"{width:.0%}", ha="center", va="center", fontsize=8, color=color
                )
        left += share
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    dress(ax, "What became of the prompt tokens", "", pad=26)
    ax.grid(False)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, **{**LEGEND, "fontsize": 8.5})
    return ax


def _only_axis(results: Results, x: str | None) -> str:
    """The axis to draw along; KvsimError if others vary too."""
    axis = sweep_axis(results) if x is None else results.axis(x)
    if axis is None:
        raise KvsimError(f"{results!r} has no axis to draw along; sweep something")
    others = [
        name
        for name in results.axes
        if name not in (axis, "seed") and results.summary[name].nunique() > 1
    ]
    if others:
        raise KvsimError(f"{', '.join(others)} varies too; select one value of each first")
    return axis


def _by_policy(table: pd.DataFrame, policies: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    for policy in policies:
        yield policy, table[table["policy"] == policy]


def _places(values: pd.Series[Any]) -> dict[Any, float]:
    """Where each value of the axis stands: numbers where they are, names one by one."""
    unique = list(dict.fromkeys(values))
    if pd.api.types.is_numeric_dtype(values):
        return {value: float(value) for value in sorted(unique)}
    return {value: float(i) for i, value in enumerate(unique)}


def _line(
    ax: Axes, rows: pd.DataFrame, x: str, column: str, places: dict[Any, float], **style: Any
) -> list[float]:
    """The mean over seeds along the axis, and a band from lowest to highest; the means."""
    groups = rows.groupby(x, sort=False)[column].agg(["mean", "min", "max"])
    groups = groups.loc[sorted(groups.index, key=places.__getitem__)]
    at = [places[value] for value in groups.index]
    style = {"linewidth": 1.8} | {("linewidth" if k == "lw" else k): v for k, v in style.items()}
    ax.plot(at, groups["mean"], **style)
    if (groups["max"] > groups["min"]).any():
        color = style["color"]
        ax.fill_between(at, groups["min"], groups["max"], color=color, alpha=0.15, linewidth=0)
    return [float(value) for value in groups["mean"]]


def _x_axis(ax: Axes, table: pd.DataFrame, x: str, places: dict[Any, float]) -> None:
    at = list(places.values())
    if pd.api.types.is_numeric_dtype(table[x]):
        if min(at) > 0 and max(at) > 5 * min(at):
            ax.set_xscale("log")
        ax.xaxis.set_major_locator(FixedLocator(at))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _word(value)))
    else:
        ax.set_xticks(at, [_word(value) for value in places])
    ax.set_xlabel(axis_words(x))
    ax.margins(x=0.02)


def axis_words(x: str) -> str:
    """An axis as people call it."""
    return "pool size (blocks)" if x == SIZE else x.rpartition(".")[2].replace("_", " ")


def _word(value: Any) -> str:
    """A tick's label, short: 20k for 20000."""
    if isinstance(value, int | float | np.integer | np.floating):
        if value >= 1000 and value % 100 == 0:
            return f"{value / 1000:,.10g}k"
        return f"{value:,.10g}"
    text = str(value)
    return text if len(text) <= 18 else f"{text[:17]}…"


def _about(results: Results) -> str:
    """Block size, number of requests and seeds in a line."""
    table = results.summary
    parts = [f"{table['num_requests'].iloc[0]:,} requests"]
    if table["block_size"].nunique() == 1:
        parts.append(f"blocks of {table['block_size'].iloc[0]} tokens")
    if "seed" in table and table["seed"].nunique() > 1:
        parts.append(f"mean of {table['seed'].nunique()} seeds")
    return " · ".join(parts)
