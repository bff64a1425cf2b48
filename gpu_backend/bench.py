"""What a backend's KV writes and attention reach of what the device can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.calibrate import Calibration
from gpu_backend.clock import seconds
from gpu_backend.model import Shape
from gpu_backend.plan import shape_for, step_plan
from gpu_backend.step_timer import Rows, StepTimer

Report = Callable[[str], None]


class Sizes(NamedTuple):
    """What is timed: tokens written at once, (rows, context) of decodes, (new, hit) of prefills."""

    shape: Shape
    num_blocks: int
    writes: tuple[int, ...]
    decodes: tuple[tuple[int, int], ...]
    prefills: tuple[tuple[int, int], ...]


QUICK = Sizes(
    Shape(num_layers=2, num_heads=8, num_kv_heads=2, head_dim=64),
    num_blocks=600,
    writes=(1, 256),
    decodes=((1, 256), (8, 512)),
    prefills=((64, 0), (64, 256)),
)
ONE_LAYER_OF_8B = Sizes(
    Shape(num_layers=2, num_heads=32, num_kv_heads=8, head_dim=128),
    num_blocks=70_000,
    writes=(1, 16, 256, 2048, 8192),
    decodes=tuple(
        (rows, n) for rows in (1, 8, 32, 128) for n in (1024, 8192, 32_768) if rows * n <= 1 << 20
    ),
    prefills=tuple((n, p) for n in (16, 256, 2048, 8192) for p in (0, 8192, 32_768)),
)


class Bench:
    """Times one layer of *backend*; the decoder's matrices are not part of it."""

    def __init__(self, backend: Backend, dtype: str, quick: bool = False) -> None:
        self.backend, self.dtype, self.device = backend, dtype, backend.device
        small = quick or self.device == "cpu"
        self.sizes = QUICK if small else ONE_LAYER_OF_8B
        self.type = getattr(torch, dtype)
        self.timer = StepTimer(
            self.sizes.shape,
            backend,
            num_blocks=self.sizes.num_blocks,
            dtype=self.type,
            device=self.device,
        )

    def run(self, report: Report) -> dict[str, Any]:
        """Time everything; a line per number, and all numbers."""
        shape, longest, num_blocks = shape_for(self.device, quick=True)
        plan = step_plan(shape, longest, num_blocks)
        parts = Calibration(plan, self.backend, dtype=self.dtype, device=self.device)
        peak, bandwidth = parts.ceilings()
        report(
            f"{self.backend.name} on {self.device}, {self.dtype}, torch {torch.__version__}; "
            f"ceilings {peak / 1e12:.2f} TFLOP/s, {bandwidth / 1e9:.1f} GB/s"
        )
        rows: list[dict[str, Any]] = []
        with torch.inference_mode():
            for num_tokens in self.sizes.writes:
                rows.append(self._write(num_tokens, bandwidth, report))
            for num_rows, context in self.sizes.decodes:
                rows.append(self._decode([(1, context - 1)] * num_rows, bandwidth, report))
            for new, hit in self.sizes.prefills:
                rows.append(self._prefill([(new, hit)], peak, report))
        return {
            "backend": self.backend.name,
            "device": parts.device_name(),
            "dtype": self.dtype,
            "torch": torch.__version__,
            "tflops": peak / 1e12,
            "gb_per_s": bandwidth / 1e9,
            "rows": rows,
        }

    def _write(self, num_tokens: int, bandwidth: float, report: Report) -> dict[str, Any]:
        s = self.sizes.shape
        slots = (
            torch.randperm(self.sizes.num_blocks * 16 - 16, device=self.device)[:num_tokens] + 16
        )
        kv = torch.randn(2, num_tokens, s.num_kv_heads, s.head_dim, device=self.device)
        keys, values = kv.to(self.type)
        cache = self.timer.cache
        taken = seconds(lambda: self.backend.write(cache, 0, slots, keys, values), self.device)
        moved = 2 * 2 * keys.numel() * self.type.itemsize  # read and written
        return _row("write", f"{num_tokens} tokens", taken, moved / taken, bandwidth, report)

    def _decode(self, rows: Rows, bandwidth: float, report: Report) -> dict[str, Any]:
        s, context = self.sizes.shape, rows[0][1] + 1
        moved = 2 * s.num_kv_heads * s.head_dim * self.type.itemsize * len(rows) * context
        taken = self._attend(rows)
        what = f"{len(rows)} rows, context {context}"
        return _row("decode", what, taken, moved / taken, bandwidth, report)

    def _prefill(self, rows: Rows, peak: float, report: Report) -> dict[str, Any]:
        s, (new, hit) = self.sizes.shape, rows[0]
        flops = 4 * s.num_heads * s.head_dim * (new * hit + new * (new + 1) / 2)
        taken = self._attend(rows)
        return _row("prefill", f"{new} new after {hit}", taken, flops / taken, peak, report)

    def _attend(self, rows: Rows) -> float:
        batch = Batch.of(self.timer.metadata(rows), self.device)
        s = self.sizes.shape
        queries = torch.randn(batch.num_actual_tokens, s.num_heads, s.head_dim, device=self.device)
        queries = queries.to(self.type)
        return seconds(
            lambda: self.backend.attend(self.timer.cache, 0, queries, batch), self.device
        )


def _row(
    kind: str, what: str, taken: float, rate: float, limit: float, report: Report
) -> dict[str, Any]:
    unit = "TFLOP/s" if kind == "prefill" else "GB/s"
    scale = 1e12 if kind == "prefill" else 1e9
    report(
        f"{kind:<8} {what:<28} {taken * 1e6:12,.1f} us {rate / scale:10.2f} {unit:<8} "
        f"{rate / limit:7.1%} of the limit"
    )
    return {"kind": kind, "what": what, "seconds": taken, unit: rate / scale, "share": rate / limit}
