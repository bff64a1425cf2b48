"""What every policy gains over a baseline, setting by setting."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm

from sim.plots.style import ON_COLOR, dress, legible, new_figure
from sim.plots.sweeps import axis_words, only_axis, word
from sim.results import Results


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
    x = only_axis(results, x)
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
    ax.set_xticks(range(len(columns)), [word(value) for value in columns])
    ax.set_yticks(range(len(policies)), [legible(policy) for policy in policies])
    ax.set_xlabel(axis_words(x))
    base = table["baseline"].iloc[0] if len(table) else "the baseline"
    dress(ax, f"Hit rate against {base}", "percentage points · grey numbers could be chance")
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax
