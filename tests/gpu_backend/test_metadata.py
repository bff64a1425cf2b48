"""The metadata rows of the specification come out of the manager's own block tables."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from gpu_backend.check import metadata_steps
from gpu_backend.invariants import shape_errors
from gpu_backend.metadata import Row, build_metadata, capture_sizes, padded_num_tokens
from gpu_backend.tracing import traced_run
from policies.reference import ReferenceBlockManager
from sim.engine import Engine
from sim.keys import TokenKeys
from sim.request import Request

BLOCK_SIZE = 16
A, B = range(997), range(5000, 5997)
IDS = count()


def schedule(manager, tokens):
    """Admit a prompt whole: its row in that step, and the request."""
    request = Request(next(IDS), TokenKeys(tokens, BLOCK_SIZE), len(tokens), max_tokens=1)
    hit = manager.get_computed_blocks(request)
    num_new = len(tokens) - hit.num_tokens
    assert manager.allocate_slots(request, num_new, hit) is not None
    block_ids = [block.block_id for block in manager.table(request.request_id)]
    return Row(hit.num_tokens, num_new, block_ids), request


def rows_of_runs(free_order, *prompts):
    """The row of each prompt, every one finished before the next arrives."""
    manager = ReferenceBlockManager(10_000, BLOCK_SIZE, free_order=free_order)
    rows = []
    for tokens in prompts:
        row, request = schedule(manager, tokens)
        manager.free(request)
        rows.append(row)
    return rows


@pytest.mark.parametrize(("free_order", "last"), [("tail", 127), ("unhashed_first", 125)])
def test_the_specifications_rows_from_a_simulated_run(free_order, last):
    """An engine run of A, B, A: 997 tokens in slots 16-1012, and 5 tokens in the last block."""
    manager = ReferenceBlockManager(10_000, BLOCK_SIZE, free_order=free_order)
    requests = [
        Request(i, TokenKeys(tokens, BLOCK_SIZE), len(tokens), 1, arrival_time=10.0 * i)
        for i, tokens in enumerate((A, B, A))
    ]
    trace = traced_run(Engine(manager), requests)
    cold, _, cached = (
        metadata for *_, metadata in metadata_steps(trace, sizes=capture_sizes(256, 8192))
    )
    assert cold.num_actual_tokens == cold.max_query_len == cold.max_seq_len == 997
    assert cold.query_start_loc.tolist() == [0, 997]
    assert cold.seq_lens.tolist() == [997]
    assert cold.slot_mapping.tolist() == list(range(16, 1013))
    assert cold.block_table.tolist() == [list(range(1, 64))]
    assert cached.num_actual_tokens == cached.max_query_len == 5
    assert cached.query_start_loc.tolist() == [0, 5]
    assert (cached.max_seq_len, cached.seq_lens.tolist()) == (997, [997])
    slots = [last * 16 + i for i in range(5)]
    assert cached.slot_mapping.tolist() == [*slots, -1, -1, -1]
    assert cached.block_table.tolist() == [[*range(1, 63), last]]
    assert cached.batch_descriptor.num_tokens == 8
    if free_order == "tail":
        assert slots == [2032, 2033, 2034, 2035, 2036]


def test_a_cold_997_token_prompt():
    """The specification's first row: slots 16 to 1012, blocks 1 to 63, 997 tokens, no padding."""
    (row,) = rows_of_runs("tail", A)
    pad_to = padded_num_tokens(997, capture_sizes(256, 8192))
    step = build_metadata([row], BLOCK_SIZE, table_width=128, pad_to=pad_to)

    assert step.num_actual_tokens == step.max_query_len == step.max_seq_len == 997
    assert step.query_start_loc.tolist() == [0, 997]
    assert step.seq_lens.tolist() == [997]
    assert step.slot_mapping.tolist() == list(range(16, 1013))
    assert step.block_table.tolist() == [[*range(1, 64), *[0] * 65]]


def test_the_same_prompt_from_the_cache():
    """The specification's second row: 992 tokens hit, five computed in block 127, padded to 8.

    A takes the blocks 1-63 and another 997-token prompt 64-126; a freed block goes to the tail,
    behind those never used, so A's last block is the next of these.
    """
    *_, row = rows_of_runs("tail", A, B, A)
    pad_to = padded_num_tokens(5, capture_sizes(256, 8192))
    step = build_metadata([row], BLOCK_SIZE, table_width=128, pad_to=pad_to)

    assert step.num_actual_tokens == step.max_query_len == 5
    assert step.query_start_loc.tolist() == [0, 5]
    assert step.max_seq_len == 997
    assert step.seq_lens.tolist() == [997]
    assert step.slot_mapping.tolist() == [2032, 2033, 2034, 2035, 2036, -1, -1, -1]
    assert step.block_table.tolist() == [[*range(1, 63), 127, *[0] * 65]]
    assert step.batch_descriptor.num_tokens == 8


