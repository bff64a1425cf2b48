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
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from sim.errors import KvsimError
from sim.plots.style import INK, PLAIN, dress, label_ends, legible, look, new_axes
from sim.results import Results

SIZE = "cache.num_blocks"


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
    x = only_axis(results, x)
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
    x = only_axis(results, x)
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


def only_axis(results: Results, x: str | None) -> str:
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
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: word(value)))
    else:
        ax.set_xticks(at, [word(value) for value in places])
    ax.set_xlabel(axis_words(x))
    ax.margins(x=0.02)


def axis_words(x: str) -> str:
    """An axis as people call it."""
    return "pool size (blocks)" if x == SIZE else x.rpartition(".")[2].replace("_", " ")


def word(value: Any) -> str:
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
