from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.errors import TraceError
from workloads.bailian import Bailian
from workloads.detect import detect

Write = Callable[..., Path]


def row(chat: int, parent: int, time: float, tokens: int, *ids: int, **fields: Any) -> Any:
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": time,
        "input_length": tokens,
        "output_length": 7,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
    } | fields


def test_turns_of_a_chat_are_one_session(write: Write) -> None:
    """A chain of parents leads to the chat it began with; the parent is named by request_id."""
    path = write(
        row(5, -1, 10.5, 32, 1, 2),
        row(6, -1, 11, 16, 9),
        row(7, 5, 20, 48, 1, 2, 3, turn=2, type="search"),
        row(8, 7, 31, 64, 1, 2, 3, 4, turn=3),
        row(9, 1234, 32, 16, 1, turn=2),  # its parent is not in the file
    )
    workload = Bailian(path)
    requests = list(workload)
    assert detect(path) == "bailian"
    assert [request.session for request in requests] == [5, 6, 5, 5, 9]
    assert [(r.hints or {})["parent"] for r in requests] == [None, None, 0, 2, None]
    assert requests[2].hints == {"type": "search", "turn": 2, "parent": 0}
    assert [request.arrival_time for request in requests] == [0, 0.5, 9.5, 20.5, 21.5]
    assert requests[3].keys.common(requests[2].keys, 0, 3) == 3


@pytest.mark.parametrize("num_ids", [2, 3])
def test_the_partial_block_may_have_an_id(write: Write, num_ids: int) -> None:
    """40 tokens have 2 or 3 ids; without one the rest is shared with nobody."""
    path = write(row(1, -1, 0, 40, *range(num_ids)), row(2, -1, 1, 40, *range(num_ids)))
    first, second = Bailian(path, block_size=8)
    assert first.keys.common(second.keys, 0, 5) == (5 if num_ids == 3 else 4)


def test_another_number_of_ids_is_refused(write: Write) -> None:
    with pytest.raises(
        TraceError, match=r":1: .*hash_ids has 4 ids; an input_length of 40 needs 3"
    ):
        Bailian(write(row(1, -1, 0, 40, 1, 2, 3, 4)))


def test_a_dropped_row_is_no_parent_of_the_wrong_request(write: Write) -> None:
    """With lenient, `parent` still is the index of the row in the file."""
    path = write(row(1, -1, 0, 16, 1), row(2, -1, "x", 16, 1), row(3, 1, 2, 32, 1, 2))
    workload = Bailian(path, lenient=True)
    assert [request.request_id for request in workload] == [0, 2]
    assert [(request.hints or {})["parent"] for request in workload] == [None, 0]


def test_ids_of_blocks_are_chained(write: Write) -> None:
    """An id counts as equal only behind equal ids, whatever the file's ids stand for."""
    path = write(row(1, -1, 0, 32, 1, 2), row(2, -1, 1, 32, 3, 2), row(3, -1, 2, 48, 1, 2, 2))
    a, b, c = (request.keys for request in Bailian(path))
    assert [a[i] == b[i] for i in range(2)] == [False, False]
    assert a.common(c, 0, 2) == 2
    assert c[2] != c[1]
