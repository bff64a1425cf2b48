"""Damaged traces: an error with the file's name, or requests; never a traceback, a hang, a flood.

Samples of every format and the heads of the real files (KVSIM_DATA) are cut, flipped, shuffled and
filled with values that break careless readers, then perhaps compressed, and damaged once more.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
import time
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sim.cli import main
from sim.errors import KvsimError
from workloads.detect import open_trace
from workloads.profile import profile
from workloads.servegen import ServeGen, ServeGenLengths
from workloads.streams import stream

DATA = Path(__file__).parents[1] / "data"
SAMPLES = sorted(
    path
    for path in [*(DATA / "samples").iterdir(), DATA / "mooncake_sample.jsonl"]
    if not path.name[0].isdigit() or path.name.startswith("0_")
)
SIDECARS = [path for path in (DATA / "samples").iterdir() if path.name[0] in "12345"]
REAL = {
    "mooncake/conversation_trace.jsonl.xz": "m.jsonl",
    "weka_claude_code/sessions_496.jsonl.xz": "w.jsonl",
    "ragpulse/0_trace.jsonl.xz": "0_r.jsonl",
    "azure_2023/AzureLLMInferenceTrace_conv.csv.xz": "a.csv",
    "lmcache_agent/miniswe_20sessions.jsonl.xz": "l.jsonl",
    "dynamo/pi_request_trace.jsonl.gz": "d.jsonl",
    "object_cache/arc_OLTP.lis.xz": "o.lis",
    "object_cache/cache2k_web07.trace.xz": "cache2k.trace",
}
HEAD = 30_000  # bytes of a real file

NASTY = [
    b"", b"null", b"NaN", b"-Infinity", b"1e400", b"-1", b"0", b"3.7", b"true", b'""', b'"abc"',
    b"{}", b"[]", b"[[]]", b"9" * 30, b"9" * 5000, b"1e308", b"18446744073709551616",
    b"9007199254740993", b"[" * 3000, b'{"a":' * 3000, b"\x00", b"\xff\xfe", b"\xef\xbb\xbf",
    b"\r\n", b"\n\n", b"\\", b'"', b",", b"\xed\xa0\x80", b'"\\ud800"', b"\x1a", b"2023-99-99",
    b"0001-01-01 00:00:00+23:59", b"-9223372036854775809", b"4294967296",
]  # fmt: skip

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A few changes, each at a place given as a share of the length."""
    changes = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["cut", "flip", "put", "swap", "field", "lines"]),
                st.floats(0, 1),
                st.floats(0, 1),
                st.sampled_from(NASTY),
                st.integers(0, 7),
            ),
            max_size=4,
        )
    )

    def apply(data: bytes) -> bytes:
        for change in changes:
            data = _changed(data, *change)
        return data

    return apply


def _changed(data: bytes, how: str, where: float, other: float, nasty: bytes, bit: int) -> bytes:
    at, to = int(where * len(data)), int(other * len(data))
    if how == "cut":
        return data[:at]
    if how == "flip" and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
    if how == "put":
        return data[:at] + nasty + data[at:]
    if how == "swap":
        low, high = sorted((at, to))
        return data[:low] + data[high:]
    if how == "field":  # the value behind the next colon or comma
        start = min((i for i in (data.find(c, at) for c in (b":", b",")) if i >= 0), default=-1)
        ends = (data.find(c, start + 1) for c in (b",", b"}", b"]", b"\n"))
        end = min((i for i in ends if i > start), default=-1)
        return data if start < 0 or end < 0 else data[: start + 1] + nasty + data[end:]
    lines = data.split(b"\n")
    return b"\n".join([*lines[bit:], *lines[:bit], *lines[:1]])


def holds(path: Path, **arguments: object) -> None:
    """Reading *path* to the end gives requests, or one line that names the file."""
    started, message = time.perf_counter(), None
    try:
        workload = open_trace(path, **arguments)
        found = profile(workload)
        assert found.requests == len(workload) > 0
        assert all(isinstance(note, str) for note in workload.notes)
    except KvsimError as error:
        message = str(error)
    if message is not None:
        assert path.name.split(".")[0] in message
        assert "\n" not in message
        assert len(message) < 2000
    assert time.perf_counter() - started < 5


