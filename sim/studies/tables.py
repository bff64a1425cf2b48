"""The tables of a whole study, from those of its runs: labels, axes, bounds, warm-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, Protocol

from sim.spec.axes import Setting

if TYPE_CHECKING:
    from sim.results import Results
    from sim.studies.unit import Outcome, Unit


class Row(Protocol):
    """One run: which policy, at which point, and where its outcome is."""

    @property
    def policy(self) -> str: ...
    @property
    def setting(self) -> Setting: ...
    @property
    def unit(self) -> Unit: ...
    @property
    def bounds(self) -> Unit | None: ...
    @property
    def num_blocks(self) -> int: ...


def assemble(
    rows: Sequence[Row], outcome: Callable[[str], Outcome], report: Mapping[str, Any]
) -> Results:
    """The results of *rows*, in their order; *outcome* gives what a key stands for.

    Columns of the summary after those of `sim.summary`, where bounds were asked for:
    `min_hit_rate` and `unbounded_hit_rate` (MIN and no limit at all, one request at a time) and
    `gap_closed` (0: the baseline at this point, 1: MIN).
    """
    from sim.results import Results

    parts, bounds = [], []
    kept: dict[str, Any] = {}
    for row in rows:
        part: Results = outcome(row.unit.key).relabelled(row.policy, row.setting)
        parts.append(part.after_warmup(report["warmup_requests"]))
        if row.bounds is not None:
            if row.bounds.key not in kept:
                kept[row.bounds.key] = outcome(row.bounds.key)
            found, size = kept[row.bounds.key], str(row.num_blocks)
            bounds.append([found[name].get(size) for name in ("min", "unbounded")])
    results = Results.concat(parts)
    if not bounds:
        return results
    table = results.summary
    for i, name in enumerate(("min_hit_rate", "unbounded_hit_rate")):
        table[name] = [nan if pair[i] is None else float(pair[i]) for pair in bounds]
    baseline = report["baseline"] or rows[0].policy
    table["gap_closed"] = gap_closed(results, baseline)
    return results


def gap_closed(results: Results, baseline: str) -> list[float]:
    """How far each run goes from the baseline's hit rate at its point to MIN's: 0 to 1.

    Negative below the baseline; NaN where the baseline is as good as MIN.
    """
    table = results.summary
    axes = results.axes
    start = {
        tuple(row[name] for name in axes): row["hit_rate"]
        for _, row in table[table["policy"] == baseline].iterrows()
    }
    closed = []
    for _, row in table.iterrows():
        low = start.get(tuple(row[name] for name in axes), nan)
        gap = row["min_hit_rate"] - low
        closed.append((row["hit_rate"] - low) / gap if gap > 1e-12 else nan)
    return closed
