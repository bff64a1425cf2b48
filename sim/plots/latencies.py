"""The share of requests that were served within a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes

from sim.plots.style import LEGEND, dress, latency_axis, legible, look, new_axes, say
from sim.results import Results

LATENCY_TITLES = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "e2e": "End-to-end latency",
    "queue_time": "Time in queue",
}


def latency_cdf(results: Results, metric: str = "ttft", ax: Axes | None = None) -> Axes:
    """The share of requests served within a time. *metric*: ttft, tpot, e2e or queue_time.

    Requests without a value (refused, unfinished) are left out; the subtitle says how many.
    """
    if metric not in LATENCY_TITLES:
        raise ValueError(f"metric is {metric!r}; it must be one of {', '.join(LATENCY_TITLES)}")
    ax = ax or new_axes(num_labels=len(results.summary))
    scale, unit, unit_name = (
        (1e3, "ms", "milliseconds") if metric == "tpot" else (1, "s", "seconds")
    )
    seen = [np.zeros(0)]
    for i, (label, run) in enumerate(runs(results)):
        values = np.sort(run.requests[metric].dropna().to_numpy()) * scale
        if not values.size:
            continue
        seen.append(values)
        p50, p95 = np.percentile(values, [50, 95])
        name = f"{legible(label)}  {short(p50)} / {short(p95)}"
        ax.ecdf(values, **look(i), linewidth=1.8, label=name)
    latency_axis(ax, np.concatenate(seen))
    ax.set_ylim(0, 1.01)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 0.95], ["0%", "25%", "50%", "75%", "95%"])
    ax.set_ylabel("share of requests")
    ax.set_xlabel(unit_name)
    missing = int(results.requests[metric].isna().sum())
    left_out = f" · {missing:,} of {len(results.requests):,} have none" if missing else ""
    dress(ax, LATENCY_TITLES[metric], f"share of requests at least this fast{left_out}")
    if len(seen) == 1:
        say(ax, "no request got this far")
    else:
        legend = {"title": f"p50 / p95 ({unit})", "bbox_to_anchor": (1.0, 1.0)} | LEGEND
        ax.legend(loc="upper left", **legend)
    return ax


def short(value: float) -> str:
    """*value* with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def runs(results: Results) -> Iterator[tuple[str, Results]]:
    """Each run with its label, in the order of the summary; axes are named where they differ."""
    varied = [name for name in results.axes if results.summary[name].nunique(dropna=False) > 1]
    for run in results.runs():
        row = run.summary.iloc[0]
        values = (f"{name.rpartition('.')[2]} {row[name]}" for name in varied)
        yield ", ".join([str(row["policy"]), *values]), run
