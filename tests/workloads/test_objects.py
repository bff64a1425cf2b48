from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from policies.vllm import VLLMBlockManager
from sim.analysis.mrc import lru_curve
from sim.errors import TraceError
from sim.footprint import all_ids
from sim.replay import replay
from workloads.objects import Objects

Write = Callable[..., Path]


def test_every_layout_gives_the_same_accesses(tmp_path: Path, write: Write) -> None:
    """a b a c as pages, records, big-endian keys, CSV and text."""
    keys = [7, 8, 7, 300]
    (tmp_path / "t.oracleGeneral.bin").write_bytes(
        b"".join(struct.pack("<IQIq", i, key, 1, -1) for i, key in enumerate(keys))
    )
    (tmp_path / "cache2k_t.trace").write_bytes(struct.pack(">4i", *keys))
    paths = [
        write("7 2 0 0", "7 1 0 0", "300 1 0 0", name="t.lis"),
        tmp_path / "t.oracleGeneral.bin",
        tmp_path / "cache2k_t.trace",
        write(
            "op_time,key,op", *(f"{100 + i},k{key},GET" for i, key in enumerate(keys)), name="t.csv"
        ),
        write(*(f"k{key}" for key in keys), name="t.txt"),
    ]
    for path in paths:
        workload = Objects(path)
        assert workload.ids.tolist() == [0, 1, 0, 2], path
        assert [request.arrival_time for request in workload] == [0, 1, 2, 3]


def test_an_object_is_one_block(write: Write) -> None:
    """a b c a b c: LRU of 3 objects hits 3 times, of 2 objects never; in the curve and in a pool.

    While it is served a request holds one block more, for the token that every engine computes;
    with unhashed_first that block is always the same one.
    """
    workload = Objects(write("a", "b", "c", "a", "b", "c", name="t.txt"), block_size=4)
    curve = lru_curve(workload, all_ids)
    assert [curve.hit_blocks(n) for n in (2, 3)] == [0, 3]
    for num_objects, num_hits in ((2, 0), (3, 3)):
        manager = VLLMBlockManager(
            num_objects + 1, 4, null_block=False, free_order="unhashed_first"
        )
        assert replay(manager, workload).hit_blocks == num_hits


def test_negative_and_huge_keys_stay_different(tmp_path: Path) -> None:
    """Case J19 and K10: key 0 is a key; 2**64 - 1 and -1 are not rounded."""
    path = tmp_path / "t.oracleGeneral"
    keys = [0, 2**64 - 1, 2**53, 2**53 + 1, 0]
    path.write_bytes(b"".join(struct.pack("<IQIq", 5, key, 1, -1) for key in keys))
    assert Objects(path).ids.tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("t.lis", "1 2 0 0\n1\n", ":2: it must begin with two whole numbers"),
        ("t.lis", "1 x 0 0\n", ":1: it must begin with two whole numbers"),
        ("t.lis", "-1 2 0 0\n", ":1: page and count must be at least 0"),
        ("t.lis", "1 99999999999 0 0\n", ":1: the trace has more than"),
        ("t.csv", "op_time,k\n1,2\n", ":1: the header must name a column key"),
        ("t.csv", "op_time,key\n1\n", ":2: it has 1 fields, the header 2"),
        ("t.csv", "op_time,key\n-1,2\n", ":2: op_time is '-1'"),
        ("t.csv", "op_time,key\n5,2\n4,2\n", "access 1 .* is earlier"),
        ("t.oracleGeneral.bin", "abc", "whole records of 24"),
        ("cache2k.trace", "abc", "whole 4-byte keys"),
        ("cache2k.trace", "", "holds no accesses"),
        ("t.bin", "abcd", "its name does not tell the layout"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, text: str, what: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=what):
        Objects(tmp_path / name)


def test_a_limit_cuts_within_a_line(write: Write) -> None:
    assert Objects(write("5 10 0 0", "1 1 0 0", name="t.lis"), limit=3).ids.tolist() == [0, 1, 2]