@pytest.mark.parametrize(
    ("free_order", "prompts", "last"),
    [("tail", (A, A), 64), ("unhashed_first", (A, B, A), 125), ("unhashed_first", (A, A), 63)],
)
def test_the_last_block_tells_the_free_order(free_order, prompts, last):
    """Fact sheet 12: without B the block is 64; where unhashed blocks go to the front, 125."""
    *_, row = rows_of_runs(free_order, *prompts)
    assert row.block_ids == [*range(1, 63), last]


def test_one_step_of_several_rows():
    """Rows are concatenated in order; dtypes are vLLM's; -1 and 0 fill what is unused.

    Slots by hand, block size 4: a decode at position 5 in the blocks [3, 7] is 7 * 4 + 1 = 29; a
    chunk of positions 2-4 in the blocks [2, 9] is 10, 11, 36.
    """
    step = build_metadata([Row(5, 1, [3, 7]), Row(2, 3, [2, 9])], 4, table_width=3, pad_to=8)
    assert step.slot_mapping.tolist() == [29, 10, 11, 36, -1, -1, -1, -1]
    assert step.query_start_loc.tolist() == [0, 1, 4]
    assert step.seq_lens.tolist() == [6, 5]
    assert (step.num_actual_tokens, step.max_query_len, step.max_seq_len) == (4, 3, 6)
    assert step.block_table.tolist() == [[3, 7, 0], [2, 9, 0]]
    assert step.slot_mapping.dtype == np.int64
    for array in (step.query_start_loc, step.seq_lens, step.block_table):
        assert array.dtype == np.int32


def test_without_padding_the_slots_are_the_tokens():
    """*pad_to* is optional: the batch then has exactly the scheduled tokens."""
    step = build_metadata([Row(0, 3, [1])], 4, table_width=1)
    assert step.slot_mapping.tolist() == [4, 5, 6]
    assert step.batch_descriptor.num_tokens == 3


def test_a_request_scheduled_in_the_same_step_reads_what_its_neighbour_writes():
    """Two equal prompts in one step: the second's table begins with blocks the first fills now."""
    manager = ReferenceBlockManager(20, BLOCK_SIZE)
    rows = [schedule(manager, range(40))[0] for _ in range(2)]
    assert rows[0] == (0, 40, [1, 2, 3])
    assert rows[1] == (32, 8, [1, 2, 4])
    step = build_metadata(rows, BLOCK_SIZE, table_width=4)
    assert step.seq_lens.tolist() == [40, 40]
    assert step.slot_mapping.tolist() == [*range(16, 56), *range(64, 72)]


def test_rows_are_padded_where_a_whole_step_is_captured():
    """Rows of no tokens: length 0, the null block, and the last query start repeated."""
    step = build_metadata([Row(5, 1, [3, 7])], 4, pad_to=4, pad_rows_to=3)
    assert step.query_start_loc.tolist() == [0, 1, 1, 1]
    assert step.seq_lens.tolist() == [6, 0, 0]
    assert step.block_table.tolist() == [[3, 7], [0, 0], [0, 0]]
    assert list(shape_errors(step, 4)) == []
    with pytest.raises(ValueError, match="pad_rows_to is 1; the step has 2 rows"):
        build_metadata([Row(0, 1, [1]), Row(0, 1, [2])], 4, pad_rows_to=1)


@pytest.mark.parametrize(
    ("rows", "width", "pad_to", "message"),
    [
        ([], 4, None, "rows is empty"),
        ([Row(0, 9, [1, 2])], 4, None, "2 blocks of 4 tokens do not hold 0 computed and 9"),
        ([Row(0, 5, [1, 2])], 1, None, "table_width is 1; a row has 2 blocks"),
        ([Row(0, 5, [1, 2])], 4, 4, "pad_to is 4; the step has 5 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(rows, width, pad_to, message):
    """A row that its blocks, the table or the padding cannot hold is an error, not garbage."""
    with pytest.raises(ValueError, match=message):
        build_metadata(rows, 4, table_width=width, pad_to=pad_to)


def test_default_capture_sizes():
    """1, 2, 4, then by 8 to 248, then by 16; at most 2 * max_num_seqs, 512 and the token budget."""
    sizes = capture_sizes(1024, 8192)
    assert sizes == [1, 2, 4, *range(8, 249, 8), *range(256, 513, 16)]
    assert capture_sizes(12, 8192) == [1, 2, 4, 8, 16, 24]
    assert capture_sizes(128, 100)[-2:] == [96, 100]
    assert [padded_num_tokens(n, sizes) for n in (1, 3, 5, 8, 9, 257, 512, 513, 997)] == [
        *[1, 4, 8, 8, 16, 272, 512, 513, 997],
    ]
