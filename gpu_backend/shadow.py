"""L0: a shadow of KV memory that knows whose content every slot holds, without any tensor.

Each slot carries the fingerprint of everything that defines the KV written there (`content`). In
each step all writes come first, as in every attention layer; then every slot that a request reads
must carry the fingerprint of its own content. This finds what no comparison of numbers can: two
tenants whose KV is equal and must not be shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gpu_backend.content import Words, fingerprints
from gpu_backend.invariants import Finding
from gpu_backend.metadata import AttentionMetadata
from gpu_backend.trace import StepTrace, TracedStep, fresh_blocks

UNWRITTEN = np.uint64(0)


class Shadow:
    """What every slot holds, through a run."""

    def __init__(self, trace: StepTrace) -> None:
        self.block_size = size = trace.block_size
        num_blocks = trace.num_blocks + trace.num_offload_blocks
        self.slots = np.full((num_blocks, size), UNWRITTEN)
        self.num_reads = 0  # slots compared
        whole = [_in_blocks(fingerprints(request.content), size) for request in trace.requests]
        lengths = [len(blocks) for blocks in whole]
        self._content = np.concatenate([*whole, np.zeros((1, size), dtype=np.uint64)])
        self._first = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))[: len(whole)]
        # Row n: which places of a block lie behind its first n tokens.
        self._behind = np.arange(size) >= np.arange(size + 1)[:, None]

    def apply(
        self, number: int, step: TracedStep, metadata: AttentionMetadata
    ) -> Iterator[Finding]:
        """Write and read what step *number* does; what was read wrongly."""
        requests = np.array([row.request for row in step.rows], dtype=np.int64)
        for event in step.events:
            if event.kind == "copied":
                self.slots[event.number] = self.slots[event.source]
        self.slots[fresh_blocks(step, self.block_size)] = UNWRITTEN  # not to be read any more
        self._write(requests, metadata)
        yield from self._read(number, requests, metadata)

    def _write(self, requests: npt.NDArray[np.int64], metadata: AttentionMetadata) -> None:
        num_rows, num_tokens = len(requests), metadata.num_actual_tokens
        starts = metadata.query_start_loc[: num_rows + 1]
        query_lens = np.diff(starts)
        computed = metadata.seq_lens[:num_rows] - query_lens
        places = np.repeat(self._first[requests] * self.block_size + computed, query_lens)
        places += np.arange(num_tokens) - np.repeat(starts[:-1], query_lens)
        flat, slots = self.slots.reshape(-1), metadata.slot_mapping[:num_tokens]
        exists = (slots >= 0) & (slots < len(flat))
        flat[slots[exists]] = self._content.reshape(-1)[places[exists]]

    def _read(
        self, number: int, requests: npt.NDArray[np.int64], metadata: AttentionMetadata
    ) -> Iterator[Finding]:
        num_rows, size = len(requests), self.block_size
        seq_lens = metadata.seq_lens[:num_rows].astype(np.int64)
        num_blocks = -(-seq_lens // size)
        column = np.arange(metadata.block_table.shape[1])
        is_read = column < num_blocks[:, None]
        blocks = metadata.block_table[:num_rows][is_read]
        content = (self._first[requests][:, None] + column)[is_read]
        wrong = self.slots[blocks] != self._content[content]
        last = np.cumsum(num_blocks) - 1
        wrong[last] &= ~self._behind[seq_lens - (num_blocks - 1) * size]
        self.num_reads += int(seq_lens.sum())
        if wrong.any():
            rows = np.repeat(np.arange(num_rows), num_blocks)
            yield from self._findings(number, requests, rows, blocks, wrong, last, num_blocks)

    def _findings(
        self,
        number: int,
        requests: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        blocks: npt.NDArray[np.int32],
        wrong: npt.NDArray[np.bool_],
        last: npt.NDArray[np.int64],
        num_blocks: npt.NDArray[np.int64],
    ) -> Iterator[Finding]:
        """One finding per block that is read wrongly, the first wrong place of it."""
        for i in np.flatnonzero(wrong.any(axis=1)).tolist():
            row, offset = int(rows[i]), int(np.argmax(wrong[i]))
            block = int(blocks[i])
            index = i - int(last[row]) + int(num_blocks[row]) - 1
            unwritten = self.slots[block, offset] == UNWRITTEN
            what = "is unwritten" if unwritten else "holds other content"
            position = index * self.block_size + offset
            yield Finding("L0", number, int(requests[row]), position, block, f"the slot {what}")


def _in_blocks(words: Words, size: int) -> Words:
    """*words* as rows of one block each, the last one filled up."""
    return np.pad(words, (0, -len(words) % size)).reshape(-1, size)


def owners(trace: StepTrace, block: int, until: int) -> Sequence[tuple[int, int]]:
    """Who was given *block*, as (step, request), up to step *until*."""
    found = []
    for number, step in enumerate(trace.steps[: until + 1]):
        for row in step.rows:
            if (row.block_ids == block).any():
                found.append((number, row.request))
    return found
