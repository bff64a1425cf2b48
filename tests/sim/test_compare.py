from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sim.analysis.compare import _Metric, compare
from sim.errors import ConfigError
from sim.results import Results

MakeRun = Callable[..., Results]


def run_of(make_run: MakeRun, label: str, cached: Any, **columns: Any) -> Results:
    """A run whose requests of 100 tokens have hit *cached* tokens each."""
    rows = [
        {
            "num_prompt_tokens": 100,
            "num_cached_tokens": int(c),
            **{n: v[i] for n, v in columns.items()},
        }
        for i, c in enumerate(cached)
    ]
    hits, queries = int(sum(cached)), 100 * len(rows)
    return make_run(label, *rows, prefix_cache_hits=hits, prefix_cache_queries=queries)


def one_row(results: Results, **options: Any) -> Any:
    (row,) = compare(results, **options).itertuples()
    return row


def test_a_constant_difference_has_no_width(make_run: MakeRun) -> None:
    """Ten tokens more of each hundred are 0.1, whichever requests are drawn: pairs cancel."""
    cached = np.random.default_rng(0).integers(0, 80, 50)
    runs = [run_of(make_run, "lru", cached), run_of(make_run, "sieve", cached + 10)]
    row = one_row(Results.concat(runs))
    assert (row.policy, row.baseline, row.unit, row.num_units) == ("sieve", "lru", "requests", 50)
    assert row.difference == pytest.approx(0.1)
    assert (row.low, row.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert row.is_clear


def test_intervals_cover_the_truth(make_run: MakeRun) -> None:
    """Of 100 experiments with a true difference of 0, about 95 % have an interval around 0."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        one, other = rng.integers(0, 60, 40), rng.integers(0, 60, 40)
        runs = [run_of(make_run, "a", one), run_of(make_run, "b", other)]
        row = one_row(Results.concat(runs), num_samples=300)
        covered += row.low <= 0 <= row.high
    assert 88 <= covered <= 99


def test_sessions_are_drawn_whole(make_run: MakeRun) -> None:
    """Every request four times in one session says no more than once: the width stays."""
    rng = np.random.default_rng(2)
    one, other = rng.integers(0, 60, 60), rng.integers(0, 60, 60)

    def width(copies: int, with_sessions: bool) -> tuple[float, str]:
        names = np.repeat(np.arange(60), copies)
        columns = {"session": [int(n) if with_sessions else None for n in names]}
        runs = [
            run_of(make_run, label, np.repeat(cached, copies), **columns)
            for label, cached in (("a", one), ("b", other))
        ]
        row = one_row(Results.concat(runs))
        return row.high - row.low, row.unit

    single, _ = width(1, False)
    grouped, unit = width(4, True)
    loose, _ = width(4, False)
    assert unit == "sessions"
    assert grouped == pytest.approx(single, rel=0.15)
    assert loose == pytest.approx(single / 2, rel=0.15)


def test_requests_without_a_session_stand_alone(make_run: MakeRun) -> None:
    """Two of one session and two of none are three units."""
    columns = {"session": ["s", "s", None, None]}
    runs = [run_of(make_run, label, [10] * 4, **columns) for label in ("a", "b")]
    assert one_row(Results.concat(runs)).num_units == 3


def test_seeds_are_drawn_first(make_run: MakeRun) -> None:
    """Where only seeds differ, the interval is that of their means; seeds are no setting."""
    parts = []
    for seed, gain in enumerate((0, 10, 20, 30)):
        for label, cached in (("lru", [20] * 30), ("sieve", [20 + gain] * 30)):
            parts.append(run_of(make_run, label, cached).relabelled(label, {"seed": seed}))
    row = one_row(Results.concat(parts))
    assert row.num_seeds == 4
    assert row.difference == pytest.approx(0.15)
    assert 0.0 <= row.low < 0.08
    assert 0.22 < row.high <= 0.3


@pytest.mark.parametrize("name", ["p50", "p95", "p99"])
def test_drawn_percentiles_are_those_of_the_drawn_requests(name: str) -> None:
    """A weight of k is the value k times; requests without the value are left out."""
    rng = np.random.default_rng(3)
    values = rng.exponential(1, 40)
    values[::7] = np.nan
    weights = rng.integers(0, 4, 40).astype(float)
    metric = _Metric(pd.DataFrame({"ttft": values}), f"ttft_{name}")
    repeated = np.repeat(values, weights.astype(int))
    expected = np.nanquantile(repeated, float(name[1:]) / 100)
    assert metric.of(weights) == pytest.approx(expected)
    assert metric.of(None) == pytest.approx(np.nanquantile(values, float(name[1:]) / 100))


def test_times_are_compared_where_they_exist(busy_run: MakeRun) -> None:
    """TTFT percentiles and means of two runs of the same requests, one with more reuse."""
    both = Results.concat([busy_run("cold", reuse=0.0), busy_run("warm", reuse=0.9)])
    for metric in ("ttft_p50", "ttft_mean"):
        row = one_row(both, metric=metric, num_samples=200)
        assert row.value == pytest.approx(both.summary[metric][1])
        assert row.baseline_value == pytest.approx(both.summary[metric][0])
        assert row.low < row.difference < row.high < 0


def test_every_setting_has_its_row(make_run: MakeRun) -> None:
    """Axes other than the seed are kept apart, and a policy may be missing at a point."""
    parts = [
        run_of(make_run, label, [size, 50]).relabelled(label, {"cache.num_blocks": size})
        for label, size in (("lru", 10), ("fifo", 10), ("lru", 20), ("fifo", 20), ("lru", 40))
    ]
    table = compare(Results.concat(parts), "lru")
    assert list(table["cache.num_blocks"]) == [10, 20]
    assert list(table["policy"]) == ["fifo", "fifo"]


def test_nothing_measured_is_nan_not_an_error(make_run: MakeRun) -> None:
    """Case L3: two runs without any request, or without a single first token."""
    empty = Results.concat([make_run("a"), make_run("b")])
    assert np.isnan(one_row(empty).difference)
    row = one_row(Results.concat([make_run("a", {}), make_run("b", {})]), metric="tpot_p99")
    assert row.difference == 0.0 or np.isnan(row.difference)
    assert not row.is_clear


def test_bad_questions(make_run: MakeRun) -> None:
    """Unknown policies and metrics are named, with those that are known."""
    run = make_run("lru", {})
    with pytest.raises(ConfigError, match="baseline is 'x'; the policies are lru"):
        compare(run, "x")
    with pytest.raises(ConfigError, match="metric is 'hits'; it must be one of hit_rate, mean_req"):
        compare(run, metric="hits")
