"""Arrival processes: constant, Poisson, Gamma, Weibull, bursts, day and night, N users.

A process whose rate changes is a Poisson process seen through a warped clock: unit-rate arrivals
are mapped through the inverse of the cumulative rate, which is exact.
"""

from __future__ import annotations

import math

import numpy as np

from sim.errors import ConfigError
from sim.traffic import Arrivals, Floats
from sim.workload import LATEST
from workloads.arguments import real_number, whole_number

EXTREMES = (0.01, 100.0)  # beyond them floats give no distribution any more


def arrival_times(
    arrivals: Arrivals, num: int, rng: np.random.Generator, owner: str = ""
) -> Floats:
    """*num* moments of *arrivals*; ConfigError if a clock cannot tell them apart any more.

    *owner*: what the error blames, if not the class of *arrivals*.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        times = arrivals.times(num, rng)
    _check_latest(owner or type(arrivals).__name__, float(times.max(initial=0.0)))
    return times


def _check_latest(owner: str, latest: float) -> None:
    if not latest <= LATEST:
        raise ConfigError(
            f"{owner}: the last arrival is at {latest:g} s; the limit is {LATEST:g} s; "
            "give a higher rate, or fewer of them"
        )


class Constant(Arrivals):
    """*rate* a second, at equal distances."""

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = real_number("Constant", "rate", rate, above=0)

    def times(self, num: int, rng: np.random.Generator) -> Floats:
        return np.arange(num) / self.rate


class Poisson(Arrivals):
    """*rate* a second on average, independently of each other."""

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = real_number("Poisson", "rate", rate, above=0)

    def times(self, num: int, rng: np.random.Generator) -> Floats:
        return np.cumsum(rng.standard_exponential(num)) / self.rate


class Gamma(Arrivals):
    """*rate* a second with Gamma-distributed gaps; *cv* is their deviation over their mean.

    1 is Poisson, above it is burstier. Azure's 2023 conversation trace has 5.53 a second and 1.09.
    """

    def __init__(self, rate: float = 1.0, cv: float = 2.0) -> None:
        self.rate = real_number("Gamma", "rate", rate, above=0)
        self.cv = real_number("Gamma", "cv", cv, above=0)
        _check_shape("Gamma", "cv", self.cv)

    def times(self, num: int, rng: np.random.Generator) -> Floats:
        shape = self.cv**-2
        return np.cumsum(rng.standard_gamma(shape, num)) / (shape * self.rate)


class Weibull(Arrivals):
    """*rate* a second with Weibull-distributed gaps; *shape* below 1 is burstier than Poisson."""

    def __init__(self, rate: float = 1.0, shape: float = 0.7) -> None:
        self.rate = real_number("Weibull", "rate", rate, above=0)
        self.shape = real_number("Weibull", "shape", shape, above=0)
        _check_shape("Weibull", "shape", self.shape)

    def times(self, num: int, rng: np.random.Generator) -> Floats:
        mean = math.gamma(1 + 1 / self.shape)
        return np.cumsum(rng.weibull(self.shape, num)) / (mean * self.rate)


class Bursty(Arrivals):
    """Poisson arrivals whose rate jumps between *rate* and *burst_rate* (a two-state MMPP).

    *calm_s*, *burst_s*: mean seconds in each state, exponentially distributed; it begins calm.
    """

    def __init__(
        self,
        rate: float = 1.0,
        burst_rate: float = 10.0,
        *,
        calm_s: float = 60.0,
        burst_s: float = 10.0,
    ) -> None:
        self.rates = [
            real_number("Bursty", name, value, above=0)
            for name, value in (("rate", rate), ("burst_rate", burst_rate))
        ]
        self.means = [
            real_number("Bursty", name, value, above=0)
            for name, value in (("calm_s", calm_s), ("burst_s", burst_s))
        ]

    def times(self, num: int, rng: np.random.Generator) -> Floats:
        unit_rng, state_rng = rng.spawn(2)  # more arrivals do not move the bursts
        units = np.cumsum(unit_rng.standard_exponential(num))
        _check_latest("Bursty", float(units[-1] / max(self.rates)))
        edges, total = [0.0], [0.0]
        while total[-1] < units[-1]:
            state = (len(edges) - 1) % 2
            stay = state_rng.standard_exponential() * self.means[state]
            edges.append(edges[-1] + stay)
            total.append(total[-1] + stay * self.rates[state])
        return np.interp(units, total, edges)


class Diurnal(Arrivals):
    """Poisson arrivals whose rate is *rate* x (1 + *swing* x sin(2 pi t / *period_s*)).

    *swing*: 0 (none) to 1 (the rate falls to 0 at night).
    """

    def __init__(self, rate: float = 1.0, swing: float = 0.5, period_s: float = 86_400.0) -> None:
        self.rate = real_number("Diurnal", "rate", rate, above=0)
        self.swing = real_number("Diurnal", "swing", swing)
        self.period_s = real_number("Diurnal", "period_s", period_s, above=0)
        if swing > 1:
            raise ConfigError(f"Diurnal: swing is {swing}; it must be at most 1")

    def times(self, num: int, rng: np.random.Generator) -> Floats:
        units = np.cumsum(rng.standard_exponential(num)) / self.rate
        turn = self.period_s / (2 * math.pi)
        periods = np.floor(units / self.period_s)  # whole periods have exactly period_s x rate
        grid = np.linspace(0, self.period_s, 4097)
        total = grid + self.swing * turn * (1 - np.cos(grid / turn))
        inside = np.interp(units - periods * self.period_s, total, grid)
        return periods * self.period_s + inside


class Users(Arrivals):
    """*num_users* users, each with one session after the other (closed loop).

    They begin within *ramp_s* seconds; between two sessions a user pauses for *pause_s* seconds on
    average, exponentially distributed. How often requests come then depends on the server.
    """

    def __init__(self, num_users: int = 16, *, pause_s: float = 30.0, ramp_s: float = 10.0) -> None:
        self.num_users = whole_number("Users", "num_users", num_users, 1)
        self.pause_s = real_number("Users", "pause_s", pause_s)
        self.ramp_s = real_number("Users", "ramp_s", ramp_s)

    def times(self, num: int, rng: np.random.Generator) -> Floats:
        first_rng, pause_rng = rng.spawn(2)
        assert self.num_users is not None
        first = np.sort(first_rng.random(self.num_users)) * self.ramp_s
        pauses = pause_rng.standard_exponential(max(0, num - self.num_users)) * self.pause_s
        return np.concatenate([first, pauses])[:num]


def _check_shape(owner: str, name: str, value: float) -> None:
    if not EXTREMES[0] <= value <= EXTREMES[1]:
        raise ConfigError(f"{owner}: {name} is {value}; it must be {EXTREMES[0]} to {EXTREMES[1]}")
