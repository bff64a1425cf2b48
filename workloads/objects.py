"""Object traces of cache research: one key per access, for checks of policies without prefixes.

Layouts: `arc` (lines `first_page num_pages ...`, one access per page; the ARC paper's traces),
`oracle_general` (libCacheSim's 24-byte records: time u32, key u64, size u32, next i64, little
endian), `int32_be` (big-endian 32-bit keys; cache2k), `cachelib` (CSV with a column `key` or
`block_id`), `keys` (one key per line, any text).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sim.errors import TraceError
from sim.keys import ChunkKeys
from sim.request import Request
from sim.workload import Workload
from workloads.arguments import whole_number
from workloads.compressed import SUFFIXES, read_all
from workloads.data import find
from workloads.lines import fields, lines

Layout = Literal["arc", "oracle_general", "int32_be", "cachelib", "keys"]
Keys = npt.NDArray[np.int64]

RECORD = np.dtype([("time", "<u4"), ("key", "<u8"), ("size", "<u4"), ("next", "<i8")])
MAX_ACCESSES = 2**27
KEY_COLUMNS = ("key", "block_id")


class Objects(Workload):
    """Every access as a request whose prompt is one full block, the object, and one token more.

    *layout*: one of the above; None takes it from the file's name. *limit*: read only the first
    accesses. `ids` has the objects in order, numbered from 0 by first appearance. Requests arrive
    one second apart, or when the trace says. Hits count objects: sizes are ignored.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int = 16,
        *,
        layout: Layout | None = None,
        limit: int | None = None,
    ) -> None:
        self.block_size = whole_number("Objects", "block_size", block_size, 1)
        limit = None if limit is None else whole_number("Objects", "limit", limit, 1)
        self.path = find(path)
        self.layout = layout or layout_of(self.path)
        keys, self._times = READERS[self.layout](self.path, limit)
        if not len(keys):
            raise TraceError(f"{self.path}: holds no accesses; is it the right file?")
        self.ids = _numbered(keys)

    def __iter__(self) -> Iterator[Request]:
        size = self.block_size
        columns: tuple[Any, ...] = (self.ids, self._times)
        numbers = memoryview(columns[0])
        times = range(len(self.ids)) if self._times is None else memoryview(columns[1])
        for i, (number, time) in enumerate(zip(numbers, times, strict=True)):
            keys = ChunkKeys((number,), size, size, size, size + 2, -1 - i)
            yield Request(i, keys, size + 1, 1, float(time))

    def __len__(self) -> int:
        return len(self.ids)


def layout_of(path: Path) -> Layout:
    """The layout that the name of *path* tells; TraceError if it tells none."""
    name = path.name
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    if name.endswith(".lis"):
        return "arc"
    if "oraclegeneral" in name.lower():
        return "oracle_general"
    if name.endswith(".csv"):
        return "cachelib"
    if name.endswith((".txt", ".keys")):
        return "keys"
    if name.endswith(".trace") and "cache2k" in name:
        return "int32_be"
    raise TraceError(f"{path}: its name does not tell the layout; say layout: {', '.join(READERS)}")


def _numbered(keys: Keys) -> Keys:
    """The keys, numbered from 0 by first appearance."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


Read = tuple[Keys, npt.NDArray[np.float64] | None]


def _arc(path: Path, limit: int | None) -> Read:
    pages, room = array("q"), limit or MAX_ACCESSES
    for line, text in lines(path):
        try:
            first, count = (int(word) for word in text.split()[:2])
        except ValueError:
            raise _bad_line(path, line, "it must begin with two whole numbers") from None
        if first < 0 or count < 0 or first + count >= 2**63:
            raise _bad_line(path, line, "page and count must be at least 0 and below 2**63")
        if count > room and limit is None:
            raise _bad_line(path, line, f"the trace has more than {MAX_ACCESSES} accesses")
        pages.extend(range(first, first + min(count, room)))
        room -= min(count, room)
        if not room:
            break
    return np.array(pages, dtype=np.int64), None


def _text_keys(path: Path, limit: int | None) -> Read:
    numbers: dict[bytes, int] = {}
    keys = (numbers.setdefault(text, len(numbers)) for _, text in islice(lines(path), limit))
    return np.fromiter(keys, np.int64), None


def _cachelib(path: Path, limit: int | None) -> Read:
    rows = lines(path)
    line, header = next(rows)
    names = _fields(path, line, header)
    column = next((names.index(name) for name in KEY_COLUMNS if name in names), None)
    if column is None:
        raise _bad_line(path, line, "the header must name a column key or block_id")
    time = names.index("op_time") if "op_time" in names else None
    numbers: dict[str, int] = {}
    keys, times = array("q"), array("d")
    for line, text in islice(rows, limit):
        values = _fields(path, line, text)
        if len(values) != len(names):
            raise _bad_line(path, line, f"it has {len(values)} fields, the header {len(names)}")
        keys.append(numbers.setdefault(values[column], len(numbers)))
        if time is not None:
            times.append(_seconds(path, line, values[time]))
    return np.array(keys, dtype=np.int64), _ascending(path, np.array(times)) if times else None


def _fields(path: Path, line: int, text: bytes) -> list[str]:
    """The fields of a line of CSV; TraceError if it is none."""
    try:
        return fields(text)
    except ValueError as fault:
        raise _bad_line(path, line, str(fault)) from None


def _seconds(path: Path, line: int, text: str) -> float:
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise _bad_line(path, line, f"op_time is {text[:30]!r}; it must be whole seconds")
    return float(text)


def _ascending(path: Path, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if (np.diff(times) < 0).any():
        late = int(np.argmax(np.diff(times) < 0)) + 1
        raise TraceError(
            f"{path}: access {late} (from 0) is earlier than the one before it; the order of an "
            "object trace is its meaning; sort the file, or read its keys alone"
        )
    since_first: npt.NDArray[np.float64] = times - times[0]
    return since_first


def _big_endian(path: Path, limit: int | None) -> Read:
    data = read_all(path)
    if len(data) % 4:
        raise TraceError(f"{path}: has {len(data)} bytes; they must be whole 4-byte keys")
    return np.frombuffer(data, dtype=">i4")[:limit].astype(np.int64), None


def _oracle_general(path: Path, limit: int | None) -> Read:
    data = read_all(path)
    if len(data) % RECORD.itemsize:
        raise TraceError(
            f"{path}: has {len(data)} bytes; they must be whole records of {RECORD.itemsize}"
        )
    records = np.frombuffer(data, dtype=RECORD)[:limit]
    times = records["time"].astype(np.float64)
    return records["key"].view(np.int64).copy(), _ascending(path, times) if len(times) else None


def _bad_line(path: Path, line: int, rule: str) -> TraceError:
    return TraceError(f"{path}:{line}: {rule}; correct or remove the line")


READERS: dict[Layout, Callable[[Path, int | None], Read]] = {
    "arc": _arc,
    "oracle_general": _oracle_general,
    "int32_be": _big_endian,
    "cachelib": _cachelib,
    "keys": _text_keys,
}
