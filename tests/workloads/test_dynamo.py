from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.errors import TraceError
from workloads.dynamo import Dynamo

Write = Callable[..., Path]


def end(received: float, tokens: int, *hashes: int, session: str = "a", size: int = 16) -> Any:
    return event(
        "request_end",
        session,
        request={
            "request_received_ms": received,
            "output_tokens": 3,
            "cached_tokens": 16,
            "ttft_ms": 250,
            "total_time_ms": 1500,
            "replay": {
                "trace_block_size": size,
                "input_length": tokens,
                "input_sequence_hashes": hashes,
            },
        },
    )


def event(kind: str, session: str, **fields: Any) -> Any:
    context = {"session_id": session}
    return {"timestamp": 1, "event": {"event_type": kind, "agent_context": context} | fields}


def test_requests_stand_in_order_of_arrival(write: Write) -> None:
    """Events are written at the end of a request; received_ms says when it came."""
    path = write(end(5000, 20, 1, 2), end(2000, 16, 1, session="b"))
    workload = Dynamo(path)
    first, second = workload
    assert (first.session, first.arrival_time) == ("b", 0)
    assert (second.session, second.arrival_time) == ("a", 3)
    assert (workload.block_size, second.max_tokens) == (16, 3)
    assert first.hints == {"tool": None, "cached_tokens": 16, "ttft_s": 0.25, "total_s": 1.5}


def test_the_first_tool_after_an_answer_is_its_hint(write: Write) -> None:
    """Tools of other sessions, later tools and their ends change nothing."""
    path = write(
        end(0, 16, 1),
        end(1, 16, 1, session="b"),
        event("tool_start", "a", tool={"tool_class": "bash"}),
        event("tool_start", "a", tool={"tool_class": "read"}),
        event("tool_end", "a", tool={"tool_class": "bash"}),
        end(9, 16, 1),
    )
    assert [(request.hints or {})["tool"] for request in Dynamo(path)] == ["bash", None, None]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([end(0, 20, 1)], ":1: .*input_sequence_hashes has 1 ids; an input of 20 needs 2"),
        ([end(0, 16, 1), end(0, 8, 1, size=8)], ":2: .*trace_block_size is 8; it must be 16"),
        ([event("tool_end", "a")], ":1: no row is a request; is this a Dynamo request trace"),
        ([{"timestamp": 1}], ":1: .*event is missing"),
    ],
)
def test_what_is_no_request_trace_is_refused(write: Write, rows: list[Any], what: str) -> None:
    with pytest.raises(TraceError, match=what):
        Dynamo(write(*rows))
