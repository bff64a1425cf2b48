"""The columns of results' tables, and their types, which survive a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

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


def numbers(texts: Sequence[str]) -> pd.Series[Any]:
    """*texts* as integers, else as floats (empty: NaN) that are exactly those written, else as is.

    pandas parses floats exactly by default only in some of its versions.
    """
    for convert in (int, lambda text: float(text or "nan")):
        try:
            return pd.Series([convert(text) for text in texts])
        except ValueError:
            continue
    return pd.Series(list(texts), dtype="string")


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
