"""What must hold in every step before any kernel runs: shapes, slots, and who may write where.

`shape_errors` looks at one step's metadata alone. `PoolInvariants` follows the pool through a run:
whatever content the tokens have, a slot is written once between two hand-outs of its block, and a
block is handed out or written only while nobody else holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_backend.metadata import NULL_BLOCK_ID, PAD_SLOT_ID, AttentionMetadata
from gpu_backend.trace import Tables, TracedStep, fresh_of


class Finding(NamedTuple):
    """One thing that is wrong. *layer* is the check that found it; -1 where something is unknown.

    *step*, *request*: numbers in the trace. *position*: a token of the request.
    """

    layer: str
    step: int
    request: int
    position: int
    block: int
    message: str

    def __str__(self) -> str:
        places = [f"step {self.step}"]
        places += [f"request {self.request}"] * (self.request >= 0)
        places += [f"position {self.position}"] * (self.position >= 0)
        places += [f"block {self.block}"] * (self.block >= 0)
        return f"{self.layer}: {', '.join(places)}: {self.message}"


def shape_errors(metadata: AttentionMetadata, block_size: int) -> Iterator[str]:
    """What is wrong with one step's metadata, whatever went before."""
    starts, seq_lens = metadata.query_start_loc.astype(np.int64), metadata.seq_lens
    num_tokens, table = metadata.num_actual_tokens, metadata.block_table
    slots = metadata.slot_mapping[:num_tokens]
    query_lens = np.diff(starts)
    if len(starts) != len(seq_lens) + 1 or len(table) != len(seq_lens):
        yield "query_start_loc, seq_lens and block_table disagree about the number of rows"
        return
    if starts[0] != 0 or starts[-1] != num_tokens or query_lens.min() < 0:
        yield f"query_start_loc runs from {starts[0]} to {starts[-1]}; it must be 0 to {num_tokens}"
        return
    if query_lens.max() != metadata.max_query_len or seq_lens.max() != metadata.max_seq_len:
        yield "max_query_len or max_seq_len is not the largest"
    if (query_lens > seq_lens).any():
        yield "a row has more scheduled tokens than tokens"
    if ((query_lens == 0) != (seq_lens == 0)).any():
        yield "a row without scheduled tokens is no padding"
    if (metadata.slot_mapping[num_tokens:] != PAD_SLOT_ID).any():
        yield f"slot_mapping is not {PAD_SLOT_ID} behind the {num_tokens} tokens"
    if len(slots) < num_tokens or (slots < 0).any():
        yield "a token has no slot"
        return
    if len(np.unique(slots)) < num_tokens:
        yield "two tokens have the same slot"
    if (seq_lens > table.shape[1] * block_size).any():
        yield "a row is longer than its block table"
        return
    yield from _slots_beside_table(metadata, block_size)


def _slots_beside_table(metadata: AttentionMetadata, block_size: int) -> Iterator[str]:
    """Each token's slot must be where the block table says that its position is."""
    starts, query_lens = metadata.query_start_loc[:-1], np.diff(metadata.query_start_loc)
    computed = metadata.seq_lens - query_lens
    row = np.repeat(np.arange(len(query_lens)), query_lens)
    positions = np.arange(metadata.num_actual_tokens) + np.repeat(computed - starts, query_lens)
    blocks = metadata.block_table[row, positions // block_size].astype(np.int64)
    expected = blocks * block_size + positions % block_size
    wrong = np.flatnonzero(expected != metadata.slot_mapping[: metadata.num_actual_tokens])
    if len(wrong):
        i = wrong[0]
        yield (
            f"token {i} goes to slot {metadata.slot_mapping[i]}; the block table says {expected[i]}"
        )


class PoolInvariants:
    """Follows a run and finds what breaks the pool's rules."""

    def __init__(self, num_blocks: int, block_size: int, *, null_block: bool = True) -> None:
        self.block_size = block_size
        self.null_block = null_block
        self.holders = np.zeros(num_blocks, dtype=np.int32)  # requests whose table has the block
        self.is_written = np.zeros((num_blocks, block_size), dtype=bool)  # since it was handed out
        self._held: dict[int, list[npt.NDArray[np.int32]]] = {}

    def apply(
        self, number: int, step: TracedStep, tables: Tables, metadata: AttentionMetadata
    ) -> Iterator[Finding]:
        """What step *number* breaks; *tables* are already those of this step."""
        for message in shape_errors(metadata, self.block_size):
            yield Finding("metadata", number, -1, -1, -1, message)
        yield from self._events(number, step)
        yield from self._hand_out(number, step)
        slots = metadata.slot_mapping[: metadata.num_actual_tokens]
        flat = self.is_written.reshape(-1)
        if len(slots) and slots.max() >= len(flat):
            yield self._found(number, -1, -1, f"slot {slots.max()} of {len(flat)} does not exist")
            slots = slots[slots < len(flat)]
        for slot in slots[flat[slots]][:1].tolist():
            i = int(np.flatnonzero(slots == slot)[0])
            row = int(np.searchsorted(metadata.query_start_loc, i, side="right")) - 1
            yield self._found(
                number,
                step.rows[row].request,
                int(slot) // self.block_size,
                "a slot is written again although its block was not handed out anew",
            )
        flat[slots] = True

    def _events(self, number: int, step: TracedStep) -> Iterator[Finding]:
        for event in step.events:
            if event.kind == "freed":
                for ids in self._held.pop(event.number, ()):
                    self.holders[ids] -= 1
            elif event.kind == "copied":
                if self.holders[event.number]:
                    yield self._found(number, -1, event.number, "copied into while it is held")
                self.is_written[event.number] = self.is_written[event.source]

    def _hand_out(self, number: int, step: TracedStep) -> Iterator[Finding]:
        for row in step.rows:
            if not len(row.block_ids):  # most rows, most of the time
                continue
            ids, fresh = row.block_ids, fresh_of(row, self.block_size)
            if row.is_admission:
                self._held[row.request] = [ids]
            else:
                self._held.setdefault(row.request, []).append(ids)
            if self.null_block and (ids == NULL_BLOCK_ID).any():
                yield self._found(number, row.request, 0, "the null block is in a table")
            for block in fresh[self.holders[fresh] > 0][:1].tolist():
                yield self._found(number, row.request, block, "handed out while another holds it")
            self.is_written[fresh] = False
            self.holders[ids] += 1

    def _found(self, number: int, request: int, block: int, message: str) -> Finding:
        return Finding("pool", number, request, -1, block, message)
