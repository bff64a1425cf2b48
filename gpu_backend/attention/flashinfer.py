"""FlashInfer's paged prefill, which also decodes. Written from its documentation; not run yet."""

from __future__ import annotations

from typing import Any

import torch

from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.cache import PagedKVCache
from gpu_backend.extras import is_installed, need

Tensor = Any
WORKSPACE = 128 << 20  # bytes, what its documentation recommends


class FlashInfer(Backend):
    """`BatchPrefillWithPagedKVCacheWrapper`, layout NHD."""

    name = "flashinfer"
    devices = ("cuda",)
    dtypes = ("bfloat16", "float16")
    head_dims = "64 128 256"
    poison = 100.0

    @classmethod
    def missing(cls, device: str) -> str:
        if not is_installed("flashinfer"):
            return "flashinfer is not installed; pip install 'kvsim[flashinfer]'"
        if device not in cls.devices or not torch.cuda.is_available():
            return super().missing(device) or "there is no CUDA device"
        return ""

    def __init__(self, device: str = "cuda") -> None:
        super().__init__(device)
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        library = need("flashinfer")
        self._wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        self._planned: Batch | None = None

    def attend(self, cache: PagedKVCache, layer: int, queries: Tensor, batch: Batch) -> Tensor:
        num_tokens = batch.num_actual_tokens
        if batch is not self._planned:  # once per step, not per layer
            self._plan(cache, queries, batch)
            self._planned = batch
        out = torch.zeros_like(queries)
        pair = (cache.keys[layer], cache.values[layer])
        out[:num_tokens] = self._wrapper.run(queries[:num_tokens], pair)
        return out

    def _plan(self, cache: PagedKVCache, queries: Tensor, batch: Batch) -> None:
        size, table = cache.block_size, batch.block_table
        num_pages = (batch.seq_lens + size - 1) // size
        starts = torch.nn.functional.pad(num_pages.cumsum(0), (1, 0)).int()
        column = torch.arange(table.shape[1], device=table.device)
        pages = table[column < num_pages[:, None]]
        self._wrapper.plan(
            batch.query_start_loc,
            starts,
            pages,
            batch.seq_lens - (num_pages - 1) * size,
            queries.shape[1],
            cache.keys[0].shape[2],
            queries.shape[2],
            size,
            causal=True,
            q_data_type=queries.dtype,
        )
