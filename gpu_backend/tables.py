"""GPU profiles from published kernel measurements: PyPI `aiconfigurator-core` (extra latency-data).

The package ships tables of kernel times that NVIDIA measured with the kernels of vLLM (Apache-2.0).
None of its data is copied here: a profile holds what was fitted to them, and says so.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpu_backend.fit import RooflineFit, fit_roofline
from sim.errors import ConfigError, KvsimError
from sim.hardware.gpu_profile import GpuProfile

PACKAGE = "aiconfigurator_core"
SYSTEMS = {
    "a100": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "l40s": "l40s",
}
LONG = 4096  # tokens: prefill attention counts from here on
LARGE = 200e6  # bytes of KV: decode attention counts from here on
SMALLEST, MOST = 1024, 8192  # sides of a weight matrix from here on, tokens of a step up to here


def fits(gpu: str, *, backend: str = "vllm") -> dict[str, Any]:
    """What the tables of *gpu* say about its efficiencies, as the keys of a `GpuProfile`.

    The constant time of a kernel is told but not used: `layer_overhead_us` stands for it.
    """
    if gpu not in SYSTEMS:
        raise ConfigError(f"gpu is {gpu!r}; there are tables for {', '.join(SYSTEMS)}")
    profile = GpuProfile.read(gpu)
    folder = root() / "data" / SYSTEMS[gpu]
    peak, bandwidth = profile.tflops * 1e12, profile.gb_per_s * 1e9
    gemm, gemm_source = _table(folder, "gemm", backend, "gemm_perf.parquet")
    prefill, source = _table(folder, "attention", backend, "context_attention_perf.parquet")
    decode, _ = _table(folder, "attention", backend, "generation_attention_perf.parquet")
    matrices = _gemm(gemm[gemm.gemm_dtype == "bfloat16"], 2, peak, bandwidth)
    share_prefill, share_decode = _prefill(prefill, peak), _decode(decode, bandwidth)
    found: dict[str, Any] = {
        "gemm_efficiency": round(matrices.compute, 3),
        "memory_efficiency": round(matrices.memory, 3),
        "prefill_attention_efficiency": round(float(np.median(share_prefill)), 3),
        "decode_attention_efficiency": round(float(np.median(share_decode)), 3),
        "fits": {
            "tables": f"PyPI aiconfigurator-core {_version()}, {SYSTEMS[gpu]}, {gemm_source}",
            "gemm": _describe(matrices),
            "prefill_attention": _spread(share_prefill, f"bf16, head 128, from {LONG} tokens on"),
            "decode_attention": _spread(share_decode, "bf16, head 128, over 200 MB of KV"),
            "attention_tables": source,
        },
    }
    if (gemm.gemm_dtype == "fp8").any():
        eight = _gemm(gemm[gemm.gemm_dtype == "fp8"], 1, 2 * peak, bandwidth)
        found["fits"]["fp8_gemm"] = f"not used: {_describe(eight)}"
    return found


def root() -> Path:
    """The package's folder of systems; ConfigError if it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "published kernel tables need aiconfigurator-core; pip install 'kvsim[latency-data]'"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "systems"


def _version() -> str:
    try:
        return version("aiconfigurator-core")
    except PackageNotFoundError:
        return "(version unknown)"


def _table(folder: Path, kind: str, backend: str, name: str) -> tuple[pd.DataFrame, str]:
    """The newest table, and of which engine it is."""
    paths = sorted((folder / kind / backend).glob(f"*/{name}"))
    if not paths:
        raise KvsimError(f"{folder}: holds no {kind} table of {backend}; another version may")
    table = pd.read_parquet(paths[-1])
    return table, f"{backend} {paths[-1].parent.name}"


def _gemm(table: pd.DataFrame, size: int, peak: float, bandwidth: float) -> RooflineFit:
    """Fit to matrix products [m, k] x [k, n] of the sizes that a model has."""
    table = table[(table.n >= SMALLEST) & (table.k >= SMALLEST) & (table.m <= MOST)]
    m, n, k = (table[name].to_numpy(np.float64) for name in ("m", "n", "k"))
    seconds = table.latency.to_numpy(np.float64) * 1e-3
    moved = size * (n * k + m * k) + 2 * m * n
    return fit_roofline(2 * m * n * k / peak, moved / bandwidth, seconds)


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    is_plain = (table.head_dim == 128) & (table.kv_cache_dtype == "bfloat16")
    if "window_size" in table:
        is_plain &= table.window_size == 0
    return table[is_plain]


def _prefill(table: pd.DataFrame, peak: float) -> Any:
    """Shares of the peak that causal attention of long prompts reaches."""
    t = _plain(table)
    t = t[t.isl >= LONG]
    flops = 4 * t.num_heads * t.head_dim * t.batch_size * (t.isl * (t.isl + 1) / 2)
    return (flops / (t.latency * 1e-3) / peak).to_numpy(np.float64)


def _decode(table: pd.DataFrame, bandwidth: float) -> Any:
    """Shares of the bandwidth that decode attention over much KV reaches."""
    t = _plain(table)
    context = t.isl + t.step
    kv = 2 * t.num_key_value_heads * t.head_dim * 2 * t.batch_size * context
    large = kv > LARGE
    return (kv[large] / (t.latency[large] * 1e-3) / bandwidth).to_numpy(np.float64)


def _describe(fit: RooflineFit) -> str:
    return (
        f"{fit.compute:.2f} of peak, {fit.memory:.2f} of bandwidth, {fit.constant_s * 1e6:.1f} us; "
        f"{fit.num_points} points, mean error {fit.mape:.1%}, median {fit.median:.1%} (in sample)"
    )


def _spread(shares: Any, what: str) -> str:
    low, middle, high = np.percentile(shares, [10, 50, 90])
    spread = f"10% to 90%: {low:.2f} to {high:.2f}"
    return f"median of {len(shares)} points, {what}: {middle:.2f} ({spread})"
