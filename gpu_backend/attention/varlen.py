"""torch's `varlen_attn` with a block table: torch >= 2.12 on an sm_90 GPU with FlashAttention-3.

Written from torch 2.13's documentation; it has not been run on a GPU yet.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from gpu_backend.attention.batch import Batch, CudaBackend
from sim.extras import is_installed

Tensor = Any


class Varlen(CudaBackend):
    """`torch.nn.attention.varlen.varlen_attn`, paged by FlashAttention-3 alone."""

    name = "varlen"

    @classmethod
    def missing(cls, device: str) -> str:
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            return f"varlen_attn is not in torch {torch.__version__}"
        if "block_table" not in inspect.signature(varlen_attn).parameters:
            return f"varlen_attn of torch {torch.__version__} takes no block table; 2.12 does"
        if missing := super().missing(device):
            return missing
        if not is_installed("flash_attn_interface"):
            return "FlashAttention-3 is not installed, and torch's own kernels do not page"
        return ""

    def __init__(self, device: str = "cuda") -> None:
        super().__init__(device)
        torch.nn.attention.activate_flash_attention_impl("FA3")

    def attend_pages(self, queries: Tensor, keys: Tensor, values: Tensor, batch: Batch) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(
            queries,
            keys,
            values,
            batch.query_start_loc,
            None,
            batch.max_query_len,
            batch.max_seq_len,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=batch.seq_lens,
            block_table=batch.block_table,
        )
