"""Step traces on disk: `.npz` (columns, small and fast) or `.jsonl` (one line per request or step).

Both hold the same. Reading checks what it reads: an error is one line that names file and line.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gpu_backend.content import Content, Extra
from gpu_backend.trace import (
    EVENT_KINDS,
    Event,
    StepTrace,
    TracedRequest,
    TracedRow,
    TracedStep,
)
from sim.errors import KvsimError, TraceError

VERSION = 1
SUFFIXES = (".npz", ".jsonl")
T = TypeVar("T")


def is_step_trace(path: Path) -> bool:
    """Whether the name of *path* says that it is a step trace."""
    return path.suffix in SUFFIXES


def save(trace: StepTrace, path: Path) -> None:
    """Write *trace*, in the form that the suffix of *path* says, all or nothing."""
    if not is_step_trace(path):
        raise TraceError(f"{path}: a step trace's name ends in {' or '.join(SUFFIXES)}")
    scratch = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npz":
            np.savez_compressed(scratch, **_columns(trace))
        else:
            with scratch.open("w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in _lines(trace))
        scratch.replace(path)
    except OSError as error:
        raise KvsimError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        scratch.unlink(missing_ok=True)


def load(path: Path) -> StepTrace:
    """Read a step trace; TraceError, in one line, if it is none."""
    if not is_step_trace(path):
        raise TraceError(f"{path}: a step trace's name ends in {' or '.join(SUFFIXES)}")
    try:
        return _from_npz(path) if path.suffix == ".npz" else _from_jsonl(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextmanager
def _blamed(place: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise TraceError(f"{place}: is no step trace of version {VERSION}: {reason}") from None


# Lines


def _lines(trace: StepTrace) -> Iterator[dict[str, Any]]:
    yield _header(trace)
    for request in trace.requests:
        yield {
            "request": request.request_id,
            "num_prompt_tokens": request.num_prompt_tokens,
            "tokens": request.content.tokens.tolist(),
            "extras": [list(extra) for extra in request.content.extras],
        }
    for step in trace.steps:
        rows = [[*row[:4], row.block_ids.tolist()] for row in step.rows]
        yield {"time": step.time, "events": [list(e) for e in step.events], "rows": rows}
    yield {"trailing": [list(event) for event in trace.trailing]}


def _header(trace: StepTrace) -> dict[str, Any]:
    return {
        "kvsim_step_trace": VERSION,
        "num_blocks": trace.num_blocks,
        "num_offload_blocks": trace.num_offload_blocks,
        "block_size": trace.block_size,
        "about": dict(trace.about),
    }


def _from_jsonl(path: Path) -> StepTrace:
    header: dict[str, Any] = {}
    requests: list[TracedRequest] = []
    steps: list[TracedStep] = []
    trailing: list[Event] = []
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            with _blamed(f"{path}:{number}"):
                line = json.loads(text)
                if number == 1:
                    header = _checked(line)
                elif "request" in line:
                    requests.append(_request(line))
                elif "rows" in line:
                    steps.append(_step(line))
                else:
                    trailing = [_event(*event) for event in line["trailing"]]
    with _blamed(str(path)):
        return _whole(header, requests, steps, trailing)


def _checked(header: Any) -> dict[str, Any]:
    if not isinstance(header, dict) or header.get("kvsim_step_trace") != VERSION:
        raise ValueError(f"its first line must hold kvsim_step_trace: {VERSION}")
    return header


def _request(line: dict[str, Any]) -> TracedRequest:
    extras = tuple(Extra(str(label), int(a), int(b)) for label, a, b in line["extras"])
    tokens = np.array(line["tokens"], dtype=np.int64)
    return TracedRequest(line["request"], int(line["num_prompt_tokens"]), Content(tokens, extras))


def _step(line: dict[str, Any]) -> TracedStep:
    rows = [
        TracedRow(int(r), int(c), int(n), bool(new), np.array(ids, dtype=np.int32))
        for r, c, n, new, ids in line["rows"]
    ]
    return TracedStep(float(line["time"]), [_event(*e) for e in line["events"]], rows)


def _event(kind: str, number: int, source: int) -> Event:
    known = {name: name for name in EVENT_KINDS}
    return Event(known[kind], int(number), int(source))  # type: ignore[index]


def _whole(
    header: dict[str, Any],
    requests: list[TracedRequest],
    steps: list[TracedStep],
    trailing: Sequence[Event],
) -> StepTrace:
    """The trace, if its parts fit together."""
    if not header:
        raise ValueError("it is empty")
    num_blocks, block_size = int(header["num_blocks"]), int(header["block_size"])
    for i, step in enumerate(steps):
        for row in step.rows:
            if not 0 <= row.request < len(requests):
                raise ValueError(f"step {i} has request {row.request} of {len(requests)}")
            end = row.num_computed_tokens + row.num_scheduled_tokens
            if row.num_computed_tokens < 0 or row.num_scheduled_tokens < 1:
                raise ValueError(f"step {i} schedules {row.num_scheduled_tokens} tokens")
            if end > len(requests[row.request].content.tokens):
                raise ValueError(f"step {i} schedules {end} tokens of which some are not given")
            if (
                len(row.block_ids)
                and not 0 <= row.block_ids.min() <= row.block_ids.max() < num_blocks
            ):
                raise ValueError(f"step {i} names a block that is not 0 to {num_blocks - 1}")
    offload = int(header["num_offload_blocks"])
    return StepTrace(num_blocks, block_size, requests, steps, header["about"], trailing, offload)


# Columns


def _columns(trace: StepTrace) -> dict[str, Any]:
    rows = list(trace.rows())
    events = [e for step in trace.steps for e in step.events] + list(trace.trailing)
    names = [[r.request_id, [list(e) for e in r.content.extras]] for r in trace.requests]
    tokens = [r.content.tokens for r in trace.requests]
    return {
        "header": np.array(json.dumps(_header(trace))),
        "names": np.array(json.dumps(names)),
        "num_prompt_tokens": np.array([r.num_prompt_tokens for r in trace.requests], np.int64),
        "tokens": _joined(tokens, np.int64),
        "token_ends": _ends(tokens),
        "times": np.array([step.time for step in trace.steps], np.float64),
        "row_ends": _ends([step.rows for step in trace.steps]),
        "rows": np.array([row[:4] for row in rows], np.int64).reshape(-1, 4),
        "block_ids": _joined([row.block_ids for row in rows], np.int32),
        "block_ends": _ends([row.block_ids for row in rows]),
        "events": np.array(
            [(EVENT_KINDS.index(e.kind), e.number, e.source) for e in events], np.int64
        ).reshape(-1, 3),
        "event_ends": _ends([*(step.events for step in trace.steps), trace.trailing]),
    }


def _joined(parts: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


def _ends(parts: Sequence[Any]) -> Any:
    return np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)


def _from_npz(path: Path) -> StepTrace:
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise TraceError(f"{path}: is no npz file that can be read: {error}") from None
    with _blamed(str(path)):
        header = _checked(json.loads(str(columns["header"])))
        tokens = _split(columns["tokens"], columns["token_ends"], lambda part: part)
        requests = [
            TracedRequest(name, int(n), Content(own, tuple(Extra(*e) for e in extras)))
            for (name, extras), n, own in zip(
                json.loads(str(columns["names"])), columns["num_prompt_tokens"], tokens, strict=True
            )
        ]
        blocks = _split(columns["block_ids"], columns["block_ends"], lambda part: part)
        rows = [
            TracedRow(r, c, n, bool(new), ids)
            for (r, c, n, new), ids in zip(columns["rows"].tolist(), blocks, strict=True)
        ]
        events = [Event(EVENT_KINDS[kind], *rest) for kind, *rest in columns["events"].tolist()]
        by_step = _split(events, columns["event_ends"], list)
        times, parts = columns["times"].tolist(), _split(rows, columns["row_ends"], list)
        steps = [TracedStep(*one) for one in zip(times, by_step[:-1], parts, strict=True)]
        return _whole(header, requests, steps, by_step[-1])


def _split(whole: Any, ends: Any, make: Callable[[Any], T]) -> list[T]:
    return [make(whole[a:b]) for a, b in pairwise(ends.tolist())]
