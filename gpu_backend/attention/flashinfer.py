"""FlashInfer's paged prefill, which also decodes. Written from its documentation; not run yet."""

from __future__ import annotations

from typing import Any

import torch

from gpu_backend.attention.batch import Batch, CudaBackend
from sim.extras import is_installed, need

Tensor = Any
WORKSPACE = 128 << 20  # bytes, what its documentation recommends


class FlashInfer(CudaBackend):
    """`BatchPrefillWithPagedKVCacheWrapper`, layout NHD."""

    name = "flashinfer"

    @classmethod
    def missing(cls, device: str) -> str:
        if not is_installed("flashinfer"):
            return "flashinfer is not installed; pip install 'kvsim[flashinfer]'"
        return super().missing(device)

    def __init__(self, device: str = "cuda") -> None:
        super().__init__(device)
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        library = need("flashinfer")
        self._wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        self._planned: Batch | None = None

    def attend_pages(self, queries: Tensor, keys: Tensor, values: Tensor, batch: Batch) -> Tensor:
        if batch is not self._planned:  # once per step, not per layer
            self._plan(queries, keys, batch)
            self._planned = batch
        return self._wrapper.run(queries, (keys, values))

    def _plan(self, queries: Tensor, keys: Tensor, batch: Batch) -> None:
        (_, size, num_kv_heads, _), table = keys.shape, batch.block_table
        num_pages = (batch.seq_lens + size - 1) // size
        starts = torch.nn.functional.pad(num_pages.cumsum(0), (1, 0)).int()
        column = torch.arange(table.shape[1], device=table.device)
        self._wrapper.plan(
            batch.query_start_loc,
            starts,
            table[column < num_pages[:, None]],
            batch.seq_lens - (num_pages - 1) * size,
            queries.shape[1],
            num_kv_heads,
            queries.shape[2],
            size,
            causal=True,
            q_data_type=queries.dtype,
        )
