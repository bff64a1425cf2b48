"""torch's flex_attention over the whole pool, with block tables turned into a mask.

All slots of a layer are one long sequence of keys; a query sees a slot if its own table says so. On
a CPU torch runs this unfused and slowly: a cross-check of kernels, not a kernel to use.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar
from warnings import catch_warnings, filterwarnings

import torch

from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.cache import PagedKVCache

Tensor = Any


class Flex(Backend):
    """flex_attention of torch >= 2.5; a mask of tokens x slots is made for every layer."""

    name = "flex"
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16", "float16")
    head_dims: ClassVar[str] = "powers of two from 16"
    poison: ClassVar[float] = 100.0  # masked scores become zero weights, which still multiply

    @classmethod
    def missing(cls, device: str) -> str:
        try:
            import torch.nn.attention.flex_attention
        except ImportError:
            return f"flex_attention is not in torch {torch.__version__}"
        return super().missing(device)

    def attend(self, cache: PagedKVCache, layer: int, queries: Tensor, batch: Batch) -> Tensor:
        rows, positions = _rows_and_positions(batch, len(queries))
        places = _places(batch, cache.num_blocks)
        size = cache.block_size

        def may_see(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            place = places[rows[q], kv // size]
            return (place >= 0) & (place * size + kv % size <= positions[q])

        attention = _attention(self.device)
        num_slots = cache.num_blocks * size
        mask = attention.create_block_mask(
            may_see, None, None, len(queries), num_slots, device=self.device
        )
        keys, values = (
            part.reshape(num_slots, *part.shape[2:]).transpose(0, 1)[None]
            for part in (cache.keys[layer], cache.values[layer])
        )
        with catch_warnings():  # that it is not fused is said at the head of this file
            filterwarnings("ignore", "flex_attention called without torch.compile")
            out = attention.flex_attention(
                queries.transpose(0, 1)[None], keys, values, block_mask=mask, enable_gqa=True
            )
        return torch.nan_to_num(out[0].transpose(0, 1))  # padding sees nothing


@cache
def _attention(device: str) -> Any:
    """The module, its attention compiled where a compiler of its own is at hand."""
    import torch.nn.attention.flex_attention as module

    if device == "cpu":
        return module
    return _Compiled(module)


class _Compiled:
    def __init__(self, module: Any) -> None:
        self.create_block_mask = module.create_block_mask
        self.flex_attention = torch.compile(module.flex_attention, dynamic=True)


def _rows_and_positions(batch: Batch, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Of every token its row and its position; padding is at -1, before everything."""
    lengths = batch.query_start_loc.diff().long()
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    first = batch.seq_lens.long() - batch.query_start_loc[1:].long()
    positions = first[rows] + torch.arange(len(rows), device=lengths.device)
    pads = num_tokens - len(rows)
    return (
        torch.nn.functional.pad(rows, (0, pads)),
        torch.nn.functional.pad(positions, (0, pads), value=-1),
    )


def _places(batch: Batch, num_blocks: int) -> Tensor:
    """[R, num_blocks]: which block of a row's table a block of the pool is; -1 if none."""
    table = batch.block_table.long()
    places = torch.full((len(table), num_blocks), -1, device=table.device)
    columns = torch.arange(table.shape[1], device=table.device).expand_as(table)
    places.scatter_(1, table, columns)
    places[:, 0] = torch.where(table[:, 0] == 0, 0, -1)  # unused places name block 0
    return places
