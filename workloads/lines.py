"""Lines of text, JSON or CSV with their numbers, from plain, .gz, .xz and .zst files.

A byte order mark, CRLF, blank lines and a missing final newline are no faults. NaN and Infinity
are: they are not JSON, and no field of a trace may hold them. Memory is bounded: a line is at most
`MAX_LINE` bytes long, and a file may not expand without end (workloads/compressed.py).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from sim.errors import TraceError
from workloads.compressed import BROKEN_STREAM, broken, most_bytes, opened, refuse_bomb

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LFS_POINTER = b"version https://git-lfs.github.com"
MAX_LINE = 2**26  # bytes; the longest session of the WEKA trace has 2**23
MAX_BLANK = 1_000_000  # blank lines in a row; more are no trace


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number from 1, its value) for every line that is not blank; TraceError at a bad one."""
    for number, line in lines(path):
        try:
            value = parse(line)
        except ValueError as fault:
            raise TraceError(
                f"{path}:{number}: {fault}; every line must hold one JSON value; "
                "correct or remove the line"
            ) from None
        yield number, value


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, its bytes, stripped) for every line that is not blank.

    TraceError if the file cannot be read, its compressed stream is broken, a line has no end, or
    no line is left.
    """
    number, num_lines, num_bytes = 0, 0, 0
    with opened(path) as file:
        limit = most_bytes(path)
        readline = file.readline
        last_line = 0
        while True:
            try:
                raw = readline(MAX_LINE + 1)
            except BROKEN_STREAM as error:
                raise TraceError(broken(f"{path}:{number + 1}", error)) from None
            if not raw:
                break
            number += 1
            num_bytes += len(raw)
            _check_bounds(path, number, len(raw), number - last_line, num_bytes > limit)
            line = raw.removeprefix(BYTE_ORDER_MARK).strip()
            if line.startswith(LFS_POINTER):
                raise TraceError(
                    f"{path}:{number}: is a pointer of Git LFS, not the file it stands for; "
                    "fetch that with `git lfs pull`"
                )
            if line:
                last_line = number
                num_lines += 1
                yield number, line
    if not num_lines:
        raise TraceError(f"{path}: holds no rows; a trace has at least one; is it the right file?")


def _check_bounds(path: Path, number: int, length: int, num_blank: int, is_bomb: bool) -> None:
    if length > MAX_LINE:
        raise TraceError(
            f"{path}:{number}: the line is longer than {MAX_LINE} bytes; a row of a trace is "
            "shorter; is it the right file?"
        )
    if is_bomb:
        raise refuse_bomb(f"{path}:{number}")
    if num_blank > MAX_BLANK:
        raise TraceError(
            f"{path}:{number}: more than {MAX_BLANK} blank lines in a row; a trace has few; "
            "is it the right file?"
        )


def parse(line: bytes) -> Any:
    """The JSON value in *line*; a ValueError says what is wrong with it."""
    try:
        return _DECODER.decode(text_of(line))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not a row: nested too deeply") from None
    except ValueError as error:
        raise ValueError(str(error).partition(";")[0]) from None  # a number of 4300 digits


def fields(line: bytes) -> list[str]:
    """The comma-separated values in *line*, stripped; a ValueError says what is wrong."""
    try:
        (row,) = csv.reader([text_of(line)], strict=True)
    except (csv.Error, ValueError) as error:
        raise ValueError(f"not a row of CSV: {error}") from None
    return [value.strip() for value in row]


def text_of(line: bytes) -> str:
    """*line* decoded; a ValueError says which byte is no text."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(
            f"byte {byte:#04x} at column {error.start + 1} is not UTF-8 "
            "(compressed files must end in .gz, .xz or .zst)"
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
