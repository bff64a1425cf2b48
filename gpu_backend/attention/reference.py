"""The backend that everything is compared with: gather the blocks, then plain attention."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.cache import PagedKVCache

Tensor = Any


class Reference(Backend):
    """Any device and type. Rows of one token are one batch; longer rows go one by one."""

    name = "reference"
    devices = ("cpu", "cuda")
    dtypes = ("float64", "float32", "bfloat16", "float16")

    def attend(self, cache: PagedKVCache, layer: int, queries: Tensor, batch: Batch) -> Tensor:
        out = torch.zeros_like(queries)
        rows = list(enumerate(pairwise(batch.starts)))
        single = [row for row, (start, stop) in rows if stop - start == 1]
        if single:
            index = torch.tensor(single, device=queries.device)
            tokens = batch.query_start_loc[index].long()
            longest = max(batch.lengths[row] for row in single)
            out[tokens] = self._rows(cache, layer, queries[tokens][:, None], batch, index, longest)[
                :, 0
            ]
        for row, (start, stop) in rows:
            if stop - start > 1:
                index = torch.tensor([row], device=queries.device)
                part = queries[None, start:stop]
                out[start:stop] = self._rows(cache, layer, part, batch, index, batch.lengths[row])[
                    0
                ]
        return out

    def _rows(
        self,
        cache: PagedKVCache,
        layer: int,
        queries: Tensor,
        batch: Batch,
        rows: Tensor,
        longest: int,
    ) -> Tensor:
        """Attention of *queries* [R, Q, H, D], the last Q tokens of each of *rows*."""
        num_blocks = -(-longest // cache.block_size)
        table = batch.block_table[rows, :num_blocks].long()
        keys, values = cache.gather(layer, table)
        places = torch.arange(keys.shape[1], device=queries.device)
        ends = batch.seq_lens[rows].long()
        is_real = (places < ends[:, None])[..., None, None]
        # What lies behind a row's end may be poison, and zero times NaN is NaN.
        keys, values = (torch.where(is_real, part, 0) for part in (keys, values))
        num_queries = queries.shape[1]
        if num_queries == 1:  # causal as it is
            return _grouped(queries[:, 0], keys, values, is_real[..., 0, 0])[:, None]
        group = queries.shape[2] // keys.shape[2]
        heads = [queries, *(part.repeat_interleave(group, dim=2) for part in (keys, values))]
        q, k, v = (part.transpose(1, 2) for part in heads)
        if num_queries == longest:  # nothing was computed before: half of the pairs are masked
            k, v = k[:, :, :longest], v[:, :, :longest]
            return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        positions = ends[:, None] - num_queries + torch.arange(num_queries, device=queries.device)
        may_see = places <= positions[..., None]
        out = scaled_dot_product_attention(q, k, v, attn_mask=may_see[:, None])
        return out.transpose(1, 2)


def _grouped(queries: Tensor, keys: Tensor, values: Tensor, is_real: Tensor) -> Tensor:
    """One query per row: [R, H, D] to [R, S, K, D], without a copy of each KV head per query."""
    num_rows, num_heads, head_dim = queries.shape
    grouped = queries.unflatten(1, (keys.shape[2], -1)) * head_dim**-0.5
    scores = grouped @ keys.permute(0, 2, 3, 1)
    scores = scores.masked_fill(~is_real[:, None, None], float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return (weights @ values.permute(0, 2, 1, 3)).reshape(num_rows, num_heads, head_dim)
