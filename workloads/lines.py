"""Lines of JSON with their numbers, from plain, .gz and .xz files.

A byte order mark, CRLF, blank lines and a missing final newline are no faults. NaN and Infinity
are: they are not JSON, and no field of a trace may hold them.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from sim.errors import TraceError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BROKEN_STREAM = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


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

    TraceError if the file cannot be read, its compressed stream is broken, or no line is left.
    """
    number, num_lines = 0, 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, start=1):
                line = raw.removeprefix(BYTE_ORDER_MARK).strip()
                if line:
                    num_lines += 1
                    yield number, line
    except BROKEN_STREAM as error:
        raise TraceError(
            f"{path}:{number + 1}: the compressed data breaks off or is damaged here ({error}); "
            "it must be complete to be replayed; copy the file again"
        ) from None
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read ({error.strerror}); it must be a file; correct the path"
        ) from None
    if not num_lines:
        raise TraceError(f"{path}: holds no rows; a trace has at least one; is it the right file?")


def parse(line: bytes) -> Any:
    """The JSON value in *line*; a ValueError says what is wrong with it."""
    try:
        return _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(
            f"byte {byte:#04x} at column {error.start + 1} is not UTF-8 "
            "(compressed files must end in .gz or .xz)"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not a row: nested too deeply") from None


def _open(path: Path) -> Any:
    """*path* opened for reading bytes, decompressed according to its suffix."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
