from __future__ import annotations

from typing import Any

import pytest

from sim import plots
from sim.errors import KvsimError
from sim.plots.style import new_axes
from sim.results import Results

Make = Any


@pytest.fixture
def sweep(busy_run: Make) -> Results:
    """Two policies at three sizes with two seeds."""
    parts = []
    for size, reuse in ((1000, 0.2), (10_000, 0.5), (100_000, 0.8)):
        for seed in (0, 1):
            for label, more in (("lru", 0.0), ("new", 0.1)):
                one = busy_run("x", seed=seed, reuse=reuse + more, num_requests=120)
                setting = {"cache.num_blocks": size, "seed": seed}
                parts.append(one.relabelled(label, setting))
    results = Results.concat(parts)
    results.requests["num_reusable_tokens"] = results.requests["num_cached_tokens"].clip(0)
    for name in ("num_isolated_tokens", "num_pending_tokens", "num_orphan_tokens"):
        results.requests[name] = 0
    return results


def texts(ax: Any) -> str:
    return " ".join(text.get_text() for text in ax.figure.findobj(lambda o: hasattr(o, "get_text")))


def test_the_lines_are_the_means_over_seeds(sweep: Results) -> None:
    """One line per policy, at every size, with a band over its seeds."""
    ax = plots.hit_rate_by_size(sweep)
    lines = [line for line in ax.get_lines() if len(line.get_xdata()) == 3]
    assert len(lines) == 2
    means = sweep.summary.groupby(["policy", "cache.num_blocks"], sort=False)["hit_rate"].mean()
    assert list(lines[0].get_ydata()) == pytest.approx(list(means["lru"]))
    assert list(lines[0].get_xdata()) == [1000, 10_000, 100_000]
    assert len(ax.collections) == 2
    assert "mean of 2 seeds" in texts(ax)


def test_bounds_are_drawn_where_they_are_known(sweep: Results) -> None:
    """MIN and the limit are two more lines, named at their ends."""
    sweep.summary["min_hit_rate"] = 0.7
    sweep.summary["unbounded_hit_rate"] = 0.8
    ax = plots.hit_rate_by_size(sweep)
    assert "MIN" in texts(ax)
    assert "no limit" in texts(ax)


@pytest.mark.parametrize(
    "draw", [plots.hit_rate_by_size, plots.latency_by_size, plots.gain, plots.misses]
)
def test_pictures_draw_on_the_axes_given(sweep: Results, draw: Any) -> None:
    """Every picture takes ax= and returns it."""
    ax = new_axes()
    assert draw(sweep, ax=ax) is ax


def test_gains_are_in_points(sweep: Results) -> None:
    """A cell is 100 x the difference, rounded to a tenth."""
    table = sweep.compare("lru")
    ax = plots.gain(sweep, table=table)
    shown = [text.get_text() for text in ax.texts]
    for value in table["difference"]:
        assert f"{100 * value:+.1f}" in shown


def test_the_focus_is_where_policies_differ_most(sweep: Results) -> None:
    """One point, all policies, one seed."""
    near = plots.focus(sweep)
    assert list(near.summary["policy"]) == ["lru", "new"]
    spread = sweep.summary.groupby(["cache.num_blocks", "seed"])["hit_rate"].agg(
        lambda x: x.max() - x.min()
    )
    assert near.summary["cache.num_blocks"].iloc[0] == spread.idxmax()[0]


def test_what_cannot_be_one_picture_is_refused(sweep: Results, busy_run: Make) -> None:
    """Two axes at once, or none, are errors that say what to do."""
    with pytest.raises(KvsimError, match="has no axis to draw along"):
        plots.hit_rate_by_size(busy_run("lru"))
    two = [
        one.relabelled("lru", {"cache.num_blocks": i, "workload.rate": i})
        for i, one in enumerate([busy_run("a"), busy_run("b")])
    ]
    with pytest.raises(KvsimError, match=r"workload\.rate varies too; select one value"):
        plots.hit_rate_by_size(Results.concat(two))


def test_chosen_pictures_only(sweep: Results, tmp_path: Any) -> None:
    """`save_all` draws what is named and nothing else."""
    paths = plots.save_all(sweep, tmp_path, names=("gain", "ttft"))
    assert [path.name for path in paths] == ["ttft.png", "gain.png"]
