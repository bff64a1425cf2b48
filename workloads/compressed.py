"""Trace files as streams of bytes, decompressed by suffix, within bounds.

`.gz`, `.xz` and `.zst` are read piece by piece. A file that expands more than `MAX_EXPANSION`-fold
(real traces: up to 500-fold) is refused before it fills the disk's worth of memory.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from sim.errors import TraceError

SUFFIXES = (".gz", ".xz", ".zst")
BROKEN_STREAM = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)

MAX_EXPANSION = 2000
ALWAYS_ALLOWED = 2**28  # bytes; small files of equal rows compress even better


@contextmanager
def opened(path: Path, suffix: str | None = None) -> Iterator[IO[bytes]]:
    """*path* opened for reading bytes; TraceError if it cannot be read or its stream is broken.

    *suffix* says how it is compressed, if its name does not.
    """
    suffix = path.suffix if suffix is None else suffix
    try:
        with _open(path, suffix) as file:
            yield file
    except BROKEN_STREAM as error:
        raise TraceError(broken(f"{path}", error)) from None
    except OSError as error:
        if suffix == ".zst" and error.errno is None:  # how Arrow reports damage
            raise TraceError(broken(f"{path}", error)) from None
        raise TraceError(
            f"{path}: cannot be read ({error.strerror}); it must be a file; correct the path"
        ) from None


def broken(place: str, error: Exception) -> str:
    """What to say of a compressed stream that is damaged at *place*."""
    reason = " ".join(str(error).split())
    return (
        f"{place}: the compressed data breaks off or is damaged here ({reason}); "
        "it must be complete to be replayed; copy the file again"
    )


def most_bytes(path: Path) -> float:
    """How many bytes *path* may hold once decompressed; infinite if it is not compressed."""
    if path.suffix not in SUFFIXES:
        return float("inf")
    return ALWAYS_ALLOWED + MAX_EXPANSION * path.stat().st_size


def refuse_bomb(place: str) -> TraceError:
    """The error for a file that holds more than `most_bytes`."""
    return TraceError(
        f"{place}: expands more than {MAX_EXPANSION}-fold up to here; no trace does; "
        "if this one really does, decompress it first"
    )


def read_all(path: Path) -> bytes:
    """All bytes of *path*; TraceError as above."""
    limit, parts, total = None, [], 0
    with opened(path) as file:
        limit = most_bytes(path)
        while part := file.read(2**22):
            total += len(part)
            if total > limit:
                raise refuse_bomb(f"{path}")
            parts.append(part)
    return b"".join(parts)


def _open(path: Path, suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.open(path, "rb")
    if suffix == ".xz":
        return lzma.open(path, "rb")
    if suffix == ".zst":
        import pyarrow as pa

        path.stat()  # a missing file is an error with a name, as for the others
        return BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")
