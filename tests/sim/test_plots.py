"""Pictures: they show the numbers of the tables, need no display and leave no trace."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sim import plots
from sim.plots.runs import MEMORY
from sim.plots.style import PALETTE, spread, thin
from sim.results import Results

MakeRun = Callable[..., Results]
SIX = ("hit_rate", "memory", "ttft", "tpot", "e2e", "queue_time")


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its header."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def test_hit_rate_lines_are_the_series(busy_run: MakeRun) -> None:
    """Per run a thin line (window) and a bold one (since the start) with its last value."""
    run = busy_run("lru")
    ax = plots.hit_rate_over_time(run)
    window, cumulative = ax.get_lines()
    np.testing.assert_array_equal(cumulative.get_ydata(), run.series["hit_rate"])
    np.testing.assert_array_equal(window.get_ydata(), run.series["hit_rate_window"])
    assert window.get_linewidth() < cumulative.get_linewidth()
    assert f"lru  {run.series['hit_rate'].iloc[-1]:.1%}" in texts(ax)


def test_memory_layers_add_up_to_the_pool(busy_run: MakeRun) -> None:
    """The layers end at used, used + cached and all blocks; the axes say blocks and GiB."""
    run = busy_run("lru")
    ax = plots.memory_over_time(run)
    tops = [layer.get_paths()[0].vertices[:, 1].max() for layer in ax.collections]
    used, cached = run.series["num_used_blocks"], run.series["num_cached_blocks"]
    assert tops == [4096, (used + cached).max(), used.max()]
    assert ax.get_ylim() == (0, 4096)
    right = next(child for child in ax.child_axes)
    assert (ax.get_ylabel(), right.get_ylabel()) == ("blocks", "GiB")
    ax.figure.draw_without_rendering()
    assert right.get_ylim() == pytest.approx((0, 8.0))  # 4096 blocks of 16 x 131,072 bytes


def test_memory_of_one_run_among_several(busy_run: MakeRun) -> None:
    """Several runs have one picture each: `policy` names it, `memory_panels` draws all."""
    both = Results.concat([busy_run("lru"), busy_run("sieve", seed=1)])
    with pytest.raises(ValueError, match="memory_panels"):
        plots.memory_over_time(both)
    assert "sieve" in plots.memory_over_time(both, policy="sieve").get_title(loc="left")
    assert [ax.get_title(loc="left") for ax in plots.memory_panels(both)] == ["lru", "sieve"]


def test_latency_curve_is_the_distribution(busy_run: MakeRun) -> None:
    """At the height 1/2 the curve is at the median; the legend gives p50 and p95."""
    run = busy_run("lru")
    ax = plots.latency_cdf(run, "tpot")
    (line,) = ax.get_lines()
    x, y = line.get_data()
    milliseconds = 1e3 * run.requests["tpot"]
    assert x[np.searchsorted(y, 0.5)] == pytest.approx(milliseconds.median(), rel=0.01)
    assert y[-1] == 1.0
    p50, p95 = milliseconds.quantile([0.5, 0.95])
    assert line.get_label() == f"lru  {p50:.1f} / {p95:.1f}"
    assert f"{milliseconds.isna().sum()} of 400 have none" in texts(ax)[0]


def test_waits_of_zero_are_part_of_the_curve(busy_run: MakeRun) -> None:
    """On a logarithmic axis the curve enters from the left at the share of zeros."""
    run = busy_run("lru")
    ax = plots.latency_cdf(run, "queue_time")
    assert ax.get_xscale() == "log"
    waits = run.requests["queue_time"].dropna()
    x, y = ax.get_lines()[0].get_data()
    assert max(y[x == 0]) == pytest.approx((waits == 0).mean())
    assert ax.get_xlim()[0] > 0


def test_unknown_metric(busy_run: MakeRun) -> None:
    """The error lists what may be asked for."""
    with pytest.raises(ValueError, match="metric is 'itl'; it must be one of ttft, tpot, e2e"):
        plots.latency_cdf(busy_run("lru"), "itl")


def test_draws_on_the_axes_of_the_caller(busy_run: MakeRun) -> None:
    """With *ax*, that one is drawn on and returned."""
    run = busy_run("lru")
    for ax, draw in zip(
        Figure().subplots(3),
        (plots.hit_rate_over_time, plots.memory_over_time, plots.latency_cdf),
        strict=True,
    ):
        assert draw(run, ax=ax) is ax
        assert ax.has_data()


def test_each_run_has_its_colour(busy_run: MakeRun) -> None:
    """Six runs have six colours, the same in every picture; the seventh is dashed."""
    runs = Results.concat([busy_run(f"p{i}", seed=i, num_requests=20) for i in range(7)])
    bold = plots.hit_rate_over_time(runs).get_lines()[1::2]
    curves = plots.latency_cdf(runs).get_lines()
    assert [line.get_color() for line in bold] == [*PALETTE, PALETTE[0]]
    assert [line.get_color() for line in curves] == [*PALETTE, PALETTE[0]]
    assert curves[0].get_linestyle() == "-"
    assert curves[6].get_linestyle() != "-"


def test_colours_differ_in_lightness_of_memory() -> None:
    """The three kinds of blocks are told apart without colour: from dark to light."""
    grey = [np.dot(to_rgb(color), (0.299, 0.587, 0.114)) for color in MEMORY.values()]
    assert grey == sorted(grey)
    assert min(np.diff(grey)) > 0.2


def test_every_label_is_shown(busy_run: MakeRun) -> None:
    """Neither `$`, `_` nor a great length hides a label or stops the drawing."""
    labels = ("$a_b$", "_mine", "x" * 100)
    runs = Results.concat([busy_run(name, num_requests=20) for name in labels])
    legend = plots.latency_cdf(runs).get_legend()
    assert legend is not None
    shown = [text.get_text().split("  ")[0].strip() for text in legend.get_texts()]
    assert shown == [r"\$a_b\$", "_mine", "x" * 16 + "…" + "x" * 15]
    for ax in (plots.latency_cdf(runs), plots.hit_rate_over_time(runs)):
        ax.figure.draw_without_rendering()


def test_save_all(tmp_path: Path, busy_run: MakeRun) -> None:
    """One run or several: every picture in every format, none of them empty."""
    one = busy_run("lru", num_requests=50)
    paths = plots.save_all(one, tmp_path / "one", formats=("png", "svg"))
    assert paths == [tmp_path / "one" / f"{pic}.{end}" for pic in SIX for end in ("png", "svg")]
    assert all(path.stat().st_size > 5000 for path in paths)
    assert size(paths[0]) == (1125, 630)
    several = Results.concat([one, busy_run("sieve", seed=1, num_requests=50)])
    paths = plots.save_all(several, tmp_path / "two")
    assert [path.stem for path in paths] == list(SIX)
    assert size(paths[1]) == (1650, 510)


def test_equal_results_give_equal_pictures(tmp_path: Path, busy_run: MakeRun) -> None:
    """PNGs carry neither date nor chance."""
    one, two = tmp_path / "1.png", tmp_path / "2.png"
    for path in (one, two):
        plots.latency_cdf(busy_run("lru", num_requests=50)).figure.savefig(path)
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("num_refused", [0, 1])
def test_nothing_to_draw(tmp_path: Path, make_run: MakeRun, num_refused: int) -> None:
    """Case L3: pictures of nothing say so; latencies that nobody has are not drawn by save_all."""
    never = {"first_scheduled_time": np.nan, "first_token_time": np.nan, "finish_time": np.nan}
    run = make_run("lru", *[{"status": "refused"} | never] * num_refused)
    assert [path.stem for path in plots.save_all(run, tmp_path)] == ["hit_rate", "memory"]
    assert "no request got this far" in texts(plots.latency_cdf(run))
    assert "no samples" in texts(plots.memory_over_time(run))
    assert len(plots.memory_panels(Results.concat([run, make_run("b"), make_run("c")]))) == 3


def test_thinning_keeps_peaks(busy_run: MakeRun) -> None:
    """Of a long series the highest and lowest moments survive, wherever they are."""
    series = busy_run("lru", num_requests=3000).series
    assert len(series) > 10_000
    few = thin(series, "num_used_blocks")
    assert len(few) < 2100
    assert few["num_used_blocks"].max() == series["num_used_blocks"].max()
    assert few["num_used_blocks"].min() == series["num_used_blocks"].min()
    assert (few["time"].iloc[0], few["time"].iloc[-1]) == (0, series["time"].iloc[-1])
    assert few["time"].is_monotonic_increasing
    assert len(thin(series.assign(hit_rate=np.nan), "hit_rate")) == 2


def test_labels_are_moved_apart() -> None:
    """Labels keep their order and a gap, and stay below the top."""
    assert spread([0.1, 0.5, 0.52], 0.1, 1.0) == pytest.approx([0.1, 0.5, 0.6])
    assert spread([0.97, 0.98, 0.99], 0.1, 1.0) == pytest.approx([0.8, 0.9, 1.0])
    assert spread([], 0.1, 1.0) == []


def test_figures_do_not_pile_up(busy_run: MakeRun) -> None:
    """Case L8: there is no registry to close; matplotlib itself remembers the last one drawn."""
    run = busy_run("lru", num_requests=20)
    figures = []
    for _ in range(5):
        figure = plots.latency_cdf(run).figure
        figure.draw_without_rendering()
        figures.append(weakref.ref(figure))
        del figure
    gc.collect()
    assert sum(figure() is not None for figure in figures) <= 1


def test_no_style_is_changed(busy_run: MakeRun) -> None:
    """Case L8: matplotlib's settings are the same after drawing."""
    before = dict(matplotlib.rcParams)
    plots.hit_rate_over_time(busy_run("lru")).figure.draw_without_rendering()
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", [{}, {"DISPLAY": "localhost:64", "MPLBACKEND": "TkAgg"}], ids=str
)
def test_needs_no_display(tmp_path: Path, busy_run: MakeRun, environment: dict[str, str]) -> None:
    """Case L8: no display, or a dead one and a GUI backend; a home that cannot be written."""
    (tmp_path / "file").touch()  # nobody, not even root, can write into a folder inside a file
    home = tmp_path / "file" / "home"
    saved = busy_run("lru", num_requests=20).save(tmp_path / "run")
    script = (
        "import sys, sim.plots, sim.commands.console; from sim.results import Results\n"
        "paths = sim.plots.save_all(Results.load(sys.argv[1]), sys.argv[2])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert all(path.stat().st_size for path in paths) and len(paths) == 6\n"
    )
    drop = ("DISPLAY", "MPLBACKEND", "MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in drop}
    env = kept | {"HOME": str(home)} | environment
    command = [sys.executable, "-c", script, saved, tmp_path / "plots"]
    subprocess.run(command, env=env, check=True)


def test_import_sim_loads_nothing_heavy() -> None:
    """`import sim` alone loads neither matplotlib nor pandas; `sim.plots` never loads pyplot."""
    script = (
        "import sys, sim\n"
        "assert not {'matplotlib', 'pandas', 'torch'} & set(sys.modules)\n"
        "import matplotlib, sim.plots\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
