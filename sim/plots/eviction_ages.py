"""How old content is when it is evicted, beside how soon it would be reused."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from sim.errors import KvsimError
from sim.plots.style import INK, LEGEND, PLAIN, dress, legible, new_figure
from sim.results import Results

COLORS = {"reuse_gap": "#0072B2", "eviction_idle": "#D55E00"}
LABELS = {"reuse_gap": "reused after", "eviction_idle": "idle when evicted"}


def eviction_age(results: Results, ax: Axes | None = None) -> Axes:
    """Per run, from 10 to 90 % of the blocks with the median: idle when evicted, reused after.

    KvsimError if *results* do not know it (`evictions: true` in the configuration).
    """
    table = results.summary
    if "eviction_idle_p50" not in table:
        raise KvsimError("these results know no eviction ages; run with evictions: true")
    varied = [name for name in results.axes if table[name].nunique() > 1]
    labels = [
        legible(", ".join([str(row["policy"]), *(str(row[name]) for name in varied)]))
        for _, row in table.iterrows()
    ]
    ax = ax or new_figure(7.5, 1.7 + 0.42 * len(table)).add_subplot()
    for name, shift in (("reuse_gap", -0.17), ("eviction_idle", 0.17)):
        places = np.arange(len(table)) + shift
        low, middle, high = (table[f"{name}_p{p}"].to_numpy(dtype=float) for p in (10, 50, 90))
        low = np.maximum(low, 0.1)  # what happens at once stands at the left edge
        ax.barh(places, np.maximum(high, low) - low, 0.26, low, color=COLORS[name], alpha=0.55)
        ax.plot(np.maximum(middle, 0.1), places, "o", color=COLORS[name], markersize=5)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(PLAIN)
    ax.set_xlabel("seconds")
    ax.set_yticks(range(len(table)), labels, color=INK)
    ax.invert_yaxis()
    dress(ax, "Age at eviction and time to reuse", "", pad=26)
    patches = [Patch(color=COLORS[name], label=LABELS[name]) for name in COLORS]
    ax.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, **LEGEND)
    return ax
