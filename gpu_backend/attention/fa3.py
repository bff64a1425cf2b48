"""FlashAttention-3's own interface (Hopper). Written from its documentation; not run yet."""

from __future__ import annotations

from typing import Any

import torch

from gpu_backend.attention.batch import Batch, CudaBackend
from sim.extras import is_installed

Tensor = Any


class FlashAttention3(CudaBackend):
    """`flash_attn_interface.flash_attn_with_kvcache` with a page table."""

    name = "fa3"

    @classmethod
    def missing(cls, device: str) -> str:
        if not is_installed("flash_attn_interface"):
            return "FlashAttention-3 (module flash_attn_interface) is not installed"
        if missing := super().missing(device):
            return missing
        major = torch.cuda.get_device_capability()[0]
        return "" if major == 9 else f"needs compute capability 9, this GPU has {major}"

    def attend_pages(self, queries: Tensor, keys: Tensor, values: Tensor, batch: Batch) -> Tensor:
        from flash_attn_interface import flash_attn_with_kvcache

        return flash_attn_with_kvcache(
            queries,
            keys,
            values,
            cache_seqlens=batch.seq_lens,
            page_table=batch.block_table,
            cu_seqlens_q=batch.query_start_loc,
            max_seqlen_q=batch.max_query_len,
            causal=True,
        )
