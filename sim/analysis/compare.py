"""Is one policy better than another? Paired differences with bootstrap confidence intervals.

All policies of an experiment serve the same requests, so what differs between requests cancels out
when the same ones are drawn for both. Sessions are drawn whole where the workload has them, since
their requests depend on each other; with several seeds, seeds are drawn first, then sessions or
requests within each (Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993: percentile
intervals). What the intervals cover: other requests of this kind in the same order of arrival. They
know nothing of another day's traffic, and one run's requests share one cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.errors import ConfigError
from sim.results import Results

Floats = npt.NDArray[np.float64]

HIT_RATES = ("hit_rate", "mean_request_hit_ratio")
TIMES = ("queue_time", "ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p95", "p99")
METRICS = (*HIT_RATES, *(f"{name}_{stat}" for name in TIMES for stat in STATISTICS))
NUM_SAMPLES = 1000
CHUNK = 50  # samples at once
MOST_DRAWS = 300_000_000  # per comparison; fewer samples are drawn of very long runs


def compare(
    results: Results,
    baseline: str | None = None,
    *,
    metric: str = "hit_rate",
    confidence: float = 0.95,
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
) -> pd.DataFrame:
    """How much every policy differs from *baseline* (the first) at every setting, in *metric*.

    One row per policy and setting (the seed is no setting): `value`, `baseline_value`,
    `difference` with the interval `low` to `high`, `is_clear` (the interval is on one side of 0),
    and what was drawn: `num_seeds`, `num_units` of `unit` (sessions or requests). NaN where nothing
    was measured. ConfigError if *baseline* or *metric* is unknown.
    """
    policies = list(dict.fromkeys(results.summary["policy"]))
    baseline = policies[0] if baseline is None else baseline
    if baseline not in policies:
        raise ConfigError(f"baseline is {baseline!r}; the policies are {', '.join(policies)}")
    if metric not in METRICS:
        raise ConfigError(f"metric is {metric!r}; it must be one of {', '.join(METRICS)}")
    if not 0 < confidence < 1 or num_samples < 1:
        raise ConfigError(f"confidence is {confidence}; it must be between 0 and 1")
    axes = [name for name in results.axes if name != "seed"]
    rows = []
    for setting, runs in _groups(results, axes):
        drawn = _Group(runs, metric, num_samples, seed)
        for policy in policies:
            if policy != baseline and drawn.has(policy) and drawn.has(baseline):
                row = drawn.row(policy, baseline, confidence)
                rows.append({"policy": policy, **setting, "baseline": baseline, **row})
    return pd.DataFrame(rows).astype({"policy": "string"} if rows else {})


def _groups(
    results: Results, axes: Sequence[str]
) -> Iterator[tuple[dict[str, Any], list[Results]]]:
    """The runs at every setting, whatever their policies and seeds."""
    groups: dict[tuple[Any, ...], list[Results]] = {}
    for run in results.runs():
        at = tuple(run.summary[name].iloc[0] for name in axes)
        groups.setdefault(at, []).append(run)
    for at, runs in groups.items():
        yield dict(zip(axes, at, strict=True)), runs


class _Group:
    """The runs at one setting, their metric drawn with the same requests for every policy."""

    def __init__(self, runs: Sequence[Results], metric: str, num_samples: int, seed: int) -> None:
        self.values: dict[str, list[float]] = {}
        self.samples: dict[str, list[Floats]] = {}
        by_seed: dict[Any, list[Results]] = {}
        for run in runs:
            at = run.summary["seed"].iloc[0] if "seed" in run.summary else None
            by_seed.setdefault(at, []).append(run)
        rng = np.random.default_rng(seed)
        for same in by_seed.values():
            units, self.unit = _units(same[0].requests)
            self.num_units = int(units.max()) + 1 if len(units) else 0
            number = max(1, min(num_samples, MOST_DRAWS // max(1, len(units) * len(same))))
            metrics = [_Metric(run.requests, metric) for run in same]
            draws = _draws(self.num_units, number, rng)
            if all(one.is_ratio for one in metrics):
                drawn = _ratios(metrics, units, draws, self.num_units)
            else:
                drawn = np.array([[one.of(draw[units]) for one in metrics] for draw in draws])
            for i, run in enumerate(same):
                policy = str(run.summary["policy"].iloc[0])
                self.values.setdefault(policy, []).append(metrics[i].of(None))
                column = drawn[:, i] if len(drawn) else np.full(number, nan)
                self.samples.setdefault(policy, []).append(column)
        self._rng = rng

    def has(self, policy: str) -> bool:
        return policy in self.values

    def row(self, policy: str, baseline: str, confidence: float) -> dict[str, Any]:
        """The difference of one policy from another."""
        value, other = (float(np.mean(self.values[name])) for name in (policy, baseline))
        pairs = zip(self.samples[policy], self.samples[baseline], strict=True)
        by_seed = np.array([one - two for one, two in pairs])
        num_seeds, number = by_seed.shape
        if num_seeds > 1:  # the seeds first
            chosen = np.random.default_rng(number).integers(num_seeds, size=(num_seeds, number))
            by_seed = by_seed[chosen, np.arange(number)]
        differences = by_seed.mean(axis=0)
        differences = differences[~np.isnan(differences)]
        low, high = nan, nan
        if differences.size:
            tail = 50 * (1 - confidence)
            low, high = (float(x) for x in np.percentile(differences, [tail, 100 - tail]))
        return {
            "value": value,
            "baseline_value": other,
            "difference": value - other,
            "low": low,
            "high": high,
            "is_clear": bool(low > 0 or high < 0),
            "num_seeds": num_seeds,
            "num_units": self.num_units,
            "unit": self.unit,
        }


def _units(requests: pd.DataFrame) -> tuple[npt.NDArray[np.int64], str]:
    """The number of the session of every request; without sessions, its own number."""
    sessions = requests["session"]
    if sessions.notna().any() and sessions.nunique() < len(requests):
        codes, names = pd.factorize(sessions)
        alone = codes < 0  # a request without a session is one of its own
        codes[alone] = len(names) + np.arange(int(alone.sum()))
        return codes.astype(np.int64), "sessions"
    return np.arange(len(requests)), "requests"


def _draws(num_units: int, number: int, rng: np.random.Generator) -> Iterator[Floats]:
    """How often each unit is drawn, *number* times."""
    for _ in range(number if num_units else 0):
        drawn = rng.integers(num_units, size=num_units)
        yield np.bincount(drawn, minlength=num_units).astype(np.float64)


def _ratios(
    metrics: Sequence[_Metric],
    units: npt.NDArray[np.int64],
    draws: Iterator[Floats],
    num_units: int,
) -> Floats:
    """Ratios of sums, one row per draw and one column per run; all runs at once."""
    columns = [column for one in metrics for column in (one.under, one.over)]
    sums = np.stack([np.bincount(units, column, num_units) for column in columns], axis=1)
    chunks = iter(lambda: list(islice(draws, CHUNK)), [])
    drawn = [np.array(chunk) @ sums for chunk in chunks]
    if not drawn:
        return np.empty((0, len(metrics)))
    under, over = (np.concatenate(drawn)[:, i::2] for i in (0, 1))
    ratios: Floats = np.divide(under, over, out=np.full(under.shape, nan), where=over > 0)
    return ratios


class _Metric:
    """One number of one run, for any weights of its requests."""

    def __init__(self, requests: pd.DataFrame, metric: str) -> None:
        self._quantile: float | None = None
        self.is_ratio = True
        if metric in HIT_RATES:
            admitted = (requests["num_cached_tokens"] >= 0).to_numpy()
            prompt = requests["num_prompt_tokens"].to_numpy(dtype=np.float64)
            cached = requests["num_cached_tokens"].to_numpy(dtype=np.float64)
            counted = admitted & (prompt > 0)
            base = prompt if metric == "hit_rate" else np.ones(len(prompt))
            ratio = np.divide(cached, prompt, out=np.zeros(len(prompt)), where=counted)
            self.over = np.where(counted, base, 0.0)
            self.under = np.where(counted, base * ratio, 0.0)
            return
        name, _, statistic = metric.rpartition("_")
        seconds = requests[name].to_numpy(dtype=np.float64)
        there = ~np.isnan(seconds)
        if statistic == "mean":
            self.over = there.astype(np.float64)
            self.under = np.where(there, seconds, 0.0)
            return
        self.is_ratio = False
        self._quantile = float(statistic[1:]) / 100
        self._order = np.flatnonzero(there)[np.argsort(seconds[there], kind="stable")]
        self._sorted = seconds[self._order]

    def of(self, weights: Floats | None) -> float:
        """The metric if every request counts *weights* times (once)."""
        if self._quantile is None:
            over = self.over.sum() if weights is None else weights @ self.over
            under = self.under.sum() if weights is None else weights @ self.under
            return float(under / over) if over else nan
        if not self._sorted.size:
            return nan
        if weights is None:
            return float(np.quantile(self._sorted, self._quantile))
        counts = np.cumsum(weights[self._order])
        if not counts[-1]:
            return nan
        rank = self._quantile * (counts[-1] - 1)  # linear between ranks, as everywhere else
        low, high = np.searchsorted(counts, [np.floor(rank), np.ceil(rank)], side="right")
        share = rank - np.floor(rank)
        return float(self._sorted[low] * (1 - share) + self._sorted[high] * share)
