"""FlashAttention-3's own interface (Hopper). Written from its documentation; not run yet."""

from __future__ import annotations

from typing import Any

import torch

from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.cache import PagedKVCache
from gpu_backend.extras import is_installed

Tensor = Any


class FlashAttention3(Backend):
    """`flash_attn_interface.flash_attn_with_kvcache` with a page table."""

    name = "fa3"
    devices = ("cuda",)
    dtypes = ("bfloat16", "float16")
    head_dims = "64 128 256"
    poison = 100.0

    @classmethod
    def missing(cls, device: str) -> str:
        if not is_installed("flash_attn_interface"):
            return "FlashAttention-3 (module flash_attn_interface) is not installed"
        if device not in cls.devices or not torch.cuda.is_available():
            return super().missing(device) or "there is no CUDA device"
        major = torch.cuda.get_device_capability()[0]
        return "" if major == 9 else f"needs compute capability 9, this GPU has {major}"

    def attend(self, cache: PagedKVCache, layer: int, queries: Tensor, batch: Batch) -> Tensor:
        from flash_attn_interface import flash_attn_with_kvcache

        num_tokens = batch.num_actual_tokens
        out = torch.zeros_like(queries)
        out[:num_tokens] = flash_attn_with_kvcache(
            queries[:num_tokens],
            cache.keys[layer],
            cache.values[layer],
            cache_seqlens=batch.seq_lens,
            page_table=batch.block_table,
            cu_seqlens_q=batch.query_start_loc,
            max_seqlen_q=batch.max_query_len,
            causal=True,
        )
        return out
