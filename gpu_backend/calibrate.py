"""A GPU profile from measurements of our own, and how well it foretells steps it has not seen.

Only parts are measured for the profile: ceilings, matrix products, attention, and two whole steps
for what is neither. Then whole steps of a real decoder are timed, none of which was used, and
compared with `sim.hardware.profiled`. On a CPU this tests the method, with the CPU as a very small
GPU.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch

from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.clock import seconds
from gpu_backend.fit import RooflineFit, fit_roofline, times
from gpu_backend.held_out import HeldOut, load_of
from gpu_backend.plan import Plan, model_profile
from gpu_backend.step_timer import Rows, StepTimer
from sim.hardware.gpu_profile import GpuProfile
from sim.hardware.profiled import Profiled

Report = Callable[[str], None]
CACHE = 128 << 20  # bytes of weights that no cache holds
SMALL_CACHE = 8 << 20  # enough for a toy, which is not to be exact


class Calibration:
    """Measures *plan* on *device* with *backend*."""

    def __init__(
        self, plan: Plan, backend: Backend, *, dtype: str = "float32", device: str = "cpu"
    ) -> None:
        self.plan, self.backend, self.device, self.dtype = plan, backend, device, dtype
        self.type = getattr(torch, dtype)
        self.size = self.type.itemsize
        self.model = model_profile(plan.shape)
        self.timer = StepTimer(
            plan.shape, backend, num_blocks=plan.num_blocks, dtype=self.type, device=device
        )

    def profile(self, report: Report = lambda line: None) -> GpuProfile:
        """Measure the parts and put them together."""
        peak, bandwidth = self.ceilings()
        report(f"ceilings: {peak / 1e12:.3f} TFLOP/s, {bandwidth / 1e9:.1f} GB/s")
        gemm, factors = self._gemm(peak, bandwidth)
        report(
            f"products: {gemm.compute:.2f} of peak, {gemm.memory:.2f} of bandwidth, "
            f"mean error {gemm.mape:.1%} on {gemm.num_points} points"
        )
        prefill, decode = self._prefill_attention(peak), self._decode_attention(bandwidth)
        report(f"attention: prefill {prefill:.2f} of peak, decode {decode:.2f} of bandwidth")
        device, versions = self.device_name(), f"torch {torch.__version__}, {self.backend.name}"
        profile = GpuProfile(
            source=f"measured on {device} by `kvsim gpu calibrate`, {_today()}, {versions}",
            tflops=peak / 1e12,
            gb_per_s=bandwidth / 1e9,
            memory_gib=self._memory_gib(),
            gemm_efficiency=gemm.compute,
            memory_efficiency=gemm.memory,
            prefill_attention_efficiency=prefill,
            decode_attention_efficiency=decode,
            gemm_factors=factors,
            layer_overhead_us=0.0,
            has_fp8=False,
            fits={
                "products": f"{gemm.num_points} points, mean error {gemm.mape:.1%} (in sample)",
                "model": repr(self.plan.shape),
                "dtype": self.dtype,
            },
        )
        profile = self._with_overheads(profile)
        report(
            f"beside them: {profile.layer_overhead_us:.0f} us per layer, "
            f"{profile.token_overhead_us:.2f} us per token and layer"
        )
        return profile

    def held_out(self, profile: GpuProfile) -> list[HeldOut]:
        """Time the held-out steps and predict them."""
        latency = self._latency(profile)
        return [
            HeldOut(
                rows,
                self.timer.seconds(rows, at_least=self.plan.at_least),
                latency.step_time(load_of(rows)),
            )
            for rows in self.plan.held_out
        ]

    # Parts

    def ceilings(self) -> tuple[float, float]:
        """FLOP/s of a large product and bytes/s of a large copy."""
        side = 8192 if self.device == "cuda" else 1024
        a, b = (self._random(side, side) for _ in range(2))
        peak = 2 * side**3 / self._seconds(lambda: a @ b)
        count = (4 << 30 if self.device == "cuda" else 256 << 20) // self.size
        source = torch.zeros(count, dtype=self.type, device=self.device)
        target = torch.empty_like(source)
        moved = 2 * count * self.size
        return peak, moved / self._seconds(lambda: target.copy_(source))

    def _gemm(self, peak: float, bandwidth: float) -> tuple[RooflineFit, dict[str, float]]:
        """The roofline of the products of a layer, and what it misses by number of tokens."""
        shapes = [*self.model.attention_matrices(), *self.model.ffn_matrices()]
        rows = [(n, k, num_tokens) for n, k in shapes for num_tokens in self.plan.tokens]
        n, k, m = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
        flops = 2 * m * n * k / peak
        moved = self.size * (n * k + m * (n + k)) / bandwidth
        taken = np.concatenate([self._products(*shape) for shape in shapes])
        fit = fit_roofline(flops, moved, taken)
        # A profile has no constant per product: here it is a factor like all that is missed.
        missed = taken / times(fit._replace(constant_s=0.0), flops, moved)
        factors = {
            str(tokens): float(np.exp(np.log(missed[m == tokens]).mean()))
            for tokens in self.plan.tokens
        }
        return fit, factors

    def _products(self, n: int, k: int) -> list[float]:
        """Seconds of one product per number of tokens, with weights in no cache, as in a step."""
        total = CACHE if self.plan.shape.hidden_size >= 512 else SMALL_CACHE
        count = max(2, total // (n * k * self.size))
        weights = cycle([self._random(n, k) for _ in range(count)])
        taken = []
        with torch.inference_mode():
            for num_tokens in self.plan.tokens:
                x = self._random(num_tokens, n)
                taken.append(self._seconds(partial(_multiply, x, weights)))
        return taken

    def _prefill_attention(self, peak: float) -> float:
        """The share of the peak that attention of long rows reaches, the median over prompts."""
        shares = []
        for new, hit in self.plan.prompts:
            pairs = new * hit + new * (new + 1) / 2
            flops = 4 * self.model.num_heads * self.model.head_dim * pairs
            shares.append(flops / peak / self._attention([(new, hit)]))
        return min(1.0, float(np.median(shares)))

    def _decode_attention(self, bandwidth: float) -> float:
        shares = []
        for rows, context in self.plan.decodes:
            kv = self.model.kv_bytes_per_token_and_layer(self.size) * rows * (context + 1)
            shares.append(kv / bandwidth / self._attention([(1, context)] * rows))
        return min(1.0, float(np.median(shares)))

    def _attention(self, rows: Rows) -> float:
        """Seconds of one layer's attention."""
        batch = Batch.of(self.timer.metadata(rows), self.device)
        shape = self.plan.shape
        queries = self._random(batch.num_actual_tokens, shape.num_heads, shape.head_dim)
        layers, cache = cycle(range(shape.num_layers)), self.timer.cache
        with torch.inference_mode():
            return self._seconds(lambda: self.backend.attend(cache, next(layers), queries, batch))

    def _with_overheads(self, profile: GpuProfile) -> GpuProfile:
        """What two whole steps take beyond their parts, per layer and per token."""
        latency, left, tokens = self._latency(profile), [], []
        for rows in self.plan.whole:
            taken = self.timer.seconds(rows, at_least=4 * self.plan.at_least)
            left.append((taken - latency.step_time(load_of(rows))) / self.model.num_layers)
            tokens.append(sum(n for n, _ in rows))
        per_token = max(0.0, (left[1] - left[0]) / (tokens[1] - tokens[0]))
        per_layer = max(0.0, left[0] - per_token * tokens[0])
        return replace(
            profile, layer_overhead_us=per_layer * 1e6, token_overhead_us=per_token * 1e6
        )

    def _latency(self, profile: GpuProfile) -> Profiled:
        kind = {2: "bf16", 4: "fp32"}[self.size]
        return Profiled.of(self.model, profile, weights=kind, kv=kind)

    def _seconds(self, work: Callable[[], object]) -> float:
        return seconds(work, self.device, at_least=self.plan.at_least)

    # What it ran on

    def _random(self, *shape: int) -> Any:
        return torch.randn(*shape, device=self.device).to(self.type)

    def device_name(self) -> str:
        """What this runs on."""
        if self.device == "cuda":
            return str(torch.cuda.get_device_name())
        return (
            f"one thread of a CPU ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
        )

    def _memory_gib(self) -> float:
        if self.device == "cuda":
            return float(torch.cuda.get_device_properties(0).total_memory / 2**30)
        return 1.0


def _multiply(x: Any, weights: Iterator[Any]) -> Any:
    return x @ next(weights)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
