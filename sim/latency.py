"""How long a step takes: seconds from the shape of its work.

A model sees a `StepLoad`, never a request, so that the engine can keep the sums up to date
instead of adding them up in every step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sim.errors import ConfigError

LATENCIES = {
    "constant": "sim.latency:Constant",
    "linear": "sim.latency:Linear",
    "roofline": "sim.latency:Roofline",
    "profile": "sim.hardware.profiled:Profiled",
    "dynamo": "sim.hardware.dynamo_polynomial:DynamoPolynomial",
}


@dataclass(slots=True)
class StepLoad:
    """The work of one engine step, in sums over its rows.

    A decode row computes one token against its context; a prefill row computes *n* > 1 tokens
    after *p* that are computed already or hit.
    """

    num_decodes: int = 0
    decode_context: int = 0  # tokens attended to by decode rows, the new ones included
    num_prefills: int = 0
    prefill_tokens: int = 0  # sum of n
    prefill_context: int = 0  # sum of p
    prefill_pairs: int = 0  # sum of n p + n (n + 1) / 2: query-key pairs under the causal mask

    def add(self, num_tokens: int, num_computed: int) -> None:
        """Add one row: *num_tokens* tokens after *num_computed*."""
        if num_tokens == 1:
            self.num_decodes += 1
            self.decode_context += num_computed + 1
        else:
            self.num_prefills += 1
            self.prefill_tokens += num_tokens
            self.prefill_context += num_computed
            self.prefill_pairs += num_tokens * num_computed + num_tokens * (num_tokens + 1) // 2


class LatencyModel(ABC):
    """Seconds per engine step."""

    @abstractmethod
    def step_time(self, load: StepLoad) -> float:
        """How long a step with this load takes, in seconds; > 0."""


class Constant(LatencyModel):
    """Every step takes *step_s* seconds: for tests and for schedules worked out by hand."""

    def __init__(self, step_s: float = 1.0) -> None:
        _positive("step_s", step_s)
        self.step_s = step_s

    def step_time(self, load: StepLoad) -> float:
        return self.step_s


class Linear(LatencyModel):
    """A step costs *decode_ms*, plus so much per prefilled token and per token of decode context.

    The defaults are of the size of an 8 B model in bf16 on one H100-class GPU; they are round
    numbers, not measurements.
    """

    def __init__(
        self,
        decode_ms: float = 8.0,
        prefill_us_per_token: float = 45.0,
        context_ns_per_token: float = 40.0,
    ) -> None:
        _positive("decode_ms", decode_ms)
        _not_negative("prefill_us_per_token", prefill_us_per_token)
        _not_negative("context_ns_per_token", context_ns_per_token)
        self.step_s = decode_ms * 1e-3
        self.prefill_s = prefill_us_per_token * 1e-6
        self.context_s = context_ns_per_token * 1e-9

    def step_time(self, load: StepLoad) -> float:
        return (
            self.step_s
            + self.prefill_s * load.prefill_tokens
            + self.context_s * load.decode_context
        )


class Roofline(LatencyModel):
    """Each part of a step takes the longer of its arithmetic and its memory traffic.

    A dense decoder with grouped-query attention on one GPU, 2-byte weights and KV. FLOPs of the
    linear layers 2 T P, of attention 4 H D per query-key pair and layer; bytes: the weights once
    per step, the KV of every context token. Shape defaults: Llama-3.1-8B. GPU defaults: H100 SXM
    datasheet (989 TFLOP/s bf16, 3350 GB/s). Efficiencies: fits of published kernel tables
    (aiconfigurator-core 0.12.0, vLLM 0.24 on H100: GEMM .81 / .87, prefill attention .58, decode
    attention .81). Uncalibrated end to end: absolute times are indicative.
    """

    def __init__(
        self,
        *,
        num_layers: int = 32,
        hidden_size: int = 4096,
        num_heads: int = 32,
        num_kv_heads: int = 8,
        head_dim: int = 128,
        ffn_size: int = 14336,
        vocab_size: int = 128256,
        tflops: float = 989.0,
        gb_per_s: float = 3350.0,
        gemm_efficiency: float = 0.81,
        memory_efficiency: float = 0.87,
        prefill_attention_efficiency: float = 0.58,
        decode_attention_efficiency: float = 0.81,
        layer_overhead_us: float = 25.0,
    ) -> None:
        for name, value in list(locals().items()):
            if name != "self":
                _positive(name, value)
        flops, bandwidth = tflops * 1e12, gb_per_s * 1e9
        query_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
        shapes = (  # of the four matrices of a layer: input and output size
            (hidden_size, query_size + 2 * kv_size),
            (query_size, hidden_size),
            (hidden_size, 2 * ffn_size),
            (ffn_size, hidden_size),
        )
        gemm_s, memory_s = 1 / (gemm_efficiency * flops), 1 / (memory_efficiency * bandwidth)
        # Per matrix: seconds per token of arithmetic, of activations, and for the weights.
        self._matrices = [
            (
                num_layers * 2 * n * k * gemm_s,
                num_layers * 2 * (n + k) * memory_s,
                num_layers * 2 * n * k * memory_s,
            )
            for n, k in shapes
        ]
        self._head = (
            2 * hidden_size * vocab_size * gemm_s,
            2 * (hidden_size + vocab_size) * memory_s,
            2 * hidden_size * vocab_size * memory_s,
        )
        pair_flops = 4 * query_size * num_layers
        self._pair_s = pair_flops / (prefill_attention_efficiency * flops)
        kv_bytes = 2 * num_layers * kv_size * 2
        self._kv_read_s = kv_bytes / (decode_attention_efficiency * bandwidth)
        self._overhead_s = num_layers * layer_overhead_us * 1e-6

    def step_time(self, load: StepLoad) -> float:
        num_tokens = load.num_decodes + load.prefill_tokens
        seconds = self._overhead_s
        for compute, activations, weights in self._matrices:
            seconds += max(num_tokens * compute, num_tokens * activations + weights)
        compute, activations, weights = self._head
        num_rows = load.num_decodes + load.num_prefills
        seconds += max(num_rows * compute, num_rows * activations + weights)
        seconds += self._pair_s * load.prefill_pairs
        kv_tokens = load.decode_context + load.prefill_context + load.prefill_tokens
        return seconds + self._kv_read_s * kv_tokens


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name} is {value}; it must be greater than 0")


def _not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"{name} is {value}; it must be 0 or more")
