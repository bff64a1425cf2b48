from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from policies.vllm import VLLMBlockManager
from sim.cli import main
from sim.engine import Engine
from sim.errors import ConfigError, TraceError
from sim.keys import ChunkKeys, Image, SegmentKeys, TokenKeys
from sim.request import Request
from sim.workload import Workload
from workloads.mooncake import Mooncake
from workloads.own import Own
from workloads.own_rows import SUFFIXES, row_of, write
from workloads.shared_prefix import SharedPrefix

Write = Callable[..., Path]
SAMPLE = Path(__file__).parents[1] / "data" / "mooncake_sample.jsonl"
HEADER = {"kvsim_trace": 1, "block_size": 4}
ROW = {"request_id": 0, "arrival_time": 0, "num_prompt_tokens": 8, "max_tokens": 3}
CHUNKS = ROW | {"chunk_size": 4, "ids": [5, 6], "private_id": -1}


class Listed(Workload):
    def __init__(self, requests: Sequence[Request], block_size: int = 4) -> None:
        self.requests, self.block_size = requests, block_size

    def __iter__(self) -> Iterator[Request]:
        return (request.fresh() for request in self.requests)

    def __len__(self) -> int:
        return len(self.requests)


@pytest.mark.parametrize("suffix", [*SUFFIXES])
def test_run_export_replay(tmp_path: Path, suffix: str) -> None:
    """Case K11: 200 requests with shared prefixes give the same run, request by request."""
    workload = SharedPrefix(num_requests=200, prefix_tokens=64, block_size=16, seed=42, rate=20)
    path = tmp_path / f"exported{suffix}"
    assert write(workload, path) == 200
    runs = [Engine(VLLMBlockManager(600, 16)).run(one).requests for one in (workload, Own(path))]
    assert repr(runs[0]) == repr(runs[1])
    assert sum(runs[0]["num_cached_tokens"]) > 0
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_recorded_trace_survives(tmp_path: Path) -> None:
    """Mooncake's chunks, at the block size that the reader likes."""
    original, path = Mooncake(SAMPLE, block_size=16), tmp_path / "t.jsonl"
    write(original, path)
    for a, b in zip(original, Own(path), strict=True):
        assert row_of(a) == row_of(b)
    assert Own(path, block_size=512).block_size == 512


def test_everything_a_request_has_survives(tmp_path: Path) -> None:
    """All optional fields, all kinds of keys, ids of any size and sign."""
    image = Image("cat", 2, 4)
    keys = [
        TokenKeys([1, 2, 3, 4, 5, 6, 7, 8], 4, lora=("a", "p"), images=[image], salt="s"),
        SegmentKeys((2**70, -3), (6, 11), 4, 6),
        ChunkKeys((2**64, 0), 4, 4, 8, 11, -9),
        ChunkKeys((1, 2), 4, 4, 8, 8, -9),
    ]
    requests = [
        Request("a", keys[0], 8, 1, 0.5, 3, True, 9.0, "s", {"turn": 1}),
        Request("b", keys[1], 8, 3, 0.5, -3, session=7),
        Request(2, keys[2], 8, 3, 1 / 3 + 1),
        Request(3, keys[3], 5, 3, 2.0),  # the answer has names too
    ]
    path = tmp_path / "t.parquet"
    write(Listed(requests), path)
    read = list(Own(path))
    for old, new in zip(requests, read, strict=True):
        assert row_of(old) == row_of(new)
        assert (old.arrival_time, old.priority, old.session, old.hints, old.abort_time) == (
            new.arrival_time, new.priority, new.session, new.hints, new.abort_time
        )  # fmt: skip
        assert [old.keys[i] for i in range(len(old.keys))] == [
            new.keys[i] for i in range(len(new.keys))
        ]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (ROW, "ids is missing"),
        (CHUNKS | {"ids": [5]}, "ids has 1 ids; 8 tokens need 2"),
        (CHUNKS | {"private_id": 1}, "private_id is 1"),
        (CHUNKS | {"num_named_tokens": 99}, "99 tokens need"),
        (CHUNKS | {"ends": [4, 4]}, "ends is \\[4, 4\\]; it must rise"),
        (CHUNKS | {"ends": [4, 9]}, "it must rise from above 0 to 11"),
        (CHUNKS | {"ids": [1.5, 2]}, "ids is \\[1.5, 2\\]"),
        (CHUNKS | {"arrival_time": -1}, "arrival_time is -1"),
        (CHUNKS | {"max_tokens": 0}, "max_tokens is 0"),
        (CHUNKS | {"request_id": None}, "request_id is missing"),
        (CHUNKS | {"hints": 5}, "hints is 5"),
        (CHUNKS | {"num_prompt_tokens": 10**30}, "num_prompt_tokens is"),
        (ROW | {"token_ids": [1] * 12}, "token_ids has 12 ids; at most 11"),
        (ROW | {"token_ids": [1], "hash_function": "md5"}, "hash_function is 'md5'"),
        (ROW | {"token_ids": [1], "lora": ["a"]}, "lora is"),
    ],
)
def test_bad_rows_are_named_or_left_out(write: Write, row: Any, what: str) -> None:
    good = CHUNKS | {"arrival_time": 2}
    with pytest.raises(TraceError, match=f":3: .*{what}"):
        Own(write(HEADER, CHUNKS, row, good))
    lenient = Own(write(HEADER, CHUNKS, row, good), lenient=True)
    assert len(lenient) == 2
    assert "1 of 3 rows dropped: line 3" in lenient.notes[-1]


