from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from sim.errors import TraceError
from workloads import compressed
from workloads.compressed import read_all
from workloads.lines import MAX_LINE, lines

TEXT = b"".join(b"line %d\n" % i for i in range(5000))


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstd,
}


@pytest.mark.parametrize("suffix", PACK)
def test_compressed_files_read_as_plain_ones(tmp_path: Path, suffix: str) -> None:
    plain, packed = tmp_path / "t.txt", tmp_path / f"t.txt.{suffix}"
    plain.write_bytes(TEXT)
    packed.write_bytes(PACK[suffix](TEXT))
    assert list(lines(packed)) == list(lines(plain))
    assert read_all(packed) == TEXT


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_stream_is_named(tmp_path: Path, suffix: str, damage: str) -> None:
    """A stream that breaks off, has a wrong bit or is not there at all: one line, no traceback."""
    data = PACK[suffix](TEXT)
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :]
    path = tmp_path / f"t.txt.{suffix}"
    path.write_bytes({"cut": data[:middle], "flipped": flipped, "empty": b""}[damage])
    silent = {("zst", "flipped"), ("zst", "empty"), ("gz", "empty")}  # there is no checksum
    for read in (lambda: list(lines(path)), lambda: read_all(path)):
        with suppress(TraceError) if (suffix, damage) in silent else pytest.raises(TraceError) as e:
            read()
        if e is not None:
            assert str(e.value).startswith(f"{path}")
            assert "\n" not in str(e.value)


@pytest.mark.parametrize("suffix", PACK)
def test_a_bomb_is_refused(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that expands without measure is refused long before it fills the memory."""
    monkeypatch.setattr(compressed, "ALWAYS_ALLOWED", 2**20)
    monkeypatch.setattr(compressed, "MAX_EXPANSION", 50)
    path = tmp_path / f"t.txt.{suffix}"
    path.write_bytes(PACK[suffix]((b"0" * 79 + b"\n") * 200_000))
    for read in (lambda: list(lines(path)), lambda: read_all(path)):
        with pytest.raises(TraceError, match="expands more than 50-fold"):
            read()


@pytest.mark.slow
def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    """A line of 100 MB, plain and compressed a thousandfold."""
    data = b"[" + b"1," * (50 * 2**20)
    for name, content in (("t.jsonl", data), ("t.jsonl.gz", gzip.compress(data, 1))):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(TraceError, match=f":1: the line is longer than {MAX_LINE} bytes"):
            list(lines(path))


def test_endless_blank_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n" * 1_100_000 + b"x\n")
    with pytest.raises(TraceError, match="blank lines in a row"):
        list(lines(path))
