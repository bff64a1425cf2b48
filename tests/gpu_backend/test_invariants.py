"""Each rule about a step's metadata and the pool is broken once and found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu_backend.check import check_trace
from gpu_backend.content import Content
from gpu_backend.invariants import shape_errors
from gpu_backend.metadata import Row, build_metadata
from gpu_backend.trace import Event, StepTrace, TracedRequest, TracedRow, TracedStep

STEP = build_metadata([Row(5, 1, [3, 7]), Row(2, 3, [2, 9])], 4, pad_to=8)


def array(values, like):
    return np.array(values, dtype=like.dtype)


def test_a_step_as_it_should_be():
    """Nothing is found in what `build_metadata` makes."""
    assert list(shape_errors(STEP, 4)) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("query_start_loc", [0, 1], "disagree about the number of rows"),
        ("query_start_loc", [0, 1, 5], "runs from 0 to 5; it must be 0 to 4"),
        ("query_start_loc", [0, 5, 4], "runs from 0 to 4"),
        ("query_start_loc", [0, 2, 4], "max_query_len or max_seq_len is not the largest"),
        ("seq_lens", [6, 2], "more scheduled tokens than tokens"),
        ("seq_lens", [7, 5], "max_query_len or max_seq_len"),
        ("slot_mapping", [29, 10, 11, 36, 0, -1, -1, -1], "is not -1 behind the 4 tokens"),
        ("slot_mapping", [29, 10, -1, 36, -1, -1, -1, -1], "a token has no slot"),
        ("slot_mapping", [29, 10, 10, 36, -1, -1, -1, -1], "two tokens have the same slot"),
        ("slot_mapping", [29, 10, 11, 37, -1, -1, -1, -1], "the block table says 36"),
        ("block_table", [[3], [2]], "longer than its block table"),
        ("block_table", [[3, 8], [2, 9]], "goes to slot 29; the block table says 33"),
    ],
)
def test_what_is_wrong_with_a_step_is_found(name, value, message):
    """One array is changed; what is said names the rule."""
    wrong = replace(STEP, **{name: array(value, getattr(STEP, name))})
    errors = list(shape_errors(wrong, 4))
    assert any(message in error for error in errors), errors


def trace(*steps) -> StepTrace:
    """Steps of (events, rows), rows as (request, computed, scheduled, is_admission, blocks)."""
    made = [
        TracedStep(float(i), events, [TracedRow(*r[:4], np.array(r[4], np.int32)) for r in rows])
        for i, (events, rows) in enumerate(steps)
    ]
    requests = [TracedRequest(i, 8, Content(np.arange(16) + 100 * i, ())) for i in range(3)]
    return StepTrace(10, 4, requests, made)


def pool_messages(*steps) -> list[str]:
    report = check_trace(trace(*steps))
    return [finding.message for finding in report.findings if finding.layer == "pool"]


FIRST = ([], [(0, 0, 8, True, [1, 2])])


def test_a_run_as_it_should_be():
    """A block is handed out again once nobody holds it."""
    assert pool_messages(FIRST, ([Event("freed", 0)], [(1, 0, 8, True, [2, 1])])) == []


def test_a_block_that_is_held_is_not_handed_out():
    """Request 0 still holds block 2."""
    assert pool_messages(FIRST, ([], [(1, 0, 8, True, [3, 2])])) == [
        "handed out while another holds it"
    ]


def test_a_slot_is_written_once_between_two_hand_outs():
    """Request 1 reuses block 1 but writes its last token into it: copy-on-write is missing."""
    assert pool_messages(FIRST, ([], [(1, 3, 1, True, [1])])) == [
        "a slot is written again although its block was not handed out anew"
    ]


def test_the_null_block_is_in_no_table():
    """Block 0 takes the writes of padding; without a null block it is one like any other."""
    step = ([], [(0, 0, 8, True, [0, 2])])
    assert pool_messages(step) == ["the null block is in a table"]
    assert check_trace(replace(trace(step), about={"null_block": False})).is_clean


def test_offloaded_content_comes_back():
    """Block 1 goes to block 10 of another tier and comes back in block 5, which is then a hit."""
    away = [Event("freed", 0), Event("copied", 10, 1)]
    other = (away, [(1, 0, 8, True, [1, 2])])
    back = ([Event("freed", 1), Event("copied", 5, 10)], [(0, 4, 4, True, [5, 6])])
    good = replace(trace(FIRST, other, back), num_offload_blocks=2)
    assert check_trace(good).is_clean
    lost = ([Event("freed", 1), Event("copied", 5, 11)], [(0, 4, 4, True, [5, 6])])
    report = check_trace(replace(trace(FIRST, other, lost), num_offload_blocks=2))
    assert [str(finding) for finding in report.findings] == [
        "L0: step 2, request 0, position 0, block 5: the slot is unwritten"
    ]


def test_a_copy_into_a_block_in_use_is_found():
    """Request 0 still reads block 2."""
    step = ([Event("copied", 2, 10)], [(1, 0, 4, True, [3])])
    report = check_trace(replace(trace(FIRST, step), num_offload_blocks=1))
    assert [f.message for f in report.findings] == ["copied into while it is held"]
