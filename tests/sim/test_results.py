"""Tables of results: what is derived, how it is kept, and what happens when nothing happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from sim.errors import ConfigError, KvsimError
from sim.results import FILES, Results

MakeRun = Callable[..., Results]
NEVER = {"first_scheduled_time": nan, "first_token_time": nan, "finish_time": nan}


def assert_equal(a: Results, b: Results) -> None:
    assert_frame_equal(a.summary, b.summary, check_exact=True)
    assert_frame_equal(a.requests, b.requests, check_exact=True)
    assert_frame_equal(a.series, b.series, check_exact=True)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def strict_json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_latencies_by_hand(make_run: MakeRun) -> None:
    """Arrival 1 s, scheduled 1.5 s, first token 2 s, 5 tokens by 4 s: 0.5, 1, 2 / 4 and 3 s."""
    times = {
        "arrival_time": 1.0,
        "first_scheduled_time": 1.5,
        "first_token_time": 2.0,
        "finish_time": 4.0,
        "num_output_tokens": 5,
    }
    request = make_run("lru", times).requests.iloc[0]
    assert tuple(request[["queue_time", "ttft", "tpot", "e2e"]]) == (0.5, 1.0, 0.5, 3.0)


def test_time_of_no_token_after_the_first(make_run: MakeRun) -> None:
    """Case L3 (c): one output token has no time per output token, but finishes."""
    run = make_run("lru", {"num_output_tokens": 1, "finish_time": 2.0}, end_time=2.0)
    row = run.summary.iloc[0]
    assert (row["finished"], row["e2e_p50"]) == (1, 2.0)
    assert isnan(row["tpot_mean"])
    assert strict_json(run.to_json())[0]["tpot_p50"] is None


def test_an_aborted_request_has_no_end_to_end_time(make_run: MakeRun) -> None:
    """The client left at 9 s: it had a first token, but the answer never took any time."""
    request = {"status": "aborted", "first_token_time": 1.0, "finish_time": 9.0}
    row = make_run("lru", request).summary.iloc[0]
    assert (row["aborted"], row["ttft_p50"]) == (1, 1.0)
    assert isnan(row["e2e_p50"])
    assert isnan(row["tpot_p50"])


def test_percentiles_interpolate_between_ranks(make_run: MakeRun) -> None:
    """Of 1, 2, 3, 10: p50 is at rank 2.5, p95 at 3.85, p99 at 3.97; the mean is 4."""
    requests = [{"first_token_time": t, "finish_time": t} for t in (10.0, 1.0, 3.0, 2.0)]
    row = make_run("lru", *requests).summary.iloc[0]
    expected = [4.0, 2.5, 3 + 0.85 * 7, 3 + 0.97 * 7]
    assert list(row[["ttft_mean", "ttft_p50", "ttft_p95", "ttft_p99"]]) == pytest.approx(expected)


@pytest.mark.parametrize("num_refused", [0, 1])
def test_nothing_completed(make_run: MakeRun, num_refused: int) -> None:
    """Case L3 (a, b): no request, or only a refused one: a full row, null where nothing was."""
    refused = NEVER | {"status": "refused", "num_output_tokens": 0, "num_cached_tokens": -1}
    run = make_run("lru", *[refused] * num_refused)
    (row,) = strict_json(run.to_json())
    assert (row["num_requests"], row["finished"], row["refused"]) == (num_refused, 0, num_refused)
    for name in ("hit_rate", "mean_request_hit_ratio", "ttft_p50", "tpot_p99", "requests_per_s"):
        assert row[name] is None
    assert "–" in run._repr_html_()  # noqa: RUF001


def test_hit_rate_counts_tokens(make_run: MakeRun) -> None:
    """Case A5: W has 9 tokens and no hit, R 15 with 8: 8/24 over the run, not 2/3 or 2/4."""
    w = {"num_prompt_tokens": 9, "num_cached_tokens": 0}
    r = {"num_prompt_tokens": 15, "num_cached_tokens": 8}
    run = make_run("lru", w, r, prefix_cache_queries=24, prefix_cache_hits=8)
    assert run.hit_rate == pytest.approx(8 / 24)
    assert run.summary["mean_request_hit_ratio"][0] == pytest.approx((0 + 8 / 15) / 2)


def test_rates_are_named_for_what_they_are(make_run: MakeRun) -> None:
    """Case A6: 15 hits of 60 tokens are 0.25; the mean of 0, 1, 0 and 0.5 is 0.375."""
    pairs = [(10, 0), (10, 10), (30, 0), (10, 5)]
    requests = [{"num_prompt_tokens": q, "num_cached_tokens": h} for q, h in pairs]
    run = make_run("lru", *requests, prefix_cache_queries=60, prefix_cache_hits=15)
    assert run.hit_rate == 0.25
    assert run.summary["mean_request_hit_ratio"][0] == 0.375


def test_long_and_short_requests_weigh_differently(make_run: MakeRun) -> None:
    """Case L7: a a a b of sizes 1, 1, 1, 9 in a large cache miss 2/4 requests and 10/12 tokens."""
    pairs = [(1, 0), (1, 1), (1, 1), (9, 0)]
    requests = [{"num_prompt_tokens": q, "num_cached_tokens": h} for q, h in pairs]
    run = make_run("lru", *requests, prefix_cache_queries=12, prefix_cache_hits=2)
    assert 1 - run.summary["mean_request_hit_ratio"][0] == 0.5
    assert 1 - run.hit_rate == pytest.approx(10 / 12)


def test_usage_is_of_the_usable_blocks(make_run: MakeRun) -> None:
    """Case L6: 4 usable blocks (5 with the null block): idle is 0, one 16-token request is 1."""
    idle = make_run("idle", num_blocks=4)
    full = make_run("full", {}, num_blocks=4, peak_used_blocks=4)
    assert list(Results.concat([idle, full]).summary["peak_usage"]) == [0.0, 1.0]


def test_rates_are_per_second_since_the_first_arrival(make_run: MakeRun) -> None:
    """Two requests of 4 tokens from 100 s to 108 s: 1 token/s and 0.25 requests/s."""
    request = {"arrival_time": 100.0, "finish_time": 108.0}
    row = make_run("lru", request, request, end_time=108.0).summary.iloc[0]
    assert tuple(row[["makespan", "output_tokens_per_s", "requests_per_s"]]) == (8.0, 1.0, 0.25)


def test_bytes_follow_from_blocks(busy_run: MakeRun) -> None:
    """With 131,072 bytes per token and 16 tokens per block, a used block is 2 MiB."""
    run = busy_run("lru")
    assert (run.series["used_bytes"] == run.series["num_used_blocks"] * 2**21).all()
    assert (run.series["cached_bytes"] == run.series["num_cached_blocks"] * 2**21).all()
    assert run.summary["peak_used_bytes"][0] == run.series["used_bytes"].max()


def test_bytes_are_unknown_without_a_model(make_run: MakeRun) -> None:
    """No size is made up for a run that does not say what a token takes."""
    assert isnan(make_run("lru", {}).summary["peak_used_bytes"][0])


def test_summary_has_every_promised_column(busy_run: MakeRun) -> None:
    """What is compared later is always there, under these names."""
    columns = set(busy_run("lru").summary.columns)
    stats = {
        f"{name}_{stat}"
        for name in ("queue_time", "ttft", "tpot", "e2e")
        for stat in ("mean", "p50", "p95", "p99")
    }
    assert stats <= columns
    assert {"policy", "hit_rate", "mean_request_hit_ratio", "makespan", "peak_usage"} <= columns


def test_save_and_load(tmp_path: Path, make_run: MakeRun, busy_run: MakeRun) -> None:
    """What is read back is what was written, to the last bit and with the same types."""
    awkward = ["NA", "007", 'a,"b"', "", "1e6"]
    mixed = make_run("mixed", {"request_id": "a", "session": 1}, {"request_id": 2})
    parts = [busy_run("lru"), make_run("empty"), mixed, *(make_run(s, {}) for s in awkward)]
    for i, results in enumerate([*parts, Results.concat(parts)]):
        folder = tmp_path / str(i)
        assert results.save(folder) == folder
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
        assert_equal(Results.load(folder), results)


@pytest.mark.parametrize("session", [[None, None], [3, None], [3, 4], ["a", None], ["a", 4]])
def test_sessions_of_any_kind(tmp_path: Path, make_run: MakeRun, session: list[Any]) -> None:
    """Sessions are integers, text or unknown; a mixture is kept as text."""
    run = make_run("lru", *({"session": name} for name in session))
    kept = [None if pd.isna(name) else name for name in run.requests["session"]]
    assert kept == (["a", "4"] if session == ["a", 4] else session)
    assert_equal(Results.load(run.save(tmp_path)), run)


def test_equal_results_give_equal_bytes(tmp_path: Path) -> None:
    """Two processes with different hash seeds write the same files, byte for byte."""
    script = textwrap.dedent("""
        import sys
        from sim.results import REQUEST_COLUMNS, SERIES_COLUMNS, Results
        requests = {name: [i * 0.1 for i in range(50)] for name in REQUEST_COLUMNS}
        requests |= {name: list(range(50)) for name in REQUEST_COLUMNS if name.startswith("num_")}
        requests |= {"status": ["finished"] * 50, "reason": [""] * 50, "max_tokens": [9] * 50}
        series = {name: list(range(50)) for name in SERIES_COLUMNS}
        names = ("num_steps prefix_cache_queries prefix_cache_hits preempted_queries preempted_hits"
                 " num_preemptions num_evicted_blocks num_blocks block_size end_time"
                 " peak_used_blocks")
        run = Results.from_run("lru", requests, series, {name: 7 for name in names.split()})
        run.save(sys.argv[1])
    """)
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script, tmp_path / seed], env=env, check=True)
    assert len(bytes_of(tmp_path / "1")) == 3
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "2")


def test_loaded_results_save_to_the_same_bytes(tmp_path: Path, busy_run: MakeRun) -> None:
    """Nothing is added or lost by a round trip."""
    first = busy_run("lru").save(tmp_path / "1")
    assert bytes_of(Results.load(first).save(tmp_path / "2")) == bytes_of(first)


@pytest.mark.parametrize("victim", ["fsync", "replace"])
def test_an_interrupted_save_leaves_the_earlier_files(
    tmp_path: Path, busy_run: MakeRun, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """A disk that fails before anything is in place leaves what was there, and no litter."""
    busy_run("old").save(tmp_path)
    before = bytes_of(tmp_path)

    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, victim, fail)
    with pytest.raises(OSError, match="disk full"):
        busy_run("new", seed=1).save(tmp_path)
    assert bytes_of(tmp_path) == before


def test_a_killed_save_leaves_whole_files(tmp_path: Path, busy_run: MakeRun) -> None:
    """A process that dies at the first rename has changed nothing that `load` reads."""
    old = busy_run("old")
    old.save(tmp_path)
    script = textwrap.dedent("""
        import os, signal, sys
        from sim.results import Results
        os.replace = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
        run = Results.load(sys.argv[1])
        run.requests["max_tokens"] = 0
        run.save(sys.argv[1])
    """)
    done = subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    assert done.returncode == -9
    assert_equal(Results.load(tmp_path), old)


def test_concat_keeps_order_and_refuses_twins(busy_run: MakeRun) -> None:
    """Runs stay in the order given; a label names one run only."""
    both = Results.concat([busy_run("sieve"), busy_run("lru", seed=1)])
    assert list(both.summary["policy"]) == ["sieve", "lru"]
    assert list(both.requests["policy"].unique()) == ["sieve", "lru"]
    assert both.summary.columns[0] == both.requests.columns[0] == both.series.columns[0] == "policy"
    with pytest.raises(ConfigError, match="two runs are labelled 'lru'; labels must differ"):
        Results.concat([both, busy_run("lru")])


def test_several_runs_have_no_single_hit_rate(busy_run: MakeRun) -> None:
    """`hit_rate` is a number only where there is one run."""
    one = busy_run("lru")
    assert one.hit_rate == one.summary["hit_rate"][0]
    with pytest.raises(ValueError, match="no single hit rate"):
        _ = Results.concat([one, busy_run("sieve")]).hit_rate


def test_load_says_what_is_missing(tmp_path: Path) -> None:
    """The error names the file and what saved results consist of."""
    with pytest.raises(KvsimError, match=r"requests\.parquet: no such file; saved results are"):
        Results.load(tmp_path)


def test_html_is_a_table_with_escaped_labels(make_run: MakeRun) -> None:
    """A label is text, whatever it contains."""
    html = make_run("<b>lru</b>", {})._repr_html_()
    assert html.startswith("<table")
    assert "&lt;b&gt;lru&lt;/b&gt;" in html


def test_columns_of_a_later_recorder_are_kept(make_run: MakeRun) -> None:
    """A column that this version does not know comes last, as it is."""
    run = make_run("lru", {})
    columns = {name: list(run.requests[name]) for name in run.requests.columns[1:14]}
    totals = run.summary.iloc[0].to_dict() | {"end_time": 0.0}
    series = {name: [] for name in run.series.columns[1:]}
    more = Results.from_run("lru", columns | {"priority": [3]}, series, totals)
    assert list(more.requests["priority"]) == [3]


@pytest.mark.parametrize("num_warm", [0, 1, 2, 3, 4, 10, 11])
def test_warm_up_excludes_exactly_n(busy_run: MakeRun, num_warm: int) -> None:
    """Case L1: of 10 requests, 10 - n are measured; with none left every rate is NaN."""
    run = busy_run("lru", num_requests=10)
    warm = run.after_warmup(num_warm)
    row = warm.summary.iloc[0]
    assert row["num_requests"] == len(warm.requests) == max(0, 10 - num_warm)
    kept = run.requests.iloc[num_warm:]
    admitted = kept[kept["num_cached_tokens"] >= 0]
    assert row["prefix_cache_hits"] == admitted["num_cached_tokens"].sum()
    assert isnan(row["hit_rate"]) == (num_warm >= 10)
    assert isnan(row["ttft_p50"]) == (num_warm >= 10)
    assert list(warm.summary.columns) == list(run.summary.columns)
    strict_json(warm.to_json())


def test_three_hit_rates_have_three_names(busy_run: MakeRun) -> None:
    """Case A6: over the run, per request, and vLLM's window at the end, side by side."""
    run = busy_run("lru")
    row = run.summary.iloc[0]
    assert row["hit_rate_window"] == run.series["hit_rate_window"].iloc[-1]
    assert len({row["hit_rate"], row["mean_request_hit_ratio"], row["hit_rate_window"]}) == 3


