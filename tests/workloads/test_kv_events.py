from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.errors import TraceError
from workloads.detect import detect
from workloads.kv_events import KVEvents
from workloads.units import units

Write = Callable[..., Path]


def stored(parent: Any, *hashes: Any, size: int = 2) -> Any:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": [0] * size * len(hashes),
        "block_size": size,
    }


def removed(*hashes: Any) -> Any:
    return {"type": "BlockRemoved", "block_hashes": hashes}


def batch(time: float, *events: Any) -> Any:
    return {"ts": time, "events": events}


def test_a_stored_event_is_a_request_for_its_chain(write: Write) -> None:
    """Case D3: stored(12), stored(1234 behind 12), removed(1234), stored(1299 behind 12)."""
    path = write(
        batch(5, stored(None, 12), stored(12, 1234)),
        batch(7, removed(1234), stored(12, "1299")),
        [9.5, [["AllBlocksCleared"], ["BlockStored", [7, 8], None, [0] * 4, 2, None, "GPU"]], 0],
    )
    assert detect(path) == "kv_events"
    workload = KVEvents(path)
    assert [list(units(request).names) for request in workload] == [[0], [0, 1], [0, 2], [3, 4]]
    assert [request.arrival_time for request in workload] == [0, 0, 2, 4.5]
    assert workload.block_size == 2
    counts = (workload.num_stored, workload.num_removed, workload.num_cleared)
    assert (*counts, workload.peak_blocks) == (5, 1, 1, 2)
    assert "left no event" in workload.notes[-1]


def test_of_two_copies_one_stays(write: Write) -> None:
    """Case D1: a block that is stored twice may be removed twice, and not a third time."""
    twice = [batch(0, stored(None, 1), stored(None, 1)), batch(1, removed(1)), batch(2, removed(1))]
    assert KVEvents(write(*twice)).num_removed == 2
    with pytest.raises(TraceError, match=r":4: .*a block is removed that is not stored"):
        KVEvents(write(*twice, batch(3, removed(1))))


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (stored(99, 2), "parent_block_hash 99 was never stored"),
        (stored([], 2), "parent_block_hash is \\[\\]"),
        (stored(1, 1), "a block is stored again behind another parent"),
        (stored(None, 2, size=4), "block_size is 4; it must be 2"),
        (stored(None), "block_hashes is \\[\\]"),
        ({"type": "BlockMoved"}, "type is 'BlockMoved'"),
        (["BlockStored", [1]], "the event is \\['BlockStored', \\[1\\]\\]"),
        (5, "the event is 5"),
    ],
)
def test_bad_events_are_named(write: Write, event: Any, what: str) -> None:
    with pytest.raises(TraceError, match=f":2: .*{what}"):
        KVEvents(write(batch(0, stored(None, 1)), batch(1, event)))


def test_events_of_real_vllm_are_read(goldens: Path, write: Write) -> None:
    """All events of recorded engine runs: nothing is a bad row, and the books balance.

    What was stored and neither removed nor cleared is what the events say is there.
    """
    num_files = 0
    for path in sorted((goldens / "v0.33.0").glob("[ts]*.json")):
        recording = json.loads(path.read_text("utf-8"))
        batches = [
            batch(i, *(_as_published(event) for event in step["events"]))
            for i, step in enumerate(recording.get("steps", ()))
            if step.get("events")
        ]
        kinds = {event["type"] for one in batches for event in one["events"]}
        sizes = {e["block_size"] for one in batches for e in one["events"] if "block_size" in e}
        if "BlockStored" not in kinds or len(sizes) > 1:  # several KV groups have several sizes
            continue
        workload = KVEvents(write(*batches))
        stored = sum(len(e["block_hashes"]) for b in batches for e in b["events"]
                     if e["type"] == "BlockStored")  # fmt: skip
        assert workload.num_stored == stored
        assert len(workload) > 0
        num_files += 1
    assert num_files > 5


def _as_published(event: dict[str, Any]) -> dict[str, Any]:
    """A recorded event with the names of vLLM's own fields."""
    names = {"hashes": "block_hashes", "parent": "parent_block_hash", "tokens": "token_ids"}
    return {names.get(name, name): value for name, value in event.items()}