def test_promised_hints_must_be_there(write: Write) -> None:
    with pytest.raises(TraceError, match="hints has no turn"):
        Own(write(HEADER | {"hints": ["turn"]}, CHUNKS))


@pytest.mark.parametrize("header", [{"kvsim_trace": 2, "block_size": 4}, CHUNKS, [], "{"])
def test_a_file_without_our_header_is_refused(write: Write, header: Any) -> None:
    with pytest.raises(TraceError, match=r":1: .*begins with its header"):
        Own(write(header if header == "{" else json.dumps(header)))


def test_rows_must_be_in_order(write: Write) -> None:
    with pytest.raises(TraceError, match=r":3: .*before that of the row above"):
        Own(write(HEADER, CHUNKS | {"arrival_time": 2}, CHUNKS))


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    """An unknown suffix, a folder in the way, keys that cannot be written: no half file."""
    for name in ("t.csv", "t.jsonl"):
        (tmp_path / "t.jsonl").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=r"name it so|name another"):
            write(Mooncake(SAMPLE), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_trace_is_not_written_over_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor over a link to it, of either kind; the same trace beside it is fine."""
    trace, soft, hard = (tmp_path / name for name in ("t.jsonl", "soft.jsonl", "hard.jsonl"))
    trace.write_bytes(SAMPLE.read_bytes())
    soft.symlink_to(trace)
    hard.hardlink_to(trace)
    for out in (trace, soft, hard, tmp_path / ".." / tmp_path.name / trace.name):
        assert main(["trace", "convert", str(trace), str(out)]) == 2
        error = capsys.readouterr().err
        assert f"{out}: is the trace that is read, and would be lost" in error
        assert error.count("\n") == 1
        assert trace.read_bytes() == SAMPLE.read_bytes()
    assert sorted(tmp_path.iterdir()) == sorted([trace, soft, hard])
    assert main(["trace", "convert", str(soft), str(tmp_path / "new.jsonl")]) == 0


def test_no_parquet_is_one_line(tmp_path: Path) -> None:
    for content in (b"", b"PAR1", b"\x00" * 100):
        (tmp_path / "t.parquet").write_bytes(content)
        with pytest.raises(TraceError, match="is no kvsim trace in Parquet"):
            Own(tmp_path / "t.parquet")


def test_closed_loops_survive(tmp_path: Path) -> None:
    """Who follows whom, and how long the user thinks; time_scale stretches that as well."""
    first = Request("a", SegmentKeys((1,), (8,), 4), 5, 3)
    second = Request(
        "b", SegmentKeys((1, 2), (8, 12), 4), 9, 3, 4.0, follows=("a",), think_time=2.5
    )
    path = tmp_path / "t.jsonl"
    write(Listed([first, second]), path)
    _, read = Own(path, time_scale=2.0)
    assert (read.follows, read.think_time, read.arrival_time) == (("a",), 5.0, 8.0)


def test_a_header_alone_is_no_trace(write: Write) -> None:
    with pytest.raises(TraceError, match="holds no requests"):
        Own(write(HEADER))