FUZZ = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    derandomize=True,
)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
@FUZZ
@given(first=damage(), suffix=st.sampled_from(sorted(PACK)), second=damage())
def test_damaged_samples(
    sample: Path,
    tmp_path: Path,
    first: Callable[[bytes], bytes],
    suffix: str,
    second: Callable[[bytes], bytes],
) -> None:
    """Every format, in every compression, damaged before and after it was compressed."""
    for sidecar in SIDECARS:
        shutil.copy(sidecar, tmp_path)
    suffix = "" if sample.suffix == ".parquet" else suffix
    path = tmp_path / f"{sample.name}{suffix}"
    path.write_bytes(second(PACK[suffix](first(sample.read_bytes()))))
    holds(path)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
@settings(FUZZ, max_examples=15)
@given(first=damage())
def test_samples_damaged_a_little(
    sample: Path, tmp_path: Path, first: Callable[[bytes], bytes]
) -> None:
    """The quick part of the above."""
    for sidecar in SIDECARS:
        shutil.copy(sidecar, tmp_path)
    path = tmp_path / sample.name
    path.write_bytes(first(sample.read_bytes()))
    holds(path)


@pytest.fixture(scope="session")
def heads(kvsim_data: Path) -> dict[str, bytes]:
    """The first bytes of the real files."""
    found = {}
    for name, short in REAL.items():
        if (kvsim_data / name).is_file():
            how = gzip.open if name.endswith(".gz") else lzma.open
            with how(kvsim_data / name, "rb") as file:
                found[short] = file.read(HEAD)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL.values())
@FUZZ
@given(first=damage())
def test_damaged_real_files(
    name: str,
    tmp_path: Path,
    kvsim_data: Path,
    heads: dict[str, bytes],
    first: Callable[[bytes], bytes],
) -> None:
    """The heads of the real files, which break off within a row, damaged."""
    if name not in heads:
        pytest.skip(f"no file for {name} under KVSIM_DATA")
    for sidecar in islice((kvsim_data / "ragpulse").glob("[1-5]*"), 5):
        shutil.copy(sidecar, tmp_path)
    path = tmp_path / name
    path.write_bytes(first(heads[name]))
    holds(path)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
@settings(FUZZ, max_examples=15)
@given(junk=st.binary(max_size=300), suffix=st.sampled_from(sorted(PACK)))
def test_junk_under_every_name(sample: Path, tmp_path: Path, junk: bytes, suffix: str) -> None:
    """Bytes of no format at all, also where a compressed stream is expected."""
    path = tmp_path / f"{sample.name}{suffix}"
    path.write_bytes(junk)
    holds(path)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_samples_are_sound(sample: Path) -> None:
    """Undamaged, every sample is recognised, read and profiled."""
    assert profile(open_trace(sample)).requests > 0


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b'{"timestamp": ' + b"9" * 100_000 + b"}", b'{"a": "' + b"x" * 2**22],
    ids=["nested", "number", "string"],
)
def test_a_large_bad_line_costs_little(tmp_path: Path, text: bytes) -> None:
    """100,000 brackets, a number of 100,000 digits, a string of 4 MB without end."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(text + b"\n")
    tracemalloc.start()
    try:
        holds(path, format="mooncake")
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_the_command_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line on stderr, for every kind of damage."""
    path = tmp_path / "t.jsonl"
    for content in (b"", b"\n\n", b"{", b'{"input": 1}', b"\xff", b"[1,"):
        path.write_bytes(content)
        assert main(["trace", "info", str(path)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("kvsim: error: ")
        assert printed.err.count("\n") == 1


@settings(FUZZ, max_examples=60)
@given(trace=damage(), lengths=damage())
def test_damaged_statistics(
    tmp_path: Path, trace: Callable[[bytes], bytes], lengths: Callable[[bytes], bytes]
) -> None:
    """ServeGen's files, damaged: an error that names one, or arrivals and lengths."""
    windows, shares = tmp_path / "chunk-0-trace.csv", tmp_path / "chunk-0-dataset.json"
    windows.write_bytes(trace(b"0,2,1,Gamma,1,0.5\n600,0,0,,0,0\n1200,4,2,Weibull,0.6,0.2\n"))
    shares.write_bytes(
        lengths(b'{"0": {"input_tokens": "{10: 0.7, 30: 0.3}"}, "21600": {"input_tokens": "{}"}}')
    )
    for make in (ServeGen, ServeGenLengths):
        message = None
        try:
            drawn = make(tmp_path)
            found = drawn.times if isinstance(drawn, ServeGen) else drawn.draw
            assert len(found(20, stream(0, "t"))) == 20
        except KvsimError as error:
            message = str(error)
        assert message is None or (str(tmp_path) in message and "\n" not in message)
