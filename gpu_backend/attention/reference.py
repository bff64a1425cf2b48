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
        positions = ends[:, None] - num_queries + torch.arange(num_queries, device=queries.device)
        may_see = places <= positions[..., None]
        group = queries.shape[2] // keys.shape[2]
        keys, values = (part.repeat_interleave(group, dim=2) for part in (keys, values))
        return scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=may_see[:, None],
        ).transpose(1, 2)
