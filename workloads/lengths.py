"""Traces of lengths: CSV files that record when how many tokens were asked, but not which.

Azure 2023 and 2024: `TIMESTAMP,ContextTokens,GeneratedTokens`, wall-clock times with up to seven
fractional digits; Azure/AzurePublicDataset. BurstGPT: `Timestamp,Model,Request tokens,Response
tokens,Total tokens,Log Type` (later files also `Session ID` and `Elapsed time`), seconds;
HPMLL/BurstGPT. They give the shape of a load. What prompts have in common has to be made up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import ClassVar, NamedTuple

import numpy as np

from sim.errors import TraceError
from sim.keys import BlockKeys, SegmentKeys
from workloads import fields
from workloads.arguments import real_number, whole_number
from workloads.lines import fields as csv_fields
from workloads.lines import lines
from workloads.recorded import Recorded, Row


class Header(NamedTuple):
    """Which columns of a known file say what."""

    time: str
    num_prompt: str
    num_output: str
    session: str = ""


HEADERS = {
    "azure": Header("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": Header("Timestamp", "Request tokens", "Response tokens", "Session ID"),
}


class Lengths(Recorded):
    """The requests of an Azure or BurstGPT trace, by arrival.

    Arguments as for Mooncake. Without *num_prefixes* no two prompts share anything and
    `has_content` is False: a hit rate would say nothing. With it, each prompt begins with one of
    *num_prefixes* shared prefixes of *prefix_tokens* tokens, the k-th with weight k ** -*zipf*; its
    own end is at least one token. *seed*: draws them.

    Rows without an answer (BurstGPT's failed requests) are left out and counted in `notes`.
    """

    format_name: ClassVar[str] = "Azure or BurstGPT"
    time_field: str = "time"

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int = 16,
        *,
        num_prefixes: int = 0,
        prefix_tokens: int = 512,
        zipf: float = 1.0,
        seed: int = 0,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        super().__init__(path, block_size, limit=limit, time_scale=time_scale, lenient=lenient)
        self.trace_block_size = 1
        self.prefix_tokens = whole_number("Lengths", "prefix_tokens", prefix_tokens, 1)
        num_prefixes = whole_number("Lengths", "num_prefixes", num_prefixes, 0)
        self.has_content = num_prefixes > 0
        self._num_failed = 0
        self._origin: int | None = None
        rows = lines(self.path)
        self._columns = self._header(rows)
        self._load(rows, self._row)
        if self._num_failed:
            self.notes += (f"{self._num_failed} rows without an answer were left out",)
        self.notes += (_about_content(num_prefixes, self.prefix_tokens, zipf),)
        self._prefixes = self._choose(num_prefixes, zipf, seed)

    def _choose(self, num_prefixes: int, zipf: float, seed: int) -> list[int] | None:
        """The prefix of each row, None if there are none."""
        zipf = real_number("Lengths", "zipf", zipf)
        rng = np.random.default_rng(whole_number("Lengths", "seed", seed, 0))
        if not num_prefixes:
            return None
        weights = np.arange(1, num_prefixes + 1, dtype=np.float64) ** -zipf
        num_rows = int(self._rows.max()) + 1
        chosen: list[int] = rng.choice(num_prefixes, num_rows, p=weights / weights.sum()).tolist()
        return chosen

    def _keys(self, row: int, start: int, stop: int, num_prompt: int, num_output: int) -> BlockKeys:
        end = num_prompt + num_output
        shared = min(self.prefix_tokens, num_prompt - 1)
        if self._prefixes is None or not shared:
            return SegmentKeys((-1 - row,), (end,), self.block_size, 0)
        return SegmentKeys((self._prefixes[row], -1 - row), (shared, end), self.block_size, shared)

    def _header(self, rows: Iterator[tuple[int, bytes]]) -> list[int | None]:
        """Where the columns are: time, prompt, answer, session."""
        line, first = next(rows)
        try:
            names = csv_fields(first)
        except ValueError as fault:
            raise TraceError(f"{self.path}:{line}: {fault}; {_EXPECTED}") from None
        for header in HEADERS.values():
            if set(header[:3]) <= set(names):
                self.time_field = header.time
                return [names.index(name) if name in names else None for name in header]
        shown = ",".join(names)[:60]
        raise TraceError(f"{self.path}:{line}: the header is {shown!r}; {_EXPECTED}")

    def _row(self, line: bytes) -> Row | None:
        values = csv_fields(line)
        where_time, where_prompt, where_output, where_session = self._columns
        last = max(column for column in self._columns if column is not None)
        if len(values) <= last:
            raise ValueError(f"the row has {len(values)} fields; it needs {last + 1}")
        assert where_time is not None
        assert where_prompt is not None
        assert where_output is not None
        tokens = {
            "prompt tokens": fields.number(values[where_prompt], "prompt tokens"),
            "answer tokens": fields.number(values[where_output], "answer tokens"),
        }
        time = self._time(values[where_time])
        num_prompt = fields.whole(tokens, "prompt tokens", 0)
        num_output = fields.whole(tokens, "answer tokens", 0)
        fields.check_length(num_prompt + num_output, self.block_size, "the number of tokens")
        if num_output == 0 or num_prompt == 0:
            self._num_failed += 1
            return None
        session = values[where_session] if where_session is not None else None
        return Row(time, num_prompt, num_output, (), session or None)

    def _time(self, text: str) -> float:
        """Seconds; wall-clock times from the first one's second, so that no digit is lost."""
        try:
            return fields.time({"t": float(text)}, "t", "seconds")
        except ValueError:
            seconds, fraction = _wall_clock(text)
        self._origin = seconds if self._origin is None else self._origin
        return seconds - self._origin + fraction


_EXPECTED = "it must name the columns of Azure's or BurstGPT's traces: " + " or ".join(
    ",".join(header[:3]) for header in HEADERS.values()
)


def _about_content(num_prefixes: int, prefix_tokens: int, zipf: float) -> str:
    if not num_prefixes:
        return (
            "the trace has lengths only and no content model was given (num_prefixes): prompts "
            "share nothing, and a hit rate says nothing"
        )
    return (
        f"the trace has lengths only; hit rates come from a made-up content: {num_prefixes} "
        f"prefixes of {prefix_tokens} tokens, Zipf {zipf:g}"
    )


def _wall_clock(text: str) -> tuple[int, float]:
    """`2023-11-16 18:15:46.6805900`, with any number of digits and perhaps a time zone."""
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        if dot and not digits:
            raise ValueError
        moment = datetime.fromisoformat(whole + rest[len(digits) :])
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return int(zoned.timestamp()), float(f"0.{digits or 0}")
    except (ValueError, OverflowError):
        raise ValueError(
            f"time is {text[:40]!r}; it must be seconds or 2023-11-16 18:15:46.68059"
        ) from None
