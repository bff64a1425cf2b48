"""What a report says: the answer, tables, figures with a sentence each, and where it comes from.

`sim.reports.html` and `sim.reports.markdown` write it down. Equal results give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from sim import plots
from sim.analysis.misses import is_known
from sim.plots.block_maps import BlockMap
from sim.plots.sweeps import axis_words, sweep_axis
from sim.reports.findings import Findings
from sim.reports.source import lru_of, offline_of, text_of
from sim.results import Results
from sim.run_folder import CONFIG, VERSIONS
from sim.spec.yaml_text import parse
from sim.summary import headline, known, with_orphans


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture and what to read off it. *name*: of its file, without suffix."""

    name: str
    axes: Axes
    caption: str


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows and columns; the first column is the row's name. *best*: cells to set bold."""

    title: str
    rows: pd.DataFrame
    note: str = ""
    best: frozenset[tuple[int, int]] = frozenset()
    is_detail: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The results folder *folder*, as a report."""

    folder: Path
    name: str
    question: str
    answers: list[str]
    tables: list[Table]
    figures: list[Figure]
    config: str
    versions: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> Report:
        """Read *folder*; KvsimError if it holds no results."""
        results = Results.load(folder)
        text = text_of(folder / CONFIG)
        versions = json.loads(text_of(folder / VERSIONS))
        config = parse(text, CONFIG) or {}
        report = config.get("report") or {}
        found = Findings.of(
            results,
            report.get("baseline") or lru_of(config, results),
            offline=offline_of(config),
            target=report.get("target_hit_rate"),
        )
        return cls(
            folder=folder,
            name=str(config.get("name", folder.name)),
            question=str(config.get("question", "")),
            answers=found.sentences(),
            tables=list(tables(found)),
            figures=list(figures(found)),
            config=text,
            versions=versions,
            notes=list(notes(results, report)),
        )


def tables(found: Findings) -> Iterator[Table]:
    """The hit rates in one table, then what else was measured, then every comparison."""
    results = found.results
    axis = sweep_axis(results)
    if axis is not None and _is_plane(results, axis):
        yield _matrix(found, axis)
    near = found.near if axis is not None else results
    place = found.place()
    title = f"Everything in short, {place}" if place else "Everything in short"
    short = with_orphans(headline(near.summary), near.summary)
    if near is not results:
        short = short.drop(columns=[name.rpartition(".")[2] for name in results.axes])
    yield Table(title, short, ORPHANS if "orphans" in short else "")
    if not found.table.empty:
        yield _comparison(found)


def _is_plane(results: Results, axis: str) -> bool:
    others = [name for name in results.axes if name not in (axis, "seed")]
    return all(results.summary[name].nunique() == 1 for name in others)


def _matrix(found: Findings, axis: str) -> Table:
    """Hit rates: policies down, the axis across; MIN and no limit below."""
    table = found.results.summary
    means = table.pivot_table(values="hit_rate", index="policy", columns=axis, sort=False)
    means = means.reindex(list(dict.fromkeys(table["policy"])))
    online = [name for name in means.index if name not in found.offline]
    best = set()
    for j, name in enumerate(means.columns):
        column = means[name]
        top = column.loc[online].max() if online else column.max()
        best |= {(i, j + 1) for i, p in enumerate(means.index) if p in online and column[p] == top}
    rows = means.map(lambda x: known(x, ".1%"))
    for name, label in (("min_hit_rate", "MIN"), ("unbounded_hit_rate", "no limit")):
        if name in table:
            rows.loc[label] = [
                known(x, ".1%") for x in table.groupby(axis, sort=False)[name].mean()
            ]
    rows.columns = pd.Index([f"{c:,}" if isinstance(c, int) else str(c) for c in rows.columns])
    frame = rows.reset_index(names="policy")
    note = "Hit tokens / prompt tokens. Shaded: the best policy that cannot see the future."
    return Table(f"Hit rate by {axis_words(axis)}", frame, note, frozenset(best))


def _comparison(found: Findings) -> Table:
    table = found.table
    axes = [name for name in found.results.axes if name in table]
    frame = pd.DataFrame({"policy": table["policy"]})
    for name in axes:
        frame[name.rpartition(".")[2]] = table[name].map(
            lambda v: f"{v:,}" if isinstance(v, int) else str(v)
        )
    frame["hit rate"] = table["value"].map(lambda x: known(x, ".2%"))
    frame[f"{found.baseline}"] = table["baseline_value"].map(lambda x: known(x, ".2%"))
    frame["difference"] = (100 * table["difference"]).map(lambda x: known(x, "+.2f"))
    low, high = (100 * table["low"], 100 * table["high"])
    frame["95% interval"] = [f"{a:+.2f} … {b:+.2f}" for a, b in zip(low, high, strict=True)]
    frame["clear?"] = ["yes" if clear else "no" for clear in table["is_clear"]]
    first = table.iloc[0]
    drawn = f"{first['num_units']:,} {first['unit']}"
    seeds = f"{first['num_seeds']} seeds, then " if first["num_seeds"] > 1 else ""
    note = (
        f"Differences in percentage points, paired by request. Intervals: bootstrap over "
        f"{seeds}{drawn}; they cover other requests of this kind, not another day's traffic."
    )
    return Table(f"Every policy against {found.baseline}", frame, note, is_detail=True)


def figures(found: Findings) -> Iterator[Figure]:
    """Pictures that have something to show, each with what to read off it."""
    results, near = found.results, found.near
    place = f" {found.place()}" if found.place() else ""
    has_clock = bool(near.requests["ttft"].notna().any())
    axis = sweep_axis(results)
    drawn: list[tuple[str, Callable[[], Axes], str]] = []
    if axis is not None and _is_plane(results, axis):
        drawn.append(("hit_rate_by_size", partial(plots.hit_rate_by_size, results), BY_SIZE))
        if not found.table.empty:
            gain = partial(plots.gain, results, table=found.table)
            drawn.append(("gain", gain, GAIN.format(found.baseline)))
        if has_clock:
            drawn.append(("latency_by_size", partial(plots.latency_by_size, results), LATENCY))
    if is_known(near) and len(near.requests):
        drawn.append(("misses", partial(plots.misses, near), MISSES.format(place)))
    if "eviction_idle_p50" in near.summary:
        drawn.append(("eviction_age", partial(plots.eviction_age, near), AGE.format(place)))
    found_map = next(((run, m) for run in near.runs() if (m := BlockMap.of_run(run))), None)
    if found_map is not None:
        run, blocks = found_map
        policy = str(run.summary["policy"].iloc[0])
        draw_map = partial(plots.block_map, blocks, subtitle=policy)
        drawn.append(("block_map", draw_map, BLOCKS.format(policy, place)))
    drawn.append(("hit_rate", partial(plots.hit_rate_over_time, near), OVER_TIME.format(place)))
    if has_clock:
        one = len(near.summary) == 1
        memory = plots.memory_over_time if one else lambda r: plots.memory_panels(r)[0]
        drawn.append(("memory", partial(memory, near), MEMORY.format(place)))
        drawn.append(("ttft", partial(plots.latency_cdf, near, "ttft"), TTFT.format(place)))
        if near.requests["tpot"].notna().any():
            drawn.append(("tpot", partial(plots.latency_cdf, near, "tpot"), TPOT.format(place)))
    for name, draw, caption in drawn:
        yield Figure(name, draw(), caption)


ORPHANS = (
    "Orphans: the share of the pool that is cached at the end but cannot be hit, since a block "
    "before it is gone."
)
BY_SIZE = (
    "Read upwards: what a policy gains in the same memory; read to the right: what memory gains. "
    "No policy can be above MIN, no memory above the dotted line."
)
GAIN = (
    "Blue cells hit more than {0}, red cells less; a row that changes colour is a policy that "
    "helps only in some memory."
)
LATENCY = "How long users wait for the first token: hits shorten the median first, the tail last."
MISSES = (
    "The orange part, content that was evicted before it came back{0}, can be won by a better "
    "policy or more memory; grey is content that no cache had seen before."
)
AGE = (
    "Content is idle this long before it is evicted{0}; where the orange lies left of the blue, it "
    "goes before it would be wanted again. Bars: 10 to 90% of the blocks; dots: medians."
)
BLOCKS = (
    "One row is one block of the pool of {0}{1}: dark is what running requests hold, light blue is "
    "content that waits to be hit or evicted, orange is what several requests share."
)
OVER_TIME = "Where a bold line has become level{0}, the run is long enough for its number to count."
MEMORY = (
    "Dark is memory that running requests hold{0}, lighter is what is left to the cache; where "
    "dark reaches the top, requests wait or are preempted."
)
TTFT = "A curve further to the left waits less{0}; look at the height of 95% for the slow tail."
TPOT = (
    "Time per token while decoding{0}: prefills that a hit would save get in between and add to it."
)


def notes(results: Results, report: dict[str, Any]) -> Iterator[str]:
    """What a reader must know to read the numbers right."""
    table = results.summary
    refused = int(table["refused"].sum())
    if report.get("warmup_requests"):
        number = f"{report['warmup_requests']:,}"
        yield f"The first {number} requests of every run are left out (warm-up)."
    if refused:
        yield f"{refused:,} requests were refused, over all runs; they are in no hit rate."
    if table["ttft_p50"].isna().all():
        yield "Requests were served one after the other, without a clock: there are no latencies."
    elif "min_hit_rate" in table:
        yield (
            "MIN and “no limit” are for requests served one at a time; in a run with a clock they "
            "are a yardstick, not a proof."
        )
