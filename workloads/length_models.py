"""Length distributions: constant, lognormal, geometric, and what a recorded trace shows."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np

from sim.errors import ConfigError
from sim.traffic import Floats, Ints, Lengths
from workloads.arguments import one_of, real_number
from workloads.detect import open_trace

LONGEST = 2**30  # tokens; no context is longer
MOST_VARIED = 100.0  # beyond it nearly all values are next to nothing
MOST_TURNS = 2**25  # of all sessions together


class Fixed(Lengths):
    """Always *value*."""

    def __init__(self, value: float) -> None:
        self.value = real_number("Fixed", "value", value, above=0)

    def draw(self, num: int, rng: np.random.Generator) -> Floats:
        return np.full(num, self.value)


class Lognormal(Lengths):
    """*mean*, with a standard deviation of *cv* times the mean; at most *most*."""

    def __init__(self, mean: float, cv: float = 1.0, most: float = LONGEST) -> None:
        self.mean = real_number("Lognormal", "mean", mean, above=0)
        self.cv = real_number("Lognormal", "cv", cv)
        if self.cv > MOST_VARIED:
            raise ConfigError(f"Lognormal: cv is {cv}; it must be at most {MOST_VARIED:g}")
        self.most = real_number("Lognormal", "most", most, above=0)

    def draw(self, num: int, rng: np.random.Generator) -> Floats:
        variance = np.log1p(self.cv**2)  # of the logarithm
        drawn = rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), num)
        return np.minimum(drawn, self.most)


class Geometric(Lengths):
    """Whole numbers from 1 on with mean *mean*: after each, one more with the same chance."""

    def __init__(self, mean: float) -> None:
        self.mean = real_number("Geometric", "mean", mean, above=0)
        if mean < 1:
            raise ConfigError(f"Geometric: mean is {mean}; it must be at least 1")

    def draw(self, num: int, rng: np.random.Generator) -> Floats:
        return rng.geometric(1 / self.mean, num).astype(np.float64)


class Empirical(Lengths):
    """Lengths of a recorded trace, drawn at random: *part* is `prompt` or `answer`.

    *path*, *format*: as for `kvsim trace info`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        part: Literal["prompt", "answer"] = "prompt",
        format: str | None = None,
    ) -> None:
        one_of("Empirical", "part", part, ("prompt", "answer"))
        trace = open_trace(path, format)
        self.inputs = trace.inputs
        self.values = np.array(
            [r.num_prompt_tokens if part == "prompt" else r.max_tokens for r in trace],
            dtype=np.float64,
        )

    def draw(self, num: int, rng: np.random.Generator) -> Floats:
        return rng.choice(self.values, num)


def lengths_of(value: Lengths | float, owner: str, name: str) -> Lengths:
    """*value*, or always the number that it is."""
    if isinstance(value, Lengths):
        return value
    return Fixed(real_number(owner, name, value, above=0))


def whole(values: Floats) -> Ints:
    """*values* rounded, at least 1 and at most `LONGEST`."""
    return np.clip(np.rint(values), 1, LONGEST).astype(np.int64)


def counts(values: Floats, owner: str, name: str) -> Ints:
    """*values* as numbers of turns; ConfigError if they are more than memory can hold."""
    found = whole(values)
    total = float(found.astype(np.float64).sum())
    if total > MOST_TURNS:
        raise ConfigError(
            f"{owner}: {name} and the number of sessions ask for {total:.3g} turns; at most "
            f"{MOST_TURNS} can be made; lower one of them"
        )
    return found
