"""What happened: one row per run, one per request and one per moment, as pandas tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from sim.errors import ConfigError, KvsimError
from sim.summary import Number, headline, summary_row

REQUEST_COLUMNS = {
    "request_id": "id",
    "session": "id",
    "status": "text",
    "reason": "text",
    "arrival_time": "float64",
    "num_prompt_tokens": "int64",
    "max_tokens": "int64",
    "num_output_tokens": "int64",
    "num_cached_tokens": "int64",
    "first_scheduled_time": "float64",
    "first_token_time": "float64",
    "finish_time": "float64",
    "num_preemptions": "int64",
}
SERIES_COLUMNS = {
    "time": "float64",
    "num_used_blocks": "int64",
    "num_cached_blocks": "int64",
    "num_blank_blocks": "int64",
    "num_running": "int64",
    "num_waiting": "int64",
    "hit_rate_window": "float64",
    "hit_rate": "float64",
    "num_preemptions": "int64",
    "num_evicted_blocks": "int64",
}
FILES = ("requests.parquet", "series.parquet", "summary.csv")


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """What one or several runs produced; every table begins with `policy`, the run's label.

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
        row = summary_row(label, request_table, totals, bytes_per_token)
        summary = pd.DataFrame([row]).astype({"policy": "string"})
        return cls(summary, request_table, series_table)

    @classmethod
    def concat(cls, parts: Iterable[Results]) -> Results:
        """All runs of *parts* in one, in their order; ConfigError if two share a label."""
        parts = list(parts)
        summary = pd.concat([part.summary for part in parts], ignore_index=True)
        twice = summary["policy"][summary["policy"].duplicated()]
        if len(twice):
            raise ConfigError(f"two runs are labelled {twice.iloc[0]!r}; labels must differ")
        requests = pd.concat([part.requests for part in parts], ignore_index=True)
        for name in ("request_id", "session"):
            requests[name] = identifiers(requests[name])
        series = pd.concat([part.series for part in parts], ignore_index=True)
        return cls(summary, requests, series)

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
        rows = pd.read_csv(summary, dtype="string", keep_default_na=False)
        measured = {name: numbers(rows[name]) for name in rows.columns if name != "policy"}
        return cls(
            rows.assign(**measured),
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


def table(
    label: str, columns: Mapping[str, Sequence[Any]], types: Mapping[str, str]
) -> pd.DataFrame:
    """*columns* as a table: the label, the columns of *types* as these types, then the others."""
    typed = {name: column(columns[name], kind) for name, kind in types.items()}
    others = {name: values for name, values in columns.items() if name not in types}
    frame = pd.DataFrame({**typed, **others})
    frame.insert(0, "policy", column([label] * len(frame), "text"))
    return frame


def column(values: Sequence[Any], kind: str) -> pd.Series[Any]:
    """*values* as a column of one type, however many there are."""
    if kind == "id":
        return identifiers(values)
    return pd.Series(list(values), dtype="string" if kind == "text" else kind)


def identifiers(values: Iterable[Any]) -> pd.Series[Any]:
    """Names as integers if all of them are (or None), else as text: a column has one type."""
    names = pd.Series(list(values), dtype=object)
    if pd.api.types.infer_dtype(names, skipna=True) not in ("integer", "empty"):
        return names.map(str, na_action="ignore").astype("string")
    return names.astype("Int64" if names.isna().any() else "int64")


def numbers(texts: pd.Series[str]) -> pd.Series[Any]:
    """*texts* as integers, else as floats (empty: NaN) that are exactly those written, else as is.

    pandas parses floats exactly by default only in some of its versions.
    """
    for convert in (int, lambda text: float(text or "nan")):
        try:
            return pd.Series([convert(text) for text in texts])
        except ValueError:
            continue
    return texts


def with_latencies(requests: pd.DataFrame) -> pd.DataFrame:
    """*requests* with what each one waited for, in seconds."""
    finished = requests["finish_time"].where(requests["status"] == "finished")
    num_gaps = requests["num_output_tokens"] - 1
    decoding = finished - requests["first_token_time"]
    return requests.assign(
        queue_time=requests["first_scheduled_time"] - requests["arrival_time"],
        ttft=requests["first_token_time"] - requests["arrival_time"],
        tpot=decoding / num_gaps.where(num_gaps > 0),
        e2e=finished - requests["arrival_time"],
    )


def sync(path: Path) -> None:
    """Wait until *path* is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
