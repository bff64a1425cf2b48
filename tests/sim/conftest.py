"""Runs made up for the tests of results, pictures and the console."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import numpy as np
import pytest

from gpu_backend.watch import watch_every
from policies.reference import ReferenceBlockManager
from sim.results import Results

MakeRun = Callable[..., Results]

REQUEST = {
    "request_id": 0,
    "session": None,
    "status": "finished",
    "reason": "",
    "arrival_time": 0.0,
    "num_prompt_tokens": 10,
    "max_tokens": 4,
    "num_output_tokens": 4,
    "num_cached_tokens": 0,
    "first_scheduled_time": 0.0,
    "first_token_time": 0.0,
    "finish_time": 0.0,
    "num_preemptions": 0,
}
TOTALS = {
    "num_steps": 0,
    "prefix_cache_queries": 0,
    "prefix_cache_hits": 0,
    "preempted_queries": 0,
    "preempted_hits": 0,
    "num_preemptions": 0,
    "num_evicted_blocks": 0,
    "num_blocks": 8,
    "block_size": 4,
    "end_time": 0.0,
    "peak_used_blocks": 0,
}
SERIES = (
    "time",
    "num_used_blocks",
    "num_cached_blocks",
    "num_blank_blocks",
    "num_running",
    "num_waiting",
    "hit_rate_window",
    "hit_rate",
    "num_preemptions",
    "num_evicted_blocks",
)


@pytest.fixture
def make_run() -> MakeRun:
    """`make_run("lru", {"num_output_tokens": 1}, {...}, end_time=3.0)`: a request per mapping."""

    def make(label: str, *requests: dict[str, object], **totals: float) -> Results:
        rows = [REQUEST | {"request_id": i} | row for i, row in enumerate(requests)]
        columns = {name: [row[name] for row in rows] for name in REQUEST}
        return Results.from_run(label, columns, {name: [] for name in SERIES}, TOTALS | totals)

    return make


@pytest.fixture
def busy_run() -> MakeRun:
    """`busy_run("lru", seed=0, num_requests=500, reuse=0.5)`: a made-up run that looks real."""

    def make(label: str, seed: int = 0, num_requests: int = 400, reuse: float = 0.5) -> Results:
        rng = np.random.default_rng(seed)
        settings = {"kv_bytes_per_token": 131072, "block_size": 16}
        requests = busy_requests(rng, num_requests, reuse)
        series = busy_series(rng, requests, num_blocks=4096)
        totals = TOTALS | {
            "num_steps": len(series["time"]),
            "prefix_cache_queries": int(requests["num_prompt_tokens"].sum()),
            "prefix_cache_hits": int(requests["num_cached_tokens"].clip(0).sum()),
            "num_preemptions": int(requests["num_preemptions"].sum()),
            "num_evicted_blocks": int(series["num_evicted_blocks"][-1]),
            "num_blocks": 4096,
            "block_size": 16,
            "end_time": float(series["time"][-1]),
            "peak_used_blocks": int(series["num_used_blocks"].max()),
        }
        return Results.from_run(label, requests, series, totals, settings)

    return make


def busy_requests(rng: np.random.Generator, n: int, reuse: float) -> dict[str, np.ndarray]:
    """Poisson arrivals, long-tailed lengths; one in fifty is refused."""
    arrival = rng.exponential(0.5, n).cumsum()
    prompt = rng.lognormal(7, 1, n).astype(int) + 1
    outputs = rng.geometric(1 / 120, n)
    warm = rng.random(n) < reuse * np.linspace(0.5, 1.2, n)
    cached = np.where(warm, prompt * rng.uniform(0.5, 1, n) // 16 * 16, 0).astype(int)
    queue = np.where(rng.random(n) < 0.4, 0.0, rng.exponential(0.4 / (0.2 + reuse), n))
    first = arrival + queue + 0.02 + (prompt - cached) * 45e-6
    finish = first + (outputs - 1) * rng.normal(0.012, 0.001, n)
    served = rng.random(n) > 0.02
    return {
        "request_id": np.arange(n),
        "session": np.arange(n) // 4,
        "status": np.where(served, "finished", "refused"),
        "reason": np.where(served, "", "needs 5,000 blocks; the pool has 4,096"),
        "arrival_time": arrival,
        "num_prompt_tokens": prompt,
        "max_tokens": outputs,
        "num_output_tokens": np.where(served, outputs, 0),
        "num_cached_tokens": np.where(served, cached, -1),
        "first_scheduled_time": np.where(served, arrival + queue, nan),
        "first_token_time": np.where(served, first, nan),
        "finish_time": np.where(served, finish, nan),
        "num_preemptions": np.where(served & (rng.random(n) < 0.03), 1, 0),
    }


def busy_series(
    rng: np.random.Generator, requests: dict[str, np.ndarray], num_blocks: int
) -> dict[str, np.ndarray]:
    """A sample every 0.1 s: a pool that warms up and is then full of cached blocks."""
    served = requests["status"] == "finished"
    queries, hits = requests["num_prompt_tokens"][served], requests["num_cached_tokens"][served]
    admitted = np.maximum.accumulate(requests["first_scheduled_time"][served])
    time = np.arange(0, requests["finish_time"][served].max() + 0.1, 0.1)
    seen = np.searchsorted(admitted, time, side="right")
    total_q, total_h = np.append(0, queries.cumsum()), np.append(0, hits.cumsum())
    oldest = np.maximum(0, seen - 100)
    with np.errstate(invalid="ignore"):
        rate = total_h[seen] / total_q[seen]
        window = (total_h[seen] - total_h[oldest]) / (total_q[seen] - total_q[oldest])
    load = np.convolve(rng.normal(0, 1, time.size), np.ones(300) / 20)[: time.size]
    used = np.clip(0.45 + 0.22 * load, 0.01, 0.995) * np.minimum(1, time / 20) * num_blocks
    used = used.astype(int)
    filled = np.minimum(num_blocks, (total_q - total_h)[seen] // 16)
    cached = np.maximum(0, filled - used)
    return {
        "time": time,
        "num_used_blocks": used,
        "num_cached_blocks": cached,
        "num_blank_blocks": num_blocks - used - cached,
        "num_running": used // 100,
        "num_waiting": np.maximum(0, used - 3500) // 50,
        "hit_rate_window": np.nan_to_num(window),
        "hit_rate": rate,
        "num_preemptions": np.zeros(time.size, dtype=int),
        "num_evicted_blocks": np.maximum(0, (total_q - total_h)[seen] // 16 - num_blocks),
    }


@pytest.fixture(autouse=True)
def _shadow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every test but the slow: each request reads only what is its own (L0)."""
    if request.node.get_closest_marker("slow") is None:
        watch_every(monkeypatch.setattr, ReferenceBlockManager)
