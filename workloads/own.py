"""kvsim's own trace format: everything a request has, in JSON lines or Parquet.

The first line is `{"kvsim_trace": 1, "block_size", "has_content", "hints": [...], "notes":
[...]}`; every other line is a request as docs/traces.md describes. What is absent has the
default of `sim.request.Request`. Reading gives the requests that were written, in their order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from reprlib import repr as short_repr
from typing import Any

from sim.errors import TraceError
from sim.keys import BlockKeys, ChunkKeys, Image, SegmentKeys, TokenKeys
from sim.request import Request
from sim.workload import Workload
from workloads import fields
from workloads.arguments import real_number, whole_number
from workloads.bad_rows import BadRows
from workloads.data import find
from workloads.lines import parse
from workloads.own_rows import VERSION, rows
from workloads.scoped_keys import ScopedKeys

HASHES = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")


class Own(Workload):
    """The requests of a trace in kvsim's format.

    *path*: .jsonl (also .gz, .xz, .zst) or .parquet. *block_size*: the trace's unless given.
    *limit*: read only the first requests. *time_scale* stretches arrival, think and abort times.
    Bad rows are refused, or with *lenient* left out and noted.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int | None = None,
        *,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        self.path = find(path)
        limit = None if limit is None else whole_number("Own", "limit", limit, 1)
        self.time_scale = real_number("Own", "time_scale", time_scale)
        lines = rows(self.path)
        self._read_header(*next(lines))
        if block_size is not None:
            self.block_size = whole_number("Own", "block_size", block_size, 1)
        self._requests = self._read(islice(lines, limit), lenient)

    def __iter__(self) -> Iterator[Request]:
        return (request.fresh() for request in self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def _read_header(self, line: int, text: bytes) -> None:
        try:
            header = fields.record(parse(text))
            version = fields.whole(header, "kvsim_trace")
            if version != VERSION:
                raise ValueError(f"kvsim_trace is {version}; this kvsim reads version {VERSION}")
            self.block_size = fields.whole(header, "block_size")
            self.has_content = header.get("has_content", True) is True
            self.hints = frozenset(_texts(header, "hints"))
            self.notes = tuple(_texts(header, "notes"))
        except ValueError as fault:
            raise TraceError(
                f"{self.path}:{line}: {fault}; a kvsim trace begins with its header; "
                "`kvsim trace convert` writes one"
            ) from None

    def _read(self, lines: Iterator[tuple[int, bytes]], lenient: bool) -> list[Request]:
        requests: list[Request] = []
        bad, num_rows, last = BadRows(), 0, 0.0
        for line, text in lines:
            num_rows += 1
            try:
                request = self._request(fields.record(parse(text)))
                if request.arrival_time < last:
                    raise ValueError("arrival_time is before that of the row above")
            except ValueError as fault:
                bad.add(line, str(fault))
            else:
                requests.append(request)
                last = request.arrival_time
        if not lenient or not requests:
            bad.refuse(self.path, "correct these rows, or set lenient to leave them out")
        if not requests:
            raise TraceError(f"{self.path}: holds no requests; was it written to the end?")
        if bad:
            self.notes += (bad.note(num_rows),)
        return requests

    def _request(self, row: fields.Record) -> Request:
        name = fields.name_of(row, "request_id")
        if name is None:
            raise ValueError("request_id is missing")
        num_prompt, num_output = (
            fields.whole(row, "num_prompt_tokens"),
            fields.whole(row, "max_tokens"),
        )
        fields.check_length(num_prompt + num_output, self.block_size, "the number of tokens")
        request = Request(
            name,
            _scoped_keys(row, num_prompt, num_prompt + num_output, self.block_size),
            num_prompt,
            num_output,
            fields.time(row, "arrival_time", "seconds") * self.time_scale,
        )
        if "priority" in row:
            request.priority = fields.whole(row, "priority", -(2**31))
        if "abort_time" in row:
            request.abort_time = fields.time(row, "abort_time", "seconds") * self.time_scale
        request.skip_reading_prefix_cache = row.get("skip_reading_prefix_cache") is True
        request.session = fields.name_of(row, "session")
        if "hints" in row:
            request.hints = fields.record(row["hints"], "hints")
        if "follows" in row:
            request.follows = _names(row, "follows")
            request.think_time = fields.time(row, "think_time", "seconds") * self.time_scale
        missing = sorted(self.hints - set(request.hints or {}))
        if missing:
            raise ValueError(f"hints has no {', '.join(missing)}, which the header promises")
        return request


def _scoped_keys(
    row: fields.Record, num_prompt: int, num_tokens: int, block_size: int
) -> BlockKeys:
    """The content of a row, seen only by its owners."""
    keys = _keys(row, num_prompt, num_tokens, block_size)
    for scope in reversed(_texts(row, "scopes")):
        keys = ScopedKeys(keys, scope)
    return keys


def _keys(row: fields.Record, num_prompt: int, num_tokens: int, block_size: int) -> BlockKeys:
    """The content of a row: ids of equal chunks, ids of segments, or tokens."""
    if "token_ids" in row:
        return _token_keys(row, num_tokens, block_size)
    ids = _ids(row)
    if "ends" in row:
        ends = fields.ids(row, "ends")
        rising = all(a < b for a, b in zip([0, *ends], ends, strict=False))
        if len(ends) != len(ids) or not rising or ends[-1:] != [num_tokens]:
            raise ValueError(
                f"ends is {short_repr(ends)}; it must rise from above 0 to {num_tokens}, one for "
                "each of ids"
            )
        shareable = (
            fields.whole(row, "num_shareable_tokens", 0) if "num_shareable_tokens" in row else None
        )
        return SegmentKeys(ids, ends, block_size, shareable)
    chunk = fields.whole(row, "chunk_size")
    named = fields.whole(row, "num_named_tokens", 0) if "num_named_tokens" in row else num_prompt
    if named > num_tokens or len(ids) < -(-named // chunk):
        raise ValueError(f"ids has {len(ids)} ids; {named} tokens need {-(-named // chunk)}")
    private = row.get("private_id")
    if type(private) is not int or private >= 0:
        raise ValueError(f"private_id is {short_repr(private)}; it must be a whole number below 0")
    return ChunkKeys(ids, chunk, block_size, named, num_tokens, private)


def _ids(row: fields.Record) -> list[int]:
    ids = fields.field(row, "ids")
    if type(ids) is not list or any(type(i) is not int for i in ids):
        raise ValueError(f"ids is {short_repr(ids)}; it must list whole numbers")
    return ids


def _token_keys(row: fields.Record, num_tokens: int, block_size: int) -> TokenKeys:
    tokens = fields.ids(row, "token_ids")
    hashes = row.get("hash_function", "sha256")
    if hashes not in HASHES:
        raise ValueError(f"hash_function is {short_repr(hashes)}; one of {', '.join(HASHES)}")
    if len(tokens) > num_tokens or any(token >= 2**63 for token in tokens):
        raise ValueError(f"token_ids has {len(tokens)} ids; at most {num_tokens}, below 2**63")
    lora = _texts(row, "lora")
    if len(lora) not in (0, 2):
        raise ValueError(f"lora is {short_repr(lora)}; it must be a name and a path")
    images = [
        Image(fields.text(i, "identifier"), fields.whole(i, "offset", 0), fields.whole(i, "length"))
        for i in _records(row, "images")
    ]
    salt = fields.text(row, "salt") if row.get("salt") is not None else None
    return TokenKeys(
        tokens,
        block_size,
        hash_function=hashes,
        lora=(lora[0], lora[1]) if lora else None,
        images=images,
        salt=salt,
    )


def _names(row: fields.Record, name: str) -> tuple[int | str, ...]:
    value = row[name]
    if type(value) is not list or any(type(one) not in (int, str) for one in value):
        raise ValueError(f"{name} is {short_repr(value)}; it must list request_ids")
    return tuple(value)


def _texts(row: fields.Record, name: str) -> list[str]:
    value = row.get(name) or []
    if type(value) is not list or any(type(one) is not str for one in value):
        raise ValueError(f"{name} is {short_repr(value)}; it must list texts")
    return value


def _records(row: fields.Record, name: str) -> list[Mapping[str, Any]]:
    value = row.get(name) or []
    if type(value) is not list:
        raise ValueError(f"{name} is {short_repr(value)}; it must be a list")
    return [fields.record(one, name) for one in value]
