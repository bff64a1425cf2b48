"""Which format a trace has, seen from its name and its first row."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim.errors import TraceError
from sim.spec.build import build
from sim.workload import Workload
from workloads.compressed import SUFFIXES
from workloads.data import find
from workloads.fields import record
from workloads.lengths import HEADERS
from workloads.lines import lines, parse, text_of
from workloads.rows import items

OBJECT_NAMES = (".lis", ".trace", ".keys")
JSON_NAMES = (".jsonl", ".json", ".ndjson")

Sign = Callable[[Mapping[str, Any]], bool]

SIGNS: dict[str, Sign] = {  # the first that is true of the first row
    "own": lambda row: "kvsim_trace" in row,
    "ragpulse": lambda row: isinstance(row.get("hash_ids"), dict),
    "bailian": lambda row: "hash_ids" in row and "parent_chat_id" in row,
    "mooncake": lambda row: "hash_ids" in row and "input_length" in row,
    "weka": lambda row: "requests" in row and "block_size" in row,
    "dynamo": lambda row: isinstance(row.get("event"), dict),
    "tracelab": lambda row: "newly_append_tokens" in row,
    "kv_events": lambda row: "ts" in row and "events" in row,
    "text_log": lambda row: bool({"messages", "conversations", "input"} & set(row)),
}


def detect(path: str | os.PathLike[str]) -> str:
    """The short name of the workload that reads *path*; TraceError if none is recognised."""
    file = find(path)
    name = file.name
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    if name.endswith(".parquet"):
        return "own"
    if name.endswith(OBJECT_NAMES) or "oraclegeneral" in name.lower():
        return "objects"
    if name.endswith(".csv"):
        return _by_header(file, next(lines(file))[1])
    return _by_json(file, next(lines(file))[1])


def open_trace(
    path: str | os.PathLike[str], format: str | None = None, **arguments: Any
) -> Workload:
    """The workload that reads *path*, of the *format* named or detected."""
    use = format or detect(path)
    spec = {"use": use, "path": str(path), **arguments}
    workload: Workload = build("workload", spec, where=use)
    return workload


def _by_json(path: Path, first: bytes) -> str:
    if first.startswith(b"["):
        if _is_batch(first):
            return "kv_events"
        found = next(items(path), None)  # the file is one array
        if found is None:
            raise _unknown(path, "it is an empty list")
        first = found[1]
    try:
        row = record(parse(first))
    except ValueError as fault:
        raise _unknown(path, str(fault)) from None
    for name, fits in SIGNS.items():
        if fits(row):
            return name
    raise _unknown(path, f"the first row has {', '.join(sorted(row))[:100]}")


def _is_batch(line: bytes) -> bool:
    """Whether *line* is a batch of KV events as a list: time and events."""
    try:
        value = parse(line)
    except ValueError:
        return False
    return isinstance(value, list) and len(value) > 1 and isinstance(value[1], list)


def _by_header(path: Path, first: bytes) -> str:
    try:
        header = text_of(first)
    except ValueError as fault:
        raise _unknown(path, str(fault)) from None
    names = {name.strip() for name in header.split(",")}
    if any(set(known[:3]) <= names for known in HEADERS.values()):
        return "lengths"
    if names & {"key", "block_id"}:
        return "objects"
    raise _unknown(path, f"the header is {header[:100]!r}")


def _unknown(path: Path, why: str) -> TraceError:
    known = ", ".join((*SIGNS, "lengths", "objects"))
    return TraceError(
        f"{path}:1: its format is not recognised ({why}); say --format, one of {known}"
    )
