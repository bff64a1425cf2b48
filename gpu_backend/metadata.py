"""What a step tells the attention kernels: lengths, block tables and slots, as vLLM v1 lays it out.

A slot is one token's place in KV memory: `block_id * block_size + offset`. Source: vLLM 0.32.0,
`v1/attention/backends/flash_attn.py` (FlashAttentionMetadata) and `v1/worker/gpu_model_runner.py`.
Differs from vLLM: arrays are numpy's; only tokens are padded, not rows (vLLM pads rows too where
whole steps are captured as CUDA graphs).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PAD_SLOT_ID = -1
NULL_BLOCK_ID = 0


class Row(NamedTuple):
    """One request in a step; *block_ids* is its whole table, covering the scheduled tokens."""

    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: Sequence[int]


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


def build_metadata(
    rows: Sequence[Row], block_size: int, *, table_width: int, pad_to: int | None = None
) -> AttentionMetadata:
    """The metadata of one step, its requests in *rows* in scheduling order.

    *table_width*: columns of the block table, at least the longest row's blocks. *pad_to*: pad the
    slots to this many tokens (see `padded_num_tokens`). ValueError if a row's blocks do not cover
    its tokens, or if they do not fit the table or the padding.
    """
    if not rows:
        raise ValueError("rows is empty; a step schedules at least one request")
    slots = [_slots(row, block_size) for row in rows]
    query_lens = np.array([row.num_scheduled_tokens for row in rows], dtype=np.int32)
    seq_lens = np.array([row.num_computed_tokens for row in rows], dtype=np.int32) + query_lens
    num_actual_tokens = int(query_lens.sum())
    return AttentionMetadata(
        num_actual_tokens=num_actual_tokens,
        max_query_len=int(query_lens.max()),
        query_start_loc=np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32),
        max_seq_len=int(seq_lens.max()),
        seq_lens=seq_lens,
        slot_mapping=_padded(np.concatenate(slots), pad_to),
        block_table=_block_table(rows, table_width),
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


def _slots(row: Row, block_size: int) -> npt.NDArray[np.int64]:
    start, num_tokens = row.num_computed_tokens, row.num_scheduled_tokens
    if start + num_tokens > len(row.block_ids) * block_size:
        raise ValueError(
            f"{len(row.block_ids)} blocks of {block_size} tokens do not hold "
            f"{start} computed and {num_tokens} scheduled tokens"
        )
    positions = np.arange(start, start + num_tokens, dtype=np.int64)
    block_ids = np.asarray(row.block_ids, dtype=np.int64)
    return block_ids[positions // block_size] * block_size + positions % block_size


def _padded(slots: npt.NDArray[np.int64], pad_to: int | None) -> npt.NDArray[np.int64]:
    num_pads = 0 if pad_to is None else pad_to - len(slots)
    if num_pads < 0:
        raise ValueError(f"pad_to is {pad_to}; the step has {len(slots)} tokens")
    return np.pad(slots, (0, num_pads), constant_values=PAD_SLOT_ID)


def _block_table(rows: Sequence[Row], width: int) -> npt.NDArray[np.int32]:
    table = np.full((len(rows), width), NULL_BLOCK_ID, dtype=np.int32)
    for line, row in zip(table, rows, strict=True):
        if len(row.block_ids) > width:
            raise ValueError(f"table_width is {width}; a row has {len(row.block_ids)} blocks")
        line[: len(row.block_ids)] = row.block_ids
    return table
