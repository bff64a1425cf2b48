"""Real steps of a decoder with paged KV, to be timed: any number of rows of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.cache import PagedKVCache
from gpu_backend.clock import seconds
from gpu_backend.metadata import Row, build_metadata
from gpu_backend.model import Shape, TinyDecoder

Tensor = Any
Rows = Sequence[tuple[int, int]]  # (scheduled, computed) tokens of each request of a step


class StepTimer:
    """A decoder of *shape* and a cache of *num_blocks*; `seconds` times one step."""

    def __init__(
        self,
        shape: Shape,
        backend: Backend,
        *,
        num_blocks: int,
        block_size: int = 16,
        dtype: Any = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.shape, self.backend, self.device = shape, backend, device
        self.block_size, self.num_blocks = block_size, num_blocks
        self.model = TinyDecoder(shape, dtype=dtype, device=device)
        self.cache = PagedKVCache(
            shape.num_layers,
            num_blocks,
            block_size,
            shape.num_kv_heads,
            shape.head_dim,
            dtype=dtype,
            device=device,
            poison=0.01,
        )

    def seconds(self, rows: Rows, *, at_least: float = 0.05) -> float:
        """How long a step of *rows* takes, from token ids to the scores of what is sampled."""
        work = self.step(rows)
        with torch.inference_mode():
            return seconds(work, self.device, at_least=at_least)

    def step(self, rows: Rows) -> Any:
        """The computation of a step, to be called."""
        batch = Batch.of(self.metadata(rows), self.device)
        num_tokens = batch.num_actual_tokens
        tokens = torch.arange(2 * num_tokens, device=self.device).reshape(-1, 2)
        tokens = tokens % self.shape.vocab_size
        parts = [torch.arange(p, p + n, device=self.device) for n, p in rows]
        positions, last = torch.cat(parts), batch.query_start_loc[1:].long() - 1

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.backend.write(self.cache, layer, batch.slot_mapping, k, v)
            return self.backend.attend(self.cache, layer, q, batch)

        def work() -> Tensor:
            hidden = self.model.forward(tokens, positions, attend)
            return self.model.logits(hidden[last])

        return work

    def metadata(self, rows: Rows) -> Any:
        """Every row gets blocks of its own, one behind the other, as far as there are any."""
        first, made = 1, []
        for scheduled, computed in rows:
            count = -(-(scheduled + computed) // self.block_size)
            if first + count > self.num_blocks:
                first = 1  # too few for all: they share, which changes no shape
            made.append(Row(computed, scheduled, list(range(first, first + count))))
            first += count
        return build_metadata(made, self.block_size)
