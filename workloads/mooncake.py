"""Mooncake's traces: JSON rows with the prefix hash of every 512 prompt tokens.

A row is `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`
with ceil(input_length / 512) ids; the last id names a partial block. Source: the Mooncake project,
FAST'25 release. Answers have no ids: they occupy memory and are never reused.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, Literal

from sim.errors import ConfigError
from workloads import fields
from workloads.arguments import one_of, whole_number
from workloads.lines import lines, parse
from workloads.recorded import Recorded, Row

UNITS = {"s": (1.0, "seconds"), "ms": (1000.0, "milliseconds"), "us": (1e6, "microseconds")}


class Mooncake(Recorded):
    """The requests of a Mooncake trace, by arrival; `request_id` is the row's index from 0.

    *path*: a .jsonl file, also .gz, .xz or .zst, as given or under $KVSIM_DATA.
    *block_size*: tokens per block of the keys; *trace_block_size*: prompt tokens per id.
    *limit*: read only the first rows of the file. Arrival times are seconds since the earliest
    row; *time_scale* stretches them, 0 makes all requests arrive at once.

    For other files of this shape: *time_unit* of the timestamps; *tail*: `floor` if the partial
    block at the end of a prompt has no id; *session_field*: the row's field that names its session;
    *id_scope*: `session` if ids count anew in each, so that equal ones of two are not equal.

    A bad row is refused with all others in one TraceError, or with *lenient* left out and counted
    in `notes`; a prompt or an answer of 0 tokens is bad, since an engine samples at least one
    token. Rows out of time order are sorted, ties in file order, and noted. A trace whose ids are
    not prefix hashes is always refused.
    """

    format_name: ClassVar[str] = "Mooncake"

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int = 512,
        *,
        trace_block_size: int = 512,
        time_unit: Literal["s", "ms", "us"] = "ms",
        tail: Literal["ceil", "floor"] = "ceil",
        session_field: str | None = None,
        id_scope: Literal["global", "session"] = "global",
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        super().__init__(path, block_size, limit=limit, time_scale=time_scale, lenient=lenient)
        self.trace_block_size = whole_number("Mooncake", "trace_block_size", trace_block_size, 1)
        one_of("Mooncake", "time_unit", time_unit, UNITS)
        self.tail = one_of("Mooncake", "tail", tail, ("ceil", "floor"))
        self.session_field = session_field
        self.id_scope = one_of("Mooncake", "id_scope", id_scope, ("global", "session"))
        if id_scope == "session" and session_field is None:
            raise ConfigError("Mooncake: id_scope is session; name the session_field too")
        self.units_per_second, self.unit = UNITS[time_unit]
        self._numbers: dict[tuple[int | str | None, int], int] = {}
        self._load(lines(self.path), lambda line: self._row(parse(line)))

    def _row(self, value: Any) -> Row:
        row = fields.record(value)
        timestamp = fields.time(row, "timestamp", self.unit)
        input_length = fields.whole(row, "input_length")
        output_length = fields.whole(row, "output_length")
        num_tokens = input_length + output_length
        fields.check_length(num_tokens, self.block_size, "input_length + output_length")
        hash_ids = fields.ids(row, "hash_ids")
        names = ("hash_ids", "input_length")
        chunk = self.trace_block_size
        has_ids = input_length if self.tail == "ceil" else input_length // chunk * chunk
        fields.check_num_ids(len(hash_ids), has_ids, chunk, names)
        session = None
        if self.session_field is not None:
            fields.field(row, self.session_field)
            session = fields.name_of(row, self.session_field)
        if self.id_scope == "session":
            numbers = self._numbers
            hash_ids = [numbers.setdefault((session, i), len(numbers)) for i in hash_ids]
        return Row(timestamp, input_length, output_length, hash_ids, session)
