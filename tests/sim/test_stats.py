"""The hit-rate window that vLLM logs."""

from __future__ import annotations

from sim.stats import HitRateWindow, PrefixCacheStats


def test_window_and_cumulative_rates_are_two_numbers():
    """Case A6: 0 before the first request; the window of 2 forgets, the total does not."""
    window, total, rates = HitRateWindow(max_recent_requests=2), PrefixCacheStats(), []
    assert window.hit_rate == 0.0
    for queries, hits in ((10, 0), (10, 10), (30, 0), (10, 5)):
        step = PrefixCacheStats(requests=1, queries=queries, hits=hits)
        window.observe(step)
        total.add(step)
        rates.append(window.hit_rate)
    assert rates == [0.0, 0.5, 0.25, 0.125]
    assert total.hits / total.queries == 0.25


def test_reset_empties_the_window_first():
    """A reset forgets what was before it and counts what comes with it."""
    window = HitRateWindow()
    window.observe(PrefixCacheStats(requests=1, queries=10, hits=10))
    window.observe(PrefixCacheStats(requests=1, queries=10, hits=0, reset=True))
    assert window.hit_rate == 0.0
    assert window.requests == 1


def test_a_large_step_stays_alone_in_the_window():
    """A single entry is never dropped, however many requests it holds."""
    window = HitRateWindow(max_recent_requests=2)
    window.observe(PrefixCacheStats(requests=1, queries=10, hits=0))
    window.observe(PrefixCacheStats(requests=5, queries=10, hits=5))
    assert (window.requests, window.hit_rate) == (5, 0.5)
