"""What a step tells the attention kernels: lengths, block tables and slots, as vLLM v1 lays it out.

A slot is one token's place in KV memory: `block_id * block_size + offset`. Source: vLLM 0.32.0,
`v1/attention/backends/flash_attn.py` (FlashAttentionMetadata) and `v1/worker/gpu_model_runner.py`.
Differs from vLLM: arrays are numpy's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_backend.trace import Tables, TracedStep

PAD_SLOT_ID = -1
NULL_BLOCK_ID = 0


class Row(NamedTuple):
    """One request in a step; *block_ids* is its whole table, covering the scheduled tokens."""

    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: Sequence[int] | npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """The shape a step runs with: its tokens after padding."""

    num_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """One step's batch; R rows, T tokens (padding not counted), table width W. Names are vLLM's."""

    num_actual_tokens: int  # T
    max_query_len: int
    query_start_loc: npt.NDArray[np.int32]  # [R + 1], cumulative query lengths
    max_seq_len: int
    seq_lens: npt.NDArray[np.int32]  # [R], computed and scheduled tokens together
    slot_mapping: npt.NDArray[np.int64]  # [T or more], behind T: PAD_SLOT_ID
    block_table: npt.NDArray[np.int32]  # [R, W], unused places: NULL_BLOCK_ID

    @property
    def batch_descriptor(self) -> BatchDescriptor:
        """What the step is padded to."""
        return BatchDescriptor(num_tokens=len(self.slot_mapping))


def step_rows(step: TracedStep, tables: Tables) -> list[Row]:
    """The rows of a traced step, with the tables that *tables* holds by then."""
    return [
        Row(row.num_computed_tokens, row.num_scheduled_tokens, tables[row.request])
        for row in step.rows
    ]


def build_metadata(
    rows: Sequence[Row],
    block_size: int,
    *,
    table_width: int | None = None,
    pad_to: int | None = None,
    pad_rows_to: int | None = None,
) -> AttentionMetadata:
    """The metadata of one step, its requests in *rows* in scheduling order.

    *table_width*: columns of the block table, by default the longest row's blocks. *pad_to*: pad
    the slots to this many tokens (see `padded_num_tokens`). *pad_rows_to*: pad to this many rows
    with rows of no tokens, as vLLM does where whole steps are captured as CUDA graphs. ValueError
    if a row's blocks do not cover its tokens, or if they do not fit the table or the padding.
    """
    if not rows:
        raise ValueError("rows is empty; a step schedules at least one request")
    computed = np.array([row.num_computed_tokens for row in rows], dtype=np.int64)
    query_lens = np.array([row.num_scheduled_tokens for row in rows], dtype=np.int64)
    num_blocks = np.array([len(row.block_ids) for row in rows], dtype=np.int64)
    _check_cover(computed, query_lens, num_blocks, block_size)
    table = _block_table(rows, num_blocks, table_width)
    starts = np.concatenate(([0], np.cumsum(query_lens)))
    slots = _slots(table, computed, query_lens, starts, block_size)
    num_pads = _num_pads("rows", pad_rows_to, len(rows))
    seq_lens = computed + query_lens
    return AttentionMetadata(
        num_actual_tokens=len(slots),
        max_query_len=int(query_lens.max()),
        query_start_loc=np.pad(starts, (0, num_pads), mode="edge").astype(np.int32),
        max_seq_len=int(seq_lens.max()),
        seq_lens=np.pad(seq_lens, (0, num_pads)).astype(np.int32),
        slot_mapping=np.pad(
            slots,
            (0, _num_pads("tokens", pad_to, len(slots))),
            constant_values=PAD_SLOT_ID,
        ),
        block_table=np.pad(table, ((0, num_pads), (0, 0)), constant_values=NULL_BLOCK_ID),
    )


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[int]:
    """The token counts for which vLLM captures CUDA graphs by default, ascending.

    1, 2, 4, then every 8 below 256, then every 16, up to the smaller of 2 * *max_num_seqs*, 512 and
    *max_num_batched_tokens*; the last of these is a size itself where it is the smallest.
    """
    largest = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    sizes = [n for n in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)) if n <= largest]
    if largest == max_num_batched_tokens and largest not in sizes:
        sizes.append(largest)
    return sizes


def padded_num_tokens(num_tokens: int, sizes: Sequence[int]) -> int:
    """The smallest of the ascending *sizes* that holds *num_tokens*; beyond all, no padding."""
    i = bisect_left(sizes, num_tokens)
    return sizes[i] if i < len(sizes) else num_tokens


def _check_cover(
    computed: npt.NDArray[np.int64],
    query_lens: npt.NDArray[np.int64],
    num_blocks: npt.NDArray[np.int64],
    block_size: int,
) -> None:
    short = np.flatnonzero(computed + query_lens > num_blocks * block_size)
    if len(short):
        i = short[0]
        raise ValueError(
            f"{num_blocks[i]} blocks of {block_size} tokens do not hold "
            f"{computed[i]} computed and {query_lens[i]} scheduled tokens"
        )


def _block_table(
    rows: Sequence[Row], num_blocks: npt.NDArray[np.int64], width: int | None
) -> npt.NDArray[np.int32]:
    longest = int(num_blocks.max())
    width = longest if width is None else width
    if longest > width:
        raise ValueError(f"table_width is {width}; a row has {longest} blocks")
    table = np.full((len(rows), width), NULL_BLOCK_ID, dtype=np.int32)
    for line, row in zip(table, rows, strict=True):
        line[: len(row.block_ids)] = row.block_ids
    return table


def _slots(
    table: npt.NDArray[np.int32],
    computed: npt.NDArray[np.int64],
    query_lens: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    block_size: int,
) -> npt.NDArray[np.int64]:
    row = np.repeat(np.arange(len(table)), query_lens)
    positions = np.arange(starts[-1]) + np.repeat(computed - starts[:-1], query_lens)
    blocks = table[row, positions // block_size].astype(np.int64)
    return np.asarray(blocks * block_size + positions % block_size)


def _num_pads(what: str, wanted: int | None, there: int) -> int:
    if wanted is not None and wanted < there:
        name = "pad_to" if what == "tokens" else "pad_rows_to"
        raise ValueError(f"{name} is {wanted}; the step has {there} {what}")
    return 0 if wanted is None else wanted - there
