"""Run a decoder over a step trace: KV in pages, tokens from the trace, nothing is sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.cache import Layout, PagedKVCache
from gpu_backend.check import Tamper, metadata_steps
from gpu_backend.metadata import AttentionMetadata
from gpu_backend.model import Decoder, token_ids
from gpu_backend.trace import StepTrace, Tables, TracedStep, fresh_blocks

Tensor = Any


class Computed(NamedTuple):
    """One step that was computed: *hidden* [T, hidden_size], its rows one behind the other."""

    number: int
    step: TracedStep
    tables: Tables
    metadata: AttentionMetadata
    hidden: Tensor


class PagedReplay:
    """A decoder, its paged cache and a backend, going through *trace*."""

    def __init__(
        self, trace: StepTrace, model: Decoder, backend: Backend, *, layout: Layout = "NHD"
    ) -> None:
        self.trace, self.model, self.backend = trace, model, backend
        shape = model.shape
        self.cache = PagedKVCache(
            shape.num_layers,
            trace.num_blocks + trace.num_offload_blocks,
            trace.block_size,
            shape.num_kv_heads,
            shape.head_dim,
            dtype=model.dtype,
            device=model.device,
            layout=layout,
            poison=backend.poison,
        )
        self.tokens = [token_ids(r.content, shape.vocab_size) for r in trace.requests]

    def steps(
        self, *, sizes: Sequence[int] = (), tamper: Tamper | None = None
    ) -> Iterator[Computed]:
        """Compute step after step, padded to *sizes*; each is yielded when it is done."""
        for number, step, tables, metadata in metadata_steps(
            self.trace, sizes=sizes, tamper=tamper
        ):
            self._move(step)
            hidden = self._compute(step, metadata)
            yield Computed(number, step, tables, metadata, hidden[: metadata.num_actual_tokens])

    def _move(self, step: TracedStep) -> None:
        for event in step.events:
            if event.kind == "copied":
                self.cache.copy_block(event.source, event.number)
        fresh = fresh_blocks(step, self.trace.block_size)
        if len(fresh):
            self.cache.poison(torch.from_numpy(fresh).long().to(self.model.device))

    def _compute(self, step: TracedStep, metadata: AttentionMetadata) -> Tensor:
        num_slots = self.cache.num_blocks * self.cache.block_size
        if metadata.slot_mapping.max() >= num_slots or metadata.block_table.min() < 0:
            raise ValueError("a slot or block outside the cache: a kernel would not say so")
        device, batch = self.model.device, Batch.of(metadata, self.model.device)
        tokens, positions = self._inputs(step, len(metadata.slot_mapping))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # All of a layer's KV first: a row may hit what its neighbour computes in this step.
            self.backend.write(self.cache, layer, batch.slot_mapping, k, v)
            return self.backend.attend(self.cache, layer, q, batch)

        with torch.inference_mode():
            return self.model.forward(
                torch.from_numpy(tokens).to(device), torch.from_numpy(positions).to(device), attend
            )

    def _inputs(self, step: TracedStep, num_tokens: int) -> tuple[Any, Any]:
        """Tokens and positions of a step, padded with zeros to *num_tokens*."""
        tokens = np.zeros((num_tokens, 2), dtype=np.int64)
        positions = np.zeros(num_tokens, dtype=np.int64)
        start = 0
        for row in step.rows:
            stop = start + row.num_scheduled_tokens
            first = row.num_computed_tokens
            positions[start:stop] = np.arange(first, first + stop - start)
            tokens[start:stop] = self.tokens[row.request][positions[start:stop]]
            start = stop
        return tokens, positions
