from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.errors import TraceError
from sim.keys import SegmentKeys
from workloads.ragpulse import PARTS, SIDECARS, RagPulse

Write = Callable[..., Path]


@pytest.fixture
def trace(write: Write) -> Write:
    """Writes a trace and the files beside it, where content i has i tokens."""

    def write_all(*rows: Any) -> Path:
        for stem, name in SIDECARS.items():
            write({name: 10, "token_length": 10}, {name: 20, "token_length": 20}, "",
                  name=f"{stem}.jsonl")  # fmt: skip
        return write(*rows, name="0_trace.jsonl")

    return write_all


def row(time: str, tokens: int, *parts: list[int]) -> Any:
    named = dict(zip(PARTS, [*parts, [], [], [], [], []], strict=False))
    return {
        "timestamp": time,
        "input_length": tokens,
        "output_length": 5,
        "hash_ids": named,
        "session_id": "s",
    }


def test_content_counts_only_behind_equal_content(trace: Write) -> None:
    """The same passage after another system prompt has another name."""
    path = trace(row("0", 36, [10], [20]), row("1", 46, [10], [20, 10]), row("2", 36, [20], [10]))
    a, b, c = (request.keys for request in RagPulse(path))
    assert isinstance(a, SegmentKeys)
    assert isinstance(b, SegmentKeys)
    assert isinstance(c, SegmentKeys)
    assert list(a.ends) == [10, 30, 41]
    assert a.ids[:2] == b.ids[:2]
    assert not set(a.ids) & set(c.ids)
    assert len({*a.ids, *b.ids, *c.ids}) == 8  # 5 chained contents, 3 private ends


def test_the_order_is_system_passages_history_web_question(trace: Write) -> None:
    path = trace(row("0", 99, [10], [20], [10], [20], [10]))
    (request,) = RagPulse(path)
    assert isinstance(request.keys, SegmentKeys)
    assert list(request.keys.ends) == [10, 30, 40, 60, 70, 104]


def test_the_rest_of_a_prompt_is_private(trace: Write) -> None:
    """Two equal rows share what has ids, 30 tokens of 36: three blocks of 8, not four."""
    a, b = RagPulse(trace(row("0", 36, [10], [20]), row("0", 36, [10], [20])), block_size=8)
    assert a.keys.common(b.keys, 0, 4) == 3


def test_a_clock_that_restarts_goes_on(trace: Write) -> None:
    path = trace(row("604453", 36, [10]), row("0", 36, [10]), row("7", 36, [10]))
    workload = RagPulse(path)
    assert [request.arrival_time for request in workload] == [0, 347, 354]
    assert "restarts 1 time(s)" in workload.notes[0]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (row("0", 36, [11]), "content id 11 is in none of the files"),
        (row("0", 29, [10], [20]), "hash_ids name 30 tokens; input_length is 29"),
        (row("soon", 36, [10]), "timestamp is 'soon'; it must be a number"),
        (row("nan", 36, [10]), "timestamp is 'nan'; it must be a number"),
    ],
)
def test_bad_rows_are_named(trace: Write, bad: Any, what: str) -> None:
    with pytest.raises(TraceError, match=f":2: .*{what}"):
        RagPulse(trace(row("0", 36, [10]), bad))


def test_a_missing_sidecar_is_named(write: Write) -> None:
    with pytest.raises(TraceError, match=r"1_sys_prompt\.jsonl is not beside it"):
        RagPulse(write(row("0", 36, [10])))
