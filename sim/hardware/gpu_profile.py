"""A GPU as far as time and memory depend on it: datasheet, and how much of it kernels reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from typing import Any

from sim.errors import ConfigError
from sim.hardware.profiles import read_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """*tflops* (dense bf16), *gb_per_s* (memory), *memory_gib*, *link_gb_per_s* (per direction).

    The efficiencies are shares of these that kernels reach: matrix products (*gemm*; *fp8_gemm* of
    twice the FLOPs, *memory* when bound by it), attention of a prefill and of a decode.
    *gemm_factors*: by how much products take longer than that, by the number of tokens. Overheads:
    *layer_overhead_us* per layer and step, *token_overhead_us* per token and layer (what is neither
    product nor attention), *step_overhead_us* per step, *all_reduce_us* before a
    byte is moved, by how many GPUs take part. *fits*: what was fitted, to what, and how well; all
    else is from `source` or chosen by hand, as `source` says.
    """

    source: str
    tflops: float
    gb_per_s: float
    memory_gib: float
    link_gb_per_s: float = 0.0
    gemm_efficiency: float = 0.8
    fp8_gemm_efficiency: float = 0.65
    memory_efficiency: float = 0.8
    prefill_attention_efficiency: float = 0.55
    decode_attention_efficiency: float = 0.74
    gemm_factors: Mapping[str, float] = field(default_factory=dict)
    layer_overhead_us: float = 25.0
    token_overhead_us: float = 0.0
    step_overhead_us: float = 0.0
    all_reduce_us: Mapping[str, float] = field(default_factory=dict)
    has_fp8: bool = True
    fits: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tflops", "gb_per_s", "memory_gib"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be greater than 0")
        for name in self.__slots__:
            value = getattr(self, name)
            if name.endswith("_efficiency") and not 0 < value <= 1:
                raise ConfigError(f"{name} is {value}; it must be above 0 and at most 1")
            if name.endswith("_overhead_us") and value < 0:
                raise ConfigError(f"{name} is {value}; it must be 0 or more")

    @classmethod
    def read(cls, name: str) -> GpuProfile:
        """The profile called *name*, or in the file *name*."""
        return read_profile("gpus", name, cls)

    def gemm_flops(self, weight_bits: float) -> float:
        """FLOP/s of a matrix product that kernels reach; 8-bit weights use fp8 where there is."""
        if weight_bits == 8 and self.has_fp8:
            return 2 * self.tflops * 1e12 * self.fp8_gemm_efficiency
        return self.tflops * 1e12 * self.gemm_efficiency

    def gemm_factor(self, num_tokens: int) -> float:
        """`gemm_factors` at *num_tokens*, between two of them in proportion to the logarithm."""
        points = sorted((int(n), factor) for n, factor in self.gemm_factors.items())
        if not points or num_tokens <= points[0][0]:
            return points[0][1] if points else 1.0
        for (n, low), (more, high) in pairwise(points):
            if num_tokens <= more:
                share = log(num_tokens / n) / log(more / n)
                return low + share * (high - low)
        return points[-1][1]
