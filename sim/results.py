"""What happened: one row per run, one per request and one per moment, as pandas tables."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from sim.columns import REQUEST_COLUMNS as REQUEST_COLUMNS
from sim.columns import SERIES_COLUMNS as SERIES_COLUMNS
from sim.columns import column, identifiers, numbers, sync, table, with_latencies
from sim.errors import ConfigError, KvsimError
from sim.spec.axes import Setting
from sim.summary import HIT_RATES, Number, headline, recount, summary_row

FILES = ("requests.parquet", "series.parquet", "summary.csv")


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """What one or several runs produced.

    Every table begins with `policy` and, for a sweep, its axes: together they name the run.
    *summary*: one row per run (`sim.summary.summary_row`).
    *requests*: one row per request, in arrival order. Seconds: `queue_time` from arrival to the
    first schedule, `ttft` from arrival to the first token, `e2e` from arrival to the end, `tpot`
    from the first to the last token, per token after the first (NaN with fewer than 2 tokens).
    `tpot` and `e2e` are those of finished requests. Times that did not happen are NaN.
    `num_cached_tokens` is -1 where a request was never admitted.
    *series*: the state over time. `num_cached_blocks` are idle but cached blocks; used, cached and
    blank blocks together are the pool. `hit_rate` is since the start, `hit_rate_window` vLLM's.
    """

    summary: pd.DataFrame
    requests: pd.DataFrame
    series: pd.DataFrame

    @classmethod
    def from_run(
        cls,
        label: str,
        requests: Mapping[str, Sequence[Any]],
        series: Mapping[str, Sequence[Any]],
        totals: Mapping[str, Number],
        settings: Mapping[str, Any] | None = None,
    ) -> Results:
        """The tables of one run, from the columns and counters that its recorder kept.

        Columns beyond those of this file are kept, at the end. *settings* may give
        `kv_bytes_per_token`, without which sizes in bytes are NaN.
        """
        bytes_per_token = float((settings or {}).get("kv_bytes_per_token", nan))
        request_table = with_latencies(table(label, requests, REQUEST_COLUMNS))
        series_table = table(label, series, SERIES_COLUMNS)
        for kind in ("used", "cached"):
            block_bytes = bytes_per_token * totals["block_size"]
            series_table[f"{kind}_bytes"] = series_table[f"num_{kind}_blocks"] * block_bytes
        rates = series_table["hit_rate_window"]
        window = float(rates.iloc[-1]) if len(rates) else nan
        row = summary_row(label, request_table, totals, bytes_per_token, window)
        summary = pd.DataFrame([row]).astype({"policy": "string"})
        return cls(summary, request_table, series_table)

    def without_hit_rates(self) -> Results:
        """The same with NaN for every hit rate: the workload has lengths only, no content."""
        summary = self.summary.assign(**dict.fromkeys(HIT_RATES, nan))
        series = self.series.assign(hit_rate=nan, hit_rate_window=nan)
        return Results(summary, self.requests, series)

    @classmethod
    def concat(cls, parts: Iterable[Results]) -> Results:
        """All runs of *parts* in one, in their order; ConfigError if two have the same name."""
        parts = list(parts)
        axes = list(dict.fromkeys(name for part in parts for name in part.axes))
        tables = [
            pd.concat([getattr(part, name) for part in parts], ignore_index=True)
            for name in ("summary", "requests", "series")
        ]
        if any(tuple(axes) != part.axes for part in parts):
            tables = [_axes_first(frame, axes) for frame in tables]
        summary, requests, series = tables
        named = summary[["policy", *axes]]
        if named.duplicated().any():
            twice = " ".join(str(x) for x in named[named.duplicated()].iloc[0])
            raise ConfigError(f"two runs are labelled {twice!r}; labels must differ")
        for name in ("request_id", "session"):
            requests[name] = identifiers(requests[name])
        return cls(summary, requests, series)

    @property
    def axes(self) -> tuple[str, ...]:
        """What was varied besides the policy: the columns from `policy` to `num_requests`."""
        names = list(self.summary.columns)
        return tuple(names[1 : names.index("num_requests")])

    def runs(self) -> Iterator[Results]:
        """Every run on its own, in the order of the summary."""
        if len(self.summary) == 1:
            yield self
            return
        names = ["policy", *self.axes]
        parts = [
            dict(iter(frame.groupby(names, sort=False, dropna=False)))
            for frame in (self.requests, self.series)
        ]
        for i in range(len(self.summary)):
            row = self.summary.iloc[i : i + 1]
            name = tuple(row[names].iloc[0])
            requests, series = (
                part[name] if name in part else frame.iloc[:0]
                for part, frame in zip(parts, (self.requests, self.series), strict=True)
            )
            yield Results(row, requests, series)

    def select(self, policy: str | Sequence[str] | None = None, **setting: Any) -> Results:
        """The runs of these policies at this setting: `select("lru", seed=0)`.

        An axis may be named by the last part of its path: `num_blocks` for `cache.num_blocks`.
        KvsimError if there are none.
        """
        wanted: dict[str, Any] = {} if policy is None else {"policy": policy}
        wanted |= {self.axis(name): value for name, value in setting.items()}
        tables = []
        for frame in (self.summary, self.requests, self.series):
            keep = pd.Series(True, index=frame.index)
            for name, value in wanted.items():
                values = [value] if pd.api.types.is_scalar(value) else list(value)
                keep &= frame[name].isin(values)
            tables.append(frame[keep].reset_index(drop=True))
        if not len(tables[0]):
            raise KvsimError(f"no run has {wanted}; this is {self!r}")
        return Results(*tables)

    def axis(self, name: str) -> str:
        """The axis called *name*, in full or by the last part of its path."""
        found = [axis for axis in self.axes if name in (axis, axis.rpartition(".")[2])]
        if len(found) != 1:
            known = ", ".join(self.axes) or "none"
            raise KvsimError(f"{name} names {len(found) or 'no'} axis of these results ({known})")
        return found[0]

    def compare(self, baseline: str | None = None, **options: Any) -> pd.DataFrame:
        """Paired differences from *baseline* with confidence intervals: `sim.analysis.compare`."""
        from sim.analysis.compare import compare

        return compare(self, baseline, **options)

    def misses(self) -> pd.DataFrame:
        """Prompt tokens by what became of them: see `sim.analysis.misses`."""
        from sim.analysis.misses import attribution

        return attribution(self)

    def with_columns(self, columns: Mapping[str, Any]) -> Results:
        """The same with more columns in the summary."""
        return Results(self.summary.assign(**columns), self.requests, self.series)

    def relabelled(self, policy: str, setting: Setting) -> Results:
        """The only run under another name; the tables are new, their columns are shared."""
        frames = []
        for frame in (self.summary, self.requests, self.series):
            new = frame.assign(policy=column([policy] * len(frame), "text"))
            for i, (name, value) in enumerate(setting.items(), start=1):
                new.insert(i, name, pd.Series([value] * len(new), index=new.index))
            frames.append(new)
        return Results(*frames)

    def after_warmup(self, num_requests: int) -> Results:
        """The same runs without the first *num_requests* requests of each, in all statistics.

        What these requests left in the cache stays; steps, evictions, peaks and the series are
        those of the whole run. Rates are NaN where no request is left.
        """
        if not num_requests:
            return self
        parts = []
        for run in self.runs():
            requests = run.requests.iloc[num_requests:].reset_index(drop=True)
            summary = recount(run.summary, requests)
            parts.append(Results(summary, requests, run.series))
        return Results.concat(parts)

    @property
    def hit_rate(self) -> float:
        """Hit tokens / queried tokens of the only run; NaN if nothing was queried."""
        if len(self.summary) != 1:
            raise ValueError(f"{self!r} has no single hit rate; see .summary['hit_rate']")
        return float(self.summary["hit_rate"].iloc[0])

    def save(self, folder: str | Path) -> Path:
        """Write the three tables into *folder*; equal results give equal bytes.

        An interruption at any moment leaves each file whole, old or new. The summary is replaced
        last.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix=".saving-") as scratch:
            written = [Path(scratch, name) for name in FILES]
            self.requests.to_parquet(written[0], engine="pyarrow", index=False)
            self.series.to_parquet(written[1], engine="pyarrow", index=False)
            self.summary.to_csv(written[2], index=False, lineterminator="\n")
            for path in written:
                sync(path)
            for path in written:
                os.replace(path, folder / path.name)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Results:
        """What `save` wrote into *folder*."""
        requests, series, summary = (Path(folder, name) for name in FILES)
        for path in (requests, series, summary):
            if not path.is_file():
                raise KvsimError(f"{path}: no such file; saved results are {', '.join(FILES)}")
        with summary.open(encoding="utf-8", newline="") as file:
            names, *rows = csv.reader(file)
        if "num_requests" not in names:
            raise KvsimError(f"{summary}: has no column num_requests; was it written by kvsim?")
        texts = dict(zip(names, zip(*rows, strict=True), strict=True))
        columns = {name: numbers(values) for name, values in texts.items() if name != "policy"}
        return cls(
            pd.DataFrame({"policy": column(texts["policy"], "text"), **columns}),
            pd.read_parquet(requests, engine="pyarrow"),
            pd.read_parquet(series, engine="pyarrow"),
        )

    def to_json(self) -> str:
        """The summary as a JSON array with one object per run; NaN becomes null."""
        rows = self.summary.astype(object).where(self.summary.notna(), None)
        return json.dumps(rows.to_dict("records"), allow_nan=False, indent=2)

    def _repr_html_(self) -> str:
        return headline(self.summary).to_html(index=False, border=0, justify="right")

    def __repr__(self) -> str:
        return f"Results({', '.join(map(repr, self.summary['policy']))})"


def load(folder: str | Path) -> Results:
    """The results that `kvsim run` or `Results.save` wrote into *folder*."""
    return Results.load(folder)


def _axes_first(frame: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """*frame* with the columns *axes* behind the policy; missing ones are NaN."""
    others = [name for name in frame.columns if name != "policy" and name not in axes]
    return frame.reindex(columns=["policy", *axes, *others])
