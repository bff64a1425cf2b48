"""A step's metadata as tensors, and what every backend does with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from gpu_backend.cache import PagedKVCache
from gpu_backend.metadata import AttentionMetadata

Tensor = Any


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """`AttentionMetadata` on a device. The lists are the same numbers for Python."""

    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: Tensor  # [R + 1] int32
    seq_lens: Tensor  # [R] int32
    slot_mapping: Tensor  # [T or more] int64
    block_table: Tensor  # [R, W] int32
    starts: list[int]
    lengths: list[int]

    @classmethod
    def of(cls, metadata: AttentionMetadata, device: str) -> Batch:
        """*metadata* on *device*."""

        def tensor(array: Any) -> Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            metadata.num_actual_tokens,
            metadata.max_query_len,
            metadata.max_seq_len,
            tensor(metadata.query_start_loc),
            tensor(metadata.seq_lens),
            tensor(metadata.slot_mapping),
            tensor(metadata.block_table),
            metadata.query_start_loc.tolist(),
            metadata.seq_lens.tolist(),
        )


class Backend(ABC):
    """Writes KV by slot and attends through block tables, for one step and layer at a time."""

    name: ClassVar[str]
    devices: ClassVar[tuple[str, ...]]
    dtypes: ClassVar[tuple[str, ...]]
    block_sizes: ClassVar[str] = "any"
    head_dims: ClassVar[str] = "any"
    poison: ClassVar[float] = float("nan")
    """What unwritten slots may hold without spoiling what it masks."""

    @classmethod
    def missing(cls, device: str) -> str:
        """Why this backend cannot run on *device* here; "" if it can."""
        return "" if device in cls.devices else f"runs on {' and '.join(cls.devices)} only"

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def write(
        self, cache: PagedKVCache, layer: int, slots: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Store [T, K, D] in *slots* [T]; those below 0 are padding."""
        cache.write(layer, slots, keys, values)

    @abstractmethod
    def attend(self, cache: PagedKVCache, layer: int, queries: Tensor, batch: Batch) -> Tensor:
        """Causal attention of *queries* [T or more, H, D] to what *cache* holds; the same shape.

        What comes out for padding is not defined, but finite.
        """


class CudaBackend(Backend):
    """A library's kernels: 16-bit types on a CUDA device; what they mask may be multiplied by 0."""

    devices = ("cuda",)
    dtypes = ("bfloat16", "float16")
    head_dims = "64 128 256"
    poison = 100.0

    @classmethod
    def missing(cls, device: str) -> str:
        no_gpu = "" if torch.cuda.is_available() else "there is no CUDA device"
        return super().missing(device) or no_gpu

    def attend(self, cache: PagedKVCache, layer: int, queries: Tensor, batch: Batch) -> Tensor:
        num_tokens, out = batch.num_actual_tokens, torch.zeros_like(queries)
        pages = (cache.keys[layer], cache.values[layer])
        out[:num_tokens] = self.attend_pages(queries[:num_tokens], *pages, batch)
        return out

    @abstractmethod
    def attend_pages(self, queries: Tensor, keys: Tensor, values: Tensor, batch: Batch) -> Tensor:
        """Attention of *queries*, without padding, to pages [num_blocks, block_size, K, D]."""
