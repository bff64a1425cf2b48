"""From memory to blocks: what is left for the KV cache, as vLLM counts at startup."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from sim.errors import ConfigError
from sim.hardware.gpu_profile import GpuProfile
from sim.hardware.model_profile import ModelProfile

GIB = 2**30


class KvMemory(NamedTuple):
    """Per GPU, in bytes: what a model leaves for its KV cache; and the pool that fits into it."""

    budget: float
    weights: float
    activations: float
    kv: float
    block_bytes: float
    num_blocks: int  # the null block is one of them


def kv_memory(
    model: str,
    gpu: str,
    *,
    tensor_parallel: int = 1,
    block_size: int = 16,
    utilization: float = 0.9,
    weight_bits: float | None = None,
    kv_bytes: float = 2.0,
    activation_gib: float = 2.0,
) -> KvMemory:
    """How many blocks of *block_size* tokens fit beside *model* on each of its GPUs.

    *utilization*: share of the memory that the engine may use (vLLM's gpu_memory_utilization).
    *activation_gib*: what vLLM's profile run would find for activations, graphs and libraries; it
    is an estimate. Layers with a window are counted as if they kept every token, as vLLM does
    without a hybrid allocator. KV heads that are fewer than the GPUs are on several of them.
    ConfigError if nothing is left, or if the GPUs cannot share the model's heads.
    """
    m, g = ModelProfile.read(model), GpuProfile.read(gpu)
    if not 0 < utilization <= 1:
        raise ConfigError(f"utilization is {utilization}; it must be above 0 and at most 1")
    if block_size < 1:
        raise ConfigError(f"block_size is {block_size}; it must be at least 1")
    m.checked_shards(tensor_parallel)
    for name, size in (("kv_bytes", kv_bytes), ("weight_bits", weight_bits)):
        if size is not None and not 0 < size < inf:
            raise ConfigError(f"{name} is {size}; it must be above 0, and finite")
    if not 0 <= activation_gib < inf:
        raise ConfigError(f"activation_gib is {activation_gib}; it must be 0 or more, and finite")
    budget = g.memory_gib * GIB * utilization
    weights = m.weight_bytes(weight_bits) / tensor_parallel
    activations = activation_gib * GIB
    cuts = 1 if m.is_latent else min(tensor_parallel, m.num_kv_heads)
    block_bytes = m.kv_bytes_per_token(kv_bytes) * block_size / cuts
    kv = budget - weights - activations
    if kv < 2 * block_bytes:
        raise ConfigError(
            f"{model} leaves no memory for KV on {tensor_parallel} x {gpu}: {budget / GIB:.1f} GiB "
            f"may be used, the weights take {weights / GIB:.1f}; use more GPUs or fewer bits"
        )
    return KvMemory(budget, weights, activations, kv, block_bytes, int(kv // block_bytes))
