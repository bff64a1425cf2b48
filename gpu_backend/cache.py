"""KV memory in pages, as tensors: written by slot, read through block tables."""

from __future__ import annotations

from typing import Any, Literal

import torch

Tensor = Any
Layout = Literal["NHD", "HND"]
LAYOUTS: tuple[Layout, ...] = ("NHD", "HND")


class PagedKVCache:
    """Keys and values of *num_layers* layers, in *num_blocks* blocks of *block_size* tokens.

    `keys[layer]` and `values[layer]` are [num_blocks, block_size, num_kv_heads, head_dim], whatever
    *layout* says about memory: "NHD" lays a block out token by token, "HND" head by head. Unwritten
    slots hold *poison*: NaN shows whatever reads them; kernels that multiply what they mask by zero
    need a large finite number.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: Any = torch.float64,
        device: str = "cpu",
        layout: Layout = "NHD",
        poison: float = float("nan"),
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.poison_value = poison
        shape = [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]
        if layout == "HND":
            shape[3], shape[4] = shape[4], shape[3]
        memory = torch.full(shape, poison, dtype=dtype, device=device)
        self.memory = memory.transpose(3, 4) if layout == "HND" else memory
        self.keys = [layer[0] for layer in self.memory]
        self.values = [layer[1] for layer in self.memory]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put [T, num_kv_heads, head_dim] into *slots* [T or more]; slots below 0 are padding."""
        is_real = slots >= 0
        slots = slots[is_real]
        blocks, offsets = slots // self.block_size, slots % self.block_size
        self.keys[layer][blocks, offsets] = keys[is_real]
        self.values[layer][blocks, offsets] = values[is_real]

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of *blocks* [..., W], token by token: [..., W * block_size, K, D]."""
        keys, values = self.keys[layer][blocks], self.values[layer][blocks]
        shape = (*blocks.shape[:-1], -1, *keys.shape[-2:])
        return keys.reshape(shape), values.reshape(shape)

    def poison(self, blocks: Tensor) -> None:
        """Forget what *blocks* hold: they were handed out anew."""
        self.memory[:, :, blocks] = self.poison_value

    def copy_block(self, source: int, destination: int) -> None:
        """Move one block between tiers."""
        self.memory[:, :, destination] = self.memory[:, :, source]
