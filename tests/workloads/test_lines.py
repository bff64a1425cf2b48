from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from sim.errors import TraceError
from workloads.lines import json_lines, lines

ROWS = [{"a": 1}, {"a": 2}, {"a": "ü"}]
TEXT = '{"a": 1}\n{"a": 2}\n{"a": "ü"}\n'.encode()


def read(path: Path) -> list[object]:
    return [value for _, value in json_lines(path)]


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as refused:
        read(path)
    message = str(refused.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        TEXT.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + TEXT,
        b"\n\n" + TEXT.replace(b"\n", b"\n  \r\n\n"),
        TEXT.rstrip(),
    ],
    ids=["LF", "CRLF", "BOM", "blank lines", "no last newline"],
)
def test_variants_of_text_are_the_same_rows(tmp_path: Path, text: bytes) -> None:
    """Case K7: LF, CRLF, BOM, blank lines and a missing final newline read alike."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(text)
    assert read(path) == ROWS


def test_line_numbers_count_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'\n{"a": 1}\n\n\r\n{"a": 2}')
    assert [number for number, _ in json_lines(path)] == [2, 5]


def test_compressed_files_are_read_by_suffix(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "t.jsonl.xz").write_bytes(lzma.compress(TEXT))
    assert read(tmp_path / "t.jsonl.gz") == read(tmp_path / "t.jsonl.xz") == ROWS


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"a": 1', "not JSON: Expecting ',' delimiter at column 8"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": Infinity}', "Infinity is no number"),
        (b'{"a": 1} {"a": 2}', "Extra data"),
        (b'{"a": "\xff"}', "byte 0xff at column 8 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5_000, "5000 digits"),
    ],
)
def test_a_line_that_is_no_json_is_named(tmp_path: Path, line: bytes, fault: str) -> None:
    """The message has file:line, what is wrong, the rule and the remedy."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    message = refusal(path)
    assert message.startswith(":3: ")
    assert fault in message
    assert "must hold one JSON value; correct or remove" in message


def test_rows_before_a_bad_line_are_still_given(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a": 1}\n{')
    rows = json_lines(path)
    assert next(rows) == (1, {"a": 1})
    with pytest.raises(TraceError):
        next(rows)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "garbled", "not compressed"])
def test_a_broken_compressed_stream_is_named(tmp_path: Path, suffix: str, damage: str) -> None:
    """Truncated, corrupt and not compressed at all: a TraceError with the line reached."""
    text = b"".join(b'{"a": %d}\n' % (i * i) for i in range(20_000))
    data = bytearray(gzip.compress(text) if suffix == ".gz" else lzma.compress(text))
    if damage == "truncated":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    elif damage == "garbled":
        data[20:60] = bytes(range(215, 255))
    else:
        data = bytearray(text)
    path = tmp_path / f"t.jsonl{suffix}"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="damaged here") as refused:
        for _ in lines(path):
            pass
    line = str(refused.value).removeprefix(f"{path}:").split(":")[0]
    assert 1 <= int(line) <= 20_001


def test_a_compressed_file_without_its_suffix_gets_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(lzma.compress(TEXT))
    assert "must end in .gz, .xz or .zst" in refusal(path)


@pytest.mark.parametrize("text", [b"", b"\n \r\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(text)
    assert "holds no rows" in refusal(path)
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(text))
    assert "holds no rows" in refusal(path)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path, suffix: str) -> None:
    assert "cannot be read (No such file" in refusal(tmp_path / f"none{suffix}")
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    assert "cannot be read (Is a directory)" in refusal(folder)


def test_a_pointer_of_git_lfs_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4bb3\nsize 52283111\n")
    assert "is a pointer of Git LFS" in refusal(path)
