from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies.vllm import VLLMBlockManager
from sim.errors import TraceError
from sim.replay import replay
from workloads.detect import detect
from workloads.tracelab import TraceLab

Write = Callable[..., Path]
SAMPLE = Path(__file__).parents[1] / "data" / "samples" / "tracelab.jsonl"


def test_content_explains_the_hits() -> None:
    """Round 2 begins with 110 of the 120 tokens of round 1; another session shares 50 of its 60."""
    workload = TraceLab(SAMPLE, block_size=10)
    first, second, other = workload
    assert first.keys.common(second.keys, 0, 12) == 11
    assert first.keys.common(other.keys, 0, 9) == 5
    assert [request.arrival_time for request in workload] == [0, 12.5, 60]
    assert [(r.hints or {})["tool"] for r in workload] == ["Bash", None, None]
    assert "no ids" in workload.notes[0]
    result = replay(VLLMBlockManager(999, 10), workload, decode=True)
    assert result.hit_tokens == 110 + 50


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"newly_append_tokens": 41}, "input_tokens_total is 100; it must be prefix_tokens"),
        ({"timing_events": []}, "timing_events is empty"),
        ({"timing_events": [{"event_type": "text", "timestamp": "soon"}]}, "timestamp is 'soon'"),
        ({"tools": {}}, None),
        ({"tools": [5]}, "a tool is 5"),
    ],
)
def test_bad_rows_are_named(write: Write, change: dict[str, Any], what: str | None) -> None:
    row = json.loads(SAMPLE.read_text().splitlines()[0]) | change
    if what is None:
        assert len(TraceLab(write(row))) == 1
        return
    with pytest.raises(TraceError, match=f":1: .*{what}"):
        TraceLab(write(row))


def test_the_published_example(kvsim_data: Path) -> None:
    """19 rounds in 2 sessions; totals are prefix plus new; what the providers hit can be hit."""
    path = kvsim_data / "tracelab" / "example_round_trace.sanitized.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    assert detect(path) == "tracelab"
    workload = TraceLab(path, block_size=1)
    assert len(workload) == 19
    assert len({request.session for request in workload}) == 2
    recorded = sum((request.hints or {})["prefix_tokens"] for request in workload)
    first_rounds = 27_217 + 6_912  # shared with sessions that are not in the file
    result = replay(VLLMBlockManager(10**6, 1), workload, decode=True)
    assert result.hit_tokens == pytest.approx(recorded - first_rounds, abs=19)
