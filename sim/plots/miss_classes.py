"""What became of the prompt tokens, as bars."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from sim.analysis.misses import ALWAYS, CLASSES, attribution
from sim.plots.style import LEGEND, ON_COLOR, dress, legible, new_figure
from sim.plots.sweeps import word
from sim.results import Results

MISS_COLORS = {
    "hit": "#0072B2",
    "evicted": "#D55E00",
    "orphan": "#8C3B00",
    "not_computed": "#CC79A7",
    "not_looked_up": "#F0A673",
    "last_token": "#E69F00",
    "partial": "#B8BFC5",
    "isolation": "#009E73",
    "compulsory": "#E4E8EB",
}
DARK = ("hit", "evicted", "orphan", "isolation")
MISS_LABELS = {
    "hit": "hit",
    "evicted": "evicted",
    "orphan": "behind a gap",
    "not_computed": "being computed",
    "not_looked_up": "not looked up",
    "last_token": "last-token rule",
    "partial": "partial block",
    "isolation": "isolated",
    "compulsory": "new content",
}


def misses(results: Results, ax: Axes | None = None) -> Axes:
    """What became of every prompt token, one bar per run: hit, or why it was not."""
    table = attribution(results)
    shares = table[list(CLASSES)].div(table[list(CLASSES)].sum(axis=1).clip(lower=1), axis=0)
    varied = [name for name in results.axes if table[name].nunique() > 1]
    labels = [
        legible(", ".join([str(row["policy"]), *(f"{word(row[name])}" for name in varied)]))
        for _, row in table.iterrows()
    ]
    if ax is None:
        ax = new_figure(7.5, 1.7 + 0.34 * len(table)).add_subplot()
    left = np.zeros(len(table))
    places = np.arange(len(table))
    names = [n for n in CLASSES if n in ALWAYS or table[n].any()]
    for name in names:
        share = shares[name].to_numpy()
        ax.barh(places, share, 0.68, left, color=MISS_COLORS[name], label=MISS_LABELS[name])
        for place, width in enumerate(share):
            if width > 0.06:
                color = "white" if name in DARK else ON_COLOR
                middle = left[place] + width / 2
                ax.text(
                    middle, place, f"{width:.0%}", ha="center", va="center", fontsize=8, color=color
                )
        left += share
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    dress(ax, "What became of the prompt tokens", "", pad=12 + 14 * -(-len(names) // 5))
    ax.grid(False)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, **{**LEGEND, "fontsize": 8.5})
    return ax
