"""Step times from the profiles of a model and a GPU: dense, MoE, MLA, windows, tensor parallelism.

Each matrix product takes the longer of its arithmetic and its memory traffic; attention is priced
by query-key pairs in a prefill and by KV bytes in a decode; a layer and a step cost something in
any case. Nothing overlaps. How well it does is in docs/fidelity.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import expm1, log1p
from typing import Literal

from sim.errors import ConfigError
from sim.hardware.gpu_profile import GpuProfile
from sim.hardware.model_profile import Matrix, ModelProfile
from sim.latency import LatencyModel, StepLoad

Precision = Literal["fp8", "bf16", "fp32", "as published"]
BYTES = {"fp8": 1.0, "bf16": 2.0, "fp32": 4.0}


class Profiled(LatencyModel):
    """A roofline of *model* on *tensor_parallel* of *gpu* (names of profiles, or .yaml files).

    *weights*, *kv*: their types; activations have 2 bytes, or 4 with fp32 weights. Sliding windows:
    a step knows the sums over its rows alone, so rows are taken to be of equal length, which is
    exact for equal rows and else too long. Experts: routing is uniform, an expert is read if any
    token of the step is routed to it.
    """

    def __init__(
        self,
        model: str = "llama-3.1-8b",
        gpu: str = "h100",
        *,
        tensor_parallel: int = 1,
        weights: Precision = "as published",
        kv: Literal["fp8", "bf16", "fp32"] = "bf16",
    ) -> None:
        self._set(ModelProfile.read(model), GpuProfile.read(gpu), tensor_parallel, weights, kv)

    @classmethod
    def of(
        cls,
        model: ModelProfile,
        gpu: GpuProfile,
        *,
        tensor_parallel: int = 1,
        weights: str = "as published",
        kv: str = "bf16",
    ) -> Profiled:
        """The same for profiles that are at hand."""
        made = cls.__new__(cls)
        made._set(model, gpu, tensor_parallel, weights, kv)
        return made

    def _set(self, m: ModelProfile, g: GpuProfile, t: int, weights: str, kv: str) -> None:
        self.model, self.gpu = m, g
        self.shards = checked_shards(m, g, t)
        self._bits = m.weight_bits if weights == "as published" else 8 * BYTES[weights]
        self._wide = 4 if weights == "fp32" else 2
        self._memory = g.memory_efficiency * g.gb_per_s * 1e9
        self._flops = g.gemm_flops(self._bits)
        self._head_flops = g.gemm_flops(16)
        self._layer = self._sums(m.attention_matrices(t))
        self._ffn = self._sums(m.ffn_matrices(t))
        self._expert = self._sums(m.expert_matrices(t))
        heads = max(1, m.num_heads // t)
        if m.is_latent:
            pair = 2 * heads * (m.nope_dim + m.rope_dim + m.v_head_dim)
            self._decode_pair = 2 * heads * (2 * m.kv_lora_rank + m.rope_dim)
            up = 2 * m.kv_lora_rank * heads * (m.nope_dim + m.v_head_dim)
        else:
            pair, up = 4 * heads * m.head_dim, 0
            self._decode_pair = pair
        self._pair_s = pair / (g.prefill_attention_efficiency * g.tflops * 1e12)
        self._decode_pair_s = self._decode_pair / (g.gemm_efficiency * g.tflops * 1e12)
        self._hit_s = up / self._head_flops  # latent KV is expanded again for every token hit
        kv_bytes = m.kv_bytes_per_token_and_layer(BYTES[kv]) / (1 if m.is_latent else t)
        kv_bytes *= max(1, 0 if m.is_latent else t / m.num_kv_heads)  # heads are not cut further
        self._kv_read_s = kv_bytes / (g.decode_attention_efficiency * g.gb_per_s * 1e9)
        self._kv_write_s = kv_bytes / self._memory
        self._fixed_s = (m.num_layers * g.layer_overhead_us + g.step_overhead_us) * 1e-6
        self._reduce_s = 2 * m.num_layers * g.all_reduce_us.get(str(t), 0.0) * 1e-6
        self._token_s = m.num_layers * g.token_overhead_us * 1e-6
        link = g.link_gb_per_s * 1e9
        self._reduce_token_s = (
            2 * m.num_layers * 2 * (t - 1) / t * m.hidden_size * 2 / link if t > 1 else 0.0
        )

    def _sums(self, matrices: Iterator[Matrix]) -> list[tuple[float, float, float]]:
        """Of each matrix: seconds per token of arithmetic and of activations, and for weights."""
        return [
            (
                2 * n * k / self._flops,
                self._wide * (n + k) / self._memory,
                n * k * self._bits / 8 / self._memory,
            )
            for n, k in matrices
        ]

    def step_time(self, load: StepLoad) -> float:
        m, num_tokens = self.model, load.num_decodes + load.prefill_tokens
        seconds = self._fixed_s + self._reduce_s
        seconds += num_tokens * (self._reduce_token_s + self._token_s)
        products = m.num_layers * _product(self._layer, num_tokens)
        products += m.num_dense_ffns * _product(self._ffn, num_tokens)
        if m.num_moe_layers:
            products += m.num_moe_layers * self._experts(num_tokens)
        seconds += products * (self.gpu.gemm_factor(num_tokens) if self.gpu.gemm_factors else 1.0)
        full = m.num_layers - m.num_window_layers
        seconds += full * self._attention(load, 0) + m.num_layers * num_tokens * self._kv_write_s
        if m.num_window_layers:
            seconds += m.num_window_layers * self._attention(load, m.window)
        return seconds + self._head(load.num_decodes + load.num_prefills)

    def _attention(self, load: StepLoad, window: int) -> float:
        """One layer that keeps the last *window* tokens; 0: all."""
        pairs, context = float(load.prefill_pairs), float(load.decode_context)
        read = float(load.prefill_context + load.prefill_tokens)
        if window:
            pairs = min(pairs, float(load.prefill_tokens * window))
            context = min(context, float(load.num_decodes * window))
            read = min(read, float(load.num_prefills * window + load.prefill_tokens))
        hits = load.prefill_context * self._hit_s
        decode = max(context * self._kv_read_s, context * self._decode_pair_s)
        return pairs * self._pair_s + decode + read * self._kv_read_s + hits

    def _experts(self, num_tokens: int) -> float:
        """The experts of one layer: those that are touched are read, the arithmetic is shared."""
        m = self.model
        share = m.experts_per_token / m.num_experts
        missed = num_tokens * log1p(-share) if share < 1 else float("-inf")
        touched = -m.num_experts * expm1(missed) + m.num_shared_experts
        rows = num_tokens * (m.experts_per_token + m.num_shared_experts)
        return sum(
            max(rows * compute, rows * moved + touched * read)
            for compute, moved, read in self._expert
        )

    def _head(self, num_rows: int) -> float:
        h, vocabulary = self.model.hidden_size, self.model.vocab_size / self.shards
        moved = self._wide * (h * vocabulary + num_rows * (h + vocabulary))
        return max(2 * num_rows * h * vocabulary / self._head_flops, moved / self._memory)


def _product(matrices: list[tuple[float, float, float]], num_tokens: int) -> float:
    return sum(
        max(num_tokens * compute, num_tokens * moved + read) for compute, moved, read in matrices
    )


def checked_shards(model: ModelProfile, gpu: GpuProfile, shards: int) -> int:
    """*shards*, if the model's heads can be cut so; ConfigError if not."""
    model.checked_shards(shards)
    if shards > 1 and not gpu.link_gb_per_s:
        raise ConfigError(f"tensor_parallel is {shards}; this GPU's profile has no link_gb_per_s")
    if shards > 1 and str(shards) not in gpu.all_reduce_us:
        known = ", ".join(gpu.all_reduce_us) or "none"
        raise ConfigError(
            f"tensor_parallel is {shards}; the GPU's all_reduce_us has no value for it "
            f"(it has: {known})"
        )
    return shards
