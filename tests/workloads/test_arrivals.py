from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.errors import ConfigError
from sim.spec.build import build
from workloads import ARRIVALS
from workloads.arrivals import Bursty, Constant, Diurnal, Gamma, Poisson, Users, Weibull
from workloads.lengths import Lengths as LengthTrace
from workloads.profile import profile
from workloads.streams import stream

OPEN = [Constant(4), Poisson(4), Gamma(4, 3), Weibull(4, 0.6), Bursty(4, 40), Diurnal(4, 0.9, 50)]


def gaps(arrivals: Any, num: int = 200_000) -> Any:
    return np.diff(arrivals.times(num, stream(1, "t")), prepend=0.0)


@pytest.mark.parametrize("arrivals", OPEN, ids=lambda a: type(a).__name__)
def test_times_begin_at_0_and_go_on_as_before(arrivals: Any) -> None:
    """Non-decreasing; a longer run begins with the shorter one."""
    long, short = (arrivals.times(n, stream(7, "t")) for n in (1000, 10))
    assert (np.diff(long) >= 0).all()
    assert (long >= 0).all()
    np.testing.assert_allclose(long[:10], short, rtol=1e-12)


@pytest.mark.parametrize("name", sorted(set(ARRIVALS) - {"servegen"}))
def test_every_process_has_defaults(name: str) -> None:
    assert len(build("arrivals", name).times(20, stream(0, "t"))) == 20


@pytest.mark.parametrize(
    ("arrivals", "rate", "cv"),
    [
        (Constant(4), 4, 0),
        (Poisson(4), 4, 1),
        (Gamma(4, 3), 4, 3),
        (Gamma(4, 0.5), 4, 0.5),
        (Weibull(4, 0.5), 4, 5**0.5),  # CV^2 = G(5) / G(3)^2 - 1 = 24 / 4 - 1
    ],
)
def test_rate_and_variation_are_those_asked_for(arrivals: Any, rate: float, cv: float) -> None:
    """Mean gap 1 / rate; CV by the formulas of the distributions; within 3 %."""
    drawn = gaps(arrivals)
    assert drawn[1:].mean() == pytest.approx(1 / rate, rel=0.03)
    assert drawn[1:].std() / drawn[1:].mean() == pytest.approx(cv, rel=0.03, abs=0.01)


def test_bursts_have_their_share_of_the_time() -> None:
    """60 s at 1/s and 10 s at 20/s: 260 in 70 s on average; bursts are where they were."""
    arrivals = Bursty(1, 20, calm_s=60, burst_s=10)
    assert 1 / gaps(arrivals).mean() == pytest.approx(260 / 70, rel=0.05)
    counts = np.histogram(np.cumsum(gaps(arrivals)), bins=np.arange(0, 20_000, 1.0))[0]
    assert (counts > 10).mean() == pytest.approx(10 / 70, abs=0.03)  # in a burst about 20
    assert counts.std() ** 2 / counts.mean() > 5  # a Poisson process has 1


def test_day_and_night() -> None:
    """Rate 10 x (1 + 0.8 sin): the first half of a period has (1 + 1.6 / pi) / 2 of it."""
    times = Diurnal(10, 0.8, 100).times(100_000, stream(3, "t"))
    phase = times % 100
    assert times[-1] == pytest.approx(10_000, rel=0.02)
    assert (phase < 50).mean() == pytest.approx((1 + 1.6 / np.pi) / 2, abs=0.005)


def test_users_begin_within_the_ramp_and_pause() -> None:
    times = Users(4, pause_s=20, ramp_s=5).times(10_004, stream(0, "t"))
    assert (times[:4] <= 5).all()
    assert times[4:].mean() == pytest.approx(20, rel=0.05)


def test_gamma_fits_the_azure_trace(kvsim_data: Any) -> None:
    """With the trace's rate and CV, gap quantiles are within 15 % of the recorded ones."""
    path = kvsim_data / "azure_2023" / "AzureLLMInferenceTrace_conv.csv.xz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    trace = LengthTrace(path)
    found = profile(trace)
    assert found.requests_per_s is not None
    assert found.gap_cv is not None
    recorded = np.diff([request.arrival_time for request in trace])
    drawn = gaps(Gamma(found.requests_per_s, found.gap_cv))
    shares = [0.25, 0.5, 0.75, 0.9, 0.99]
    np.testing.assert_allclose(np.quantile(drawn, shares), np.quantile(recorded, shares), rtol=0.15)


@pytest.mark.parametrize(
    "spec",
    [
        {"use": "poisson", "rate": 0},
        {"use": "gamma", "cv": -1},
        {"use": "gamma", "cv": 1e200},
        {"use": "weibull", "shape": 1e-3},
        {"use": "diurnal", "swing": 1.5},
        {"use": "users", "num_users": 0},
        {"use": "bursty", "calm_s": float("nan")},
    ],
)
def test_arguments_out_of_range_are_named(spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(list(spec)[1])):
        build("arrivals", spec)


@pytest.mark.parametrize(
    ("workload", "owner"),
    [
        ({"use": "shared_prefix", "rate": 1e-320, "num_requests": 50}, "SharedPrefix"),
        ({"use": "shared_prefix", "rate": 1e-12, "num_requests": 50}, "SharedPrefix"),
        ({"use": "synthetic", "arrivals": {"use": "poisson", "rate": 1e-320}}, "Poisson"),
        ({"use": "synthetic", "arrivals": {"use": "diurnal", "rate": 1e-320}}, "Diurnal"),
        (
            {"use": "synthetic", "arrivals": {"use": "bursty", "rate": 1e-99, "burst_rate": 1e-99}},
            "Bursty",
        ),
        ({"use": "synthetic", "arrivals": {"use": "users", "ramp_s": 1e300}}, "Users"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_times_that_no_clock_can_tell_apart(workload: dict[str, Any], owner: str) -> None:
    """Infinite, or so late that a step takes no time: an error of the workload, no warning."""
    with pytest.raises(
        ConfigError, match=rf"{owner}: the last arrival is at .* s; the limit is 1e\+10"
    ):
        build("workload", workload)
