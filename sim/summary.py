"""One row that says how a run went, and the part of it that people read first.

Three hit rates exist and are never mixed up: `hit_rate` (tokens, the whole run: hits / queries),
`mean_request_hit_ratio` (every admitted request counts the same, long or short) and
`hit_rate_window` (tokens, vLLM's window of the last 1000 requests, here at the end of the run).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd

Number = int | float

STATUSES = ("finished", "refused", "aborted", "unfinished")
LATENCIES = ("queue_time", "ttft", "tpot", "e2e")
PERCENTILES = (50, 95, 99)
GIB = 2**30
UNKNOWN = "–"  # noqa: RUF001  an en dash stands for what did not happen


def summary_row(
    label: str,
    requests: pd.DataFrame,
    totals: Mapping[str, Number],
    kv_bytes_per_token: float = nan,
    hit_rate_window: float = nan,
) -> dict[str, str | Number]:
    """The summary of one run; what did not happen is NaN, never 0.

    Tokens are counted over all requests, whatever became of them. Latencies are in seconds, over
    the requests that have them (see `Results`). `makespan` is from the first arrival to the end of
    the run; the rates per second divide by it. `orphan_share`: of the pool at the end, what is
    cached but cannot be hit, since a block before it is gone.
    """
    counts = requests["status"].value_counts()
    num_finished = int(counts.get("finished", 0))
    num_output_tokens = int(requests["num_output_tokens"].sum())
    makespan = float(totals["end_time"] - requests["arrival_time"].min())
    block_bytes = kv_bytes_per_token * totals["block_size"]
    row: dict[str, str | Number] = {"policy": label, "num_requests": len(requests)}
    row |= {status: int(counts.get(status, 0)) for status in STATUSES}
    row |= {
        "prompt_tokens": int(requests["num_prompt_tokens"].sum()),
        "output_tokens": num_output_tokens,
        "prefix_cache_queries": totals["prefix_cache_queries"],
        "prefix_cache_hits": totals["prefix_cache_hits"],
        "hit_rate": ratio(totals["prefix_cache_hits"], totals["prefix_cache_queries"]),
        "mean_request_hit_ratio": mean_request_hit_ratio(requests),
        "hit_rate_window": hit_rate_window,
        "preempted_queries": totals["preempted_queries"],
        "preempted_hits": totals["preempted_hits"],
        "num_preemptions": totals["num_preemptions"],
        "num_evicted_blocks": totals["num_evicted_blocks"],
        "orphan_share": ratio(totals.get("num_orphaned_blocks", nan), totals["num_blocks"]),
    }
    for name in LATENCIES:
        row |= latency_stats(name, requests[name])
    row |= {
        "end_time": totals["end_time"],
        "makespan": makespan,
        "output_tokens_per_s": ratio(num_output_tokens, makespan),
        "requests_per_s": ratio(num_finished, makespan),
        "num_steps": totals["num_steps"],
        "num_blocks": totals["num_blocks"],
        "block_size": totals["block_size"],
        "peak_used_blocks": totals["peak_used_blocks"],
        "peak_usage": ratio(totals["peak_used_blocks"], totals["num_blocks"]),
        "peak_used_bytes": totals["peak_used_blocks"] * block_bytes,
        "kv_bytes_per_token": kv_bytes_per_token,
    }
    return row


HIT_RATES = ("hit_rate", "mean_request_hit_ratio", "hit_rate_window")


def recount(summary: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """The one row of *summary* with everything that is said of requests said of *requests*."""
    row: dict[str, Any] = {str(name): value for name, value in summary.iloc[0].items()}
    admitted = requests[requests["num_cached_tokens"] >= 0]
    totals = row | {
        "prefix_cache_queries": int(admitted["num_prompt_tokens"].sum()),
        "prefix_cache_hits": int(admitted["num_cached_tokens"].sum()),
        "num_preemptions": int(requests["num_preemptions"].sum()),
    }
    given = (row["kv_bytes_per_token"], row["hit_rate_window"])
    new = summary_row(str(row["policy"]), requests, totals, *given)
    new["orphan_share"] = row.get("orphan_share", nan)  # of the whole run
    if isnan(float(row["hit_rate"])):  # nothing was known of hits before either
        new |= dict.fromkeys(HIT_RATES, nan)
    return pd.DataFrame([row | new]).astype({"policy": "string"})


def ratio(part: Number, whole: Number) -> float:
    """*part* / *whole*; NaN if there is no whole."""
    return part / whole if whole > 0 else nan


def mean_request_hit_ratio(requests: pd.DataFrame) -> float:
    """The mean of hit tokens / prompt tokens over the requests that were admitted."""
    admitted = requests[(requests["num_cached_tokens"] >= 0) & (requests["num_prompt_tokens"] > 0)]
    return float((admitted["num_cached_tokens"] / admitted["num_prompt_tokens"]).mean())


def latency_stats(name: str, seconds: pd.Series[float]) -> dict[str, float]:
    """Mean and percentiles of the values that exist, as `name_mean`, `name_p50` ...

    A percentile interpolates linearly between the two nearest ranks: of n sorted values, p lies at
    rank 1 + (n - 1) * p / 100. It is NumPy's default and what `vllm bench serve` prints.
    """
    values = seconds.dropna().to_numpy()
    if not values.size:
        return {f"{name}_mean": nan} | {f"{name}_p{p}": nan for p in PERCENTILES}
    points = np.percentile(values, PERCENTILES)
    percentiles = {f"{name}_p{p}": float(x) for p, x in zip(PERCENTILES, points, strict=True)}
    return {f"{name}_mean": float(values.mean())} | percentiles


def headline(summary: pd.DataFrame) -> pd.DataFrame:
    """The columns that people compare first, as text with units in the column names.

    Bounds have columns where they were asked for, latencies where there was a clock, aborted and
    unfinished requests where there are any, the memory in GiB where its size is known.
    """
    names = list(summary.columns)
    table = {"policy": summary["policy"]}
    for axis in names[1 : names.index("num_requests")]:
        table[axis.rpartition(".")[2]] = summary[axis].map(_plain)
    table["hit rate"] = summary["hit_rate"].map(lambda x: known(x, ".1%"))
    if "min_hit_rate" in names:
        table["MIN"] = summary["min_hit_rate"].map(lambda x: known(x, ".1%"))
        table["no limit"] = summary["unbounded_hit_rate"].map(lambda x: known(x, ".1%"))
        table["gap closed"] = summary["gap_closed"].map(lambda x: known(x, ".0%"))
    has_clock = bool(summary["ttft_p50"].notna().any() or (summary["finished"] == 0).all())
    if has_clock:
        table |= {
            "TTFT p50 (s)": summary["ttft_p50"].map(lambda x: known(x, ",.3f")),
            "TTFT p95 (s)": summary["ttft_p95"].map(lambda x: known(x, ",.3f")),
            "TPOT p50 (ms)": summary["tpot_p50"].map(lambda x: known(1e3 * x, ",.2f")),
            "TPOT p95 (ms)": summary["tpot_p95"].map(lambda x: known(1e3 * x, ",.2f")),
            "preemptions": summary["num_preemptions"].map(lambda n: f"{n:,}"),
        }
    else:
        table["evicted blocks"] = summary["num_evicted_blocks"].map(lambda n: f"{n:,}")
    for status in STATUSES:
        if status in ("finished", "refused") or summary[status].any():
            table[status] = summary[status].map(lambda n: f"{n:,}")
    if not has_clock:
        return pd.DataFrame(table)
    table["peak usage"] = summary["peak_usage"].map(lambda x: known(x, ".0%"))
    if summary["peak_used_bytes"].notna().any():
        gib = summary["peak_used_bytes"] / GIB
        table["peak (GiB)"] = gib.map(lambda x: known(x, ",.2f"))
    return pd.DataFrame(table)


def with_orphans(table: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """*table*, which is `headline` of *summary*, and the orphans if there are any."""
    if "orphan_share" not in summary or not (summary["orphan_share"] > 0).any():
        return table
    return table.assign(orphans=summary["orphan_share"].map(lambda x: known(x, ".2%")))


def _plain(value: object) -> str:
    """The value of an axis as people write it."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def known(value: float, spec: str) -> str:
    """*value* in the format *spec*, or a dash if it is NaN."""
    return UNKNOWN if isnan(value) else format(value, spec)
