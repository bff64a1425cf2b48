"""Rows of a JSON file: one a line, or the items of one array, read piece by piece."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from sim.errors import TraceError
from workloads.lines import MAX_LINE, lines, text_of

BLANK = " \t\r\n"
FIRST_TRY = 2**16  # characters


def items(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line where it begins, its bytes) of every row of *path*; TraceError as `lines` raises.

    An array ends the file. A row that is no JSON ends an array: where the next begins is unknown.
    """
    rows = lines(path)
    first = next(rows)
    if first[1].startswith(b"["):
        yield from _array(path, chain([first], rows))
    else:
        yield first
        yield from rows


def _array(path: Path, rows: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The items of an array that may stand on one line or many."""
    pending = _Pending(path)
    number, first = next(rows)
    pending.add(number, first.removeprefix(b"["))
    for number, line in rows:
        pending.add(number, line)
        if len(pending.text) >= pending.enough:
            yield from pending.complete_items()
    yield from pending.complete_items()
    pending.expect_end()


class _Pending:
    """Text of an array that is not yet cut into items.

    An item may be as long as all text so far, so decoding is tried only when the text has doubled
    since it last failed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = ""
        self.enough = FIRST_TRY
        self._ended = False
        self._starts, self._numbers = [0], [1]  # where lines begin in the text; their numbers

    def add(self, number: int, line: bytes) -> None:
        """Line *number* of the file."""
        try:
            text = text_of(line)
        except ValueError as fault:
            raise TraceError(f"{self.path}:{number}: {fault}; correct the line") from None
        if self.text:
            self.text += "\n"
        self._starts.append(len(self.text))
        self._numbers.append(number)
        self.text += text
        if len(self.text) > MAX_LINE:
            raise TraceError(
                f"{self.path}:{number}: an item of the array is longer than {MAX_LINE} "
                "characters, or is no JSON; is it the right file?"
            )

    def complete_items(self) -> Iterator[tuple[int, bytes]]:
        """All items that are complete, cut off the text."""
        at = 0
        while not self._ended:
            at = self._skip(at, BLANK + ",")
            if at == len(self.text):
                break
            if self.text[at] == "]":
                self._ended, at = True, at + 1
                break
            try:
                _, end = _DECODER.raw_decode(self.text, at)
            except (ValueError, RecursionError):
                break
            yield self._line(at), self.text[at:end].encode()
            at = end
        self._cut(at)

    def expect_end(self) -> None:
        """Refuse what is left when the file is over."""
        if not self._ended or self.text.strip(BLANK):
            what = "something stands behind the array" if self._ended else "an item is not JSON"
            raise TraceError(
                f"{self.path}:{self._line(0)}: {what}, or the array breaks off; the file must be "
                "one complete array, or one JSON object a line"
            )

    def _skip(self, at: int, characters: str) -> int:
        while at < len(self.text) and self.text[at] in characters:
            at += 1
        return at

    def _line(self, at: int) -> int:
        return self._numbers[bisect_right(self._starts, at) - 1]

    def _cut(self, at: int) -> None:
        number = self._line(at)
        self.text = self.text[at:]
        later = [(s - at, n) for s, n in zip(self._starts, self._numbers, strict=True) if s > at]
        self._starts = [0, *(s for s, _ in later)]
        self._numbers = [number, *(n for _, n in later)]
        self.enough = max(FIRST_TRY, 2 * len(self.text))


_DECODER = json.JSONDecoder()