def test_select_takes_short_names(make_run: MakeRun) -> None:
    """`num_blocks=8` finds the axis `cache.num_blocks`; what is not there is an error."""
    parts = [
        make_run("x", {}).relabelled(label, {"cache.num_blocks": size, "seed": 0})
        for label in ("lru", "fifo")
        for size in (4, 8)
    ]
    results = Results.concat(parts)
    assert results.axes == ("cache.num_blocks", "seed")
    one = results.select("fifo", num_blocks=8)
    assert list(one.summary["policy"]) == ["fifo"]
    assert len(one.requests) == 1
    assert list(results.select(num_blocks=[4]).summary["policy"]) == ["lru", "fifo"]
    assert [list(run.summary["cache.num_blocks"]) for run in results.runs()] == [[4], [8]] * 2
    with pytest.raises(KvsimError, match="rate names no axis of these results"):
        results.select(rate=3)
    with pytest.raises(KvsimError, match="no run has"):
        results.select("lru", num_blocks=5)


def test_concat_of_different_axes(tmp_path: Path, make_run: MakeRun) -> None:
    """What a run does not say is missing, not guessed; saved and loaded it stays so."""
    one = make_run("lru", {}).relabelled("lru", {"seed": 1})
    both = Results.concat([one, make_run("fifo", {})])
    assert both.axes == ("seed",)
    assert both.summary["seed"].isna().tolist() == [False, True]
    assert Results.load(both.save(tmp_path)).axes == ("seed",)
