from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.errors import ConfigError, TraceError
from workloads import WORKLOADS
from workloads.detect import SIGNS, detect, open_trace
from workloads.mooncake import Mooncake

Write = Callable[..., Path]
SAMPLE = Path(__file__).parents[1] / "data" / "mooncake_sample.jsonl"


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"kvsim_trace": 1, "block_size": 16}, "own"),
        ({"timestamp": "1", "hash_ids": {}}, "ragpulse"),
        ({"chat_id": 1, "parent_chat_id": -1, "input_length": 1, "hash_ids": []}, "bailian"),
        ({"timestamp": 1, "input_length": 1, "hash_ids": [1]}, "mooncake"),
        ({"id": "a", "block_size": 64, "requests": []}, "weka"),
        ({"timestamp": 1, "event": {"event_type": "tool_start"}}, "dynamo"),
        ({"ts": 1, "events": []}, "kv_events"),
        ([1.5, [], 0], "kv_events"),
        ({"input": "a", "output": "b"}, "text_log"),
        ({"messages": []}, "text_log"),
        ([{"conversations": []}], "text_log"),
    ],
)
def test_json_is_recognised_by_its_first_row(write: Write, row: Any, name: str) -> None:
    expected = "text_log" if isinstance(row, list) and isinstance(row[0], dict) else name
    assert detect(write(row)) == expected


def test_other_files_by_name_or_header(write: Write) -> None:
    assert detect(write("1 2 3 4", name="P1.lis")) == "objects"
    assert detect(write("x", name="w.oracleGeneral.bin")) == "objects"
    assert detect(write("TIMESTAMP,ContextTokens,GeneratedTokens", name="a.csv")) == "lengths"
    assert detect(write("op_time,key,op", name="a.csv")) == "objects"
    assert detect(write("x", name="a.parquet")) == "own"


@pytest.mark.parametrize(
    ("text", "name"),
    [("5", "a.jsonl"), ('{"a": 1}', "a.jsonl"), ("hello", "a.jsonl"), ("[]", "a.json"),
     ("a,b", "a.csv"), ('{"event": 5}', "a.jsonl"), ("[5]", "a.jsonl")],
)  # fmt: skip
def test_what_is_not_recognised_says_what_is_known(write: Write, text: str, name: str) -> None:
    with pytest.raises(TraceError, match=r"its format is not recognised \(.*; say --format"):
        detect(write(text, name=name))


def test_an_opened_trace_is_the_reader_with_its_arguments() -> None:
    workload = open_trace(SAMPLE, block_size=16)
    assert isinstance(workload, Mooncake)
    assert workload.block_size == 16
    with pytest.raises(ConfigError, match="unknown to mooncake"):
        open_trace(SAMPLE, "mooncake", num_prefixes=1)


def test_every_format_detected_has_a_reader() -> None:
    assert set(SIGNS) <= set(WORKLOADS)
