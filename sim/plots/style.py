"""The look of all pictures: colours, fonts, axes and labels, set on each `Axes` and nowhere else.

No pyplot, no global style: a figure is a `Figure` with the Agg canvas and dies with its last
reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""One colour per run. Okabe & Ito (2008): told apart with every common colour blindness."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))
"""The seventh run has the first colour again, dashed."""
INK, FAINT, GRID = "#22272B", "#69727A", "#E3E6E8"
ON_COLOR = "#20262B"  # on a light colour; stays dark where ink becomes light
DPI = 150
LEGEND: dict[str, Any] = {
    "frameon": False,
    "fontsize": 9,
    "labelcolor": INK,
    "title_fontsize": 8.5,
    "alignment": "left",
    "handlelength": 1.2,
    "handleheight": 1.0,
    "columnspacing": 1.2,
}
MAX_LABEL = 32  # characters
MAX_BINS = 1000  # more moments cannot be told apart at these sizes

PLAIN = FuncFormatter(lambda x, _: f"{x:,.10g}")


class Picture(Figure):
    """A figure that a notebook shows without pyplot or an inline backend."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=90)
        return buffer.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """A figure of *width* by *height* inches that no window and no registry knows."""
    layout = ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08)
    figure = Picture(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def new_axes(num_labels: int = 1) -> Axes:
    """The only axes of a new figure, high enough for *num_labels* lines of text beside it."""
    return new_figure(7.5, max(4.2, 1.0 + 0.2 * num_labels)).add_subplot()


def look(i: int) -> dict[str, Any]:
    """Colour and dashes of run *i*."""
    dashes = DASHES[i // len(PALETTE) % len(DASHES)]
    return {"color": PALETTE[i % len(PALETTE)], "linestyle": dashes}


def dress(ax: Axes, title: str, subtitle: str, pad: float = 20) -> None:
    """Title *pad* points above the axes, subtitle and a light grid; no box."""
    ax.set_title(title, loc="left", pad=pad, fontsize=11.5, fontweight="bold", color=INK)
    ax.annotate(
        subtitle,
        (0, 1),
        xytext=(0, 7),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=9,
        color=FAINT,
    )
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(which="both", colors=FAINT, labelcolor=INK, labelsize=9)
    ax.xaxis.label.set(fontsize=9.5, color=INK)
    ax.yaxis.label.set(fontsize=9.5, color=INK)
    ax.grid(True, which="major", color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def legible(label: str) -> str:
    """A run's *label* as matplotlib shows it in full: no formulas, not hidden, not too long."""
    if len(label) > MAX_LABEL:
        half = MAX_LABEL // 2
        label = f"{label[:half]}…{label[1 - half :]}"
    label = label.replace("$", r"\$")  # two of them would begin and end a formula
    return f" {label}" if label.startswith("_") else label  # legends leave out "_..."


def time_unit(times: pd.Series[float]) -> tuple[float, str]:
    """Seconds per unit, and the unit in which a run this long is read: s, min or h."""
    longest = times.max() if len(times) else 0.0
    if longest > 3 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if longest > 600 else (1.0, "s")


def thin(run: pd.DataFrame, column: str) -> pd.DataFrame:
    """*run* with fewer rows that look the same: of each sliver of time, *column*'s extremes.

    No peak is lost. The first and the last row stay.
    """
    if len(run) <= 4 * MAX_BINS:
        return run
    time = run["time"].to_numpy()
    bins = ((time - time[0]) / ((time[-1] - time[0]) or 1.0) * MAX_BINS).astype("int64")
    values = pd.Series(run[column].to_numpy()).dropna()
    groups = values.groupby(bins[values.index])
    kept = np.concatenate([groups.idxmin(), groups.idxmax(), [0, len(run) - 1]])
    return run.iloc[np.unique(kept.astype("int64"))]


def latency_axis(ax: Axes, values: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """An x axis for *values*: logarithmic if those above 0 span more than a factor of 30.

    Values of 0 then lie left of the axis: a curve starts at their share.
    """
    positive = values[values > 0]
    if not positive.size or positive.max() <= 30 * positive.min():
        if not positive.size or values.min() < 0.3 * positive.max():
            ax.set_xlim(left=0)
        ax.xaxis.set_major_formatter(PLAIN)
        return
    ax.set_xscale("log", nonpositive="clip")
    lowest = max(positive.min(), positive.max() / 1e5)
    ax.set_xlim(0.9 * lowest, 1.1 * positive.max())
    ax.xaxis.set_major_locator(LogLocator(numticks=12))
    ax.xaxis.set_major_formatter(PLAIN)
    ax.xaxis.set_minor_formatter(NullFormatter())


def label_ends(ax: Axes, ends: Iterable[tuple[float, str, str]]) -> None:
    """Write beside the right edge what each line is: (y of its end, text, colour).

    Labels are moved apart just enough to be read; their order is that of the ends.
    """
    ordered = sorted((end for end in ends if end[0] == end[0]), key=lambda end: end[0])
    scale = ax.yaxis.get_transform().transform
    low, high = scale(np.array(ax.get_ylim(), dtype=float))
    places = [float((scale(np.array([end[0]]))[0] - low) / (high - low)) for end in ordered]
    gap = min(0.065, 1 / max(1, len(ordered)))
    for y, (_, text, color) in zip(spread(places, gap, 1.0), ordered, strict=True):
        ax.annotate(
            text,
            (1, y),
            xytext=(6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=color,
            annotation_clip=False,
        )


def spread(positions: list[float], gap: float, high: float) -> list[float]:
    """Ascending *positions*, each at least *gap* above the one before, none above *high*."""
    moved = positions.copy()
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    limit = high
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - gap
    return moved


def say(ax: Axes, text: str) -> None:
    """Write *text* in the middle: why there is nothing to see."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(
        0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=FAINT, fontsize=10
    )
