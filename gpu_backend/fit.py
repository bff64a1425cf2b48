"""Fitting a roofline to measured kernel times: least squares on the logarithm of the error.

A kernel takes max(FLOPs / (a * peak), bytes / (m * bandwidth)) + c seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class RooflineFit(NamedTuple):
    """Shares of peak and bandwidth, constant seconds, and how far off it is on its own points."""

    compute: float
    memory: float
    constant_s: float
    num_points: int
    mape: float  # mean absolute error, a share
    median: float


def fit_roofline(flops: Array, moved: Array, seconds: Array) -> RooflineFit:
    """Fit to kernels of *flops* and *moved* bytes, each over the peak: in seconds at 100 %."""
    guess = np.array([0.7, 0.8, 0.2 * seconds.min()])
    steps = np.array([0.25, 0.25, 0.5])
    best = _error(guess, flops, moved, seconds)
    while steps.max() > 1e-3:
        improved = False
        for i in range(3):
            for factor in (1 + steps[i], 1 / (1 + steps[i])):
                trial = guess.copy()
                trial[i] = min(trial[i] * factor, 1.0) if i < 2 else trial[i] * factor
                error = _error(trial, flops, moved, seconds)
                if error < best:
                    guess, best, improved = trial, error, True
        if not improved:
            steps /= 2
    off = np.abs(_times(guess, flops, moved) / seconds - 1)
    return RooflineFit(
        float(guess[0]),
        float(guess[1]),
        float(guess[2]),
        len(seconds),
        float(off.mean()),
        float(np.median(off)),
    )


def times(fit: RooflineFit, flops: Array, moved: Array) -> Array:
    """What *fit* says about other kernels."""
    return _times(np.array(fit[:3]), flops, moved)


def _times(guess: Array, flops: Array, moved: Array) -> Array:
    return np.asarray(np.maximum(flops / guess[0], moved / guess[1]) + guess[2])


def _error(guess: Array, flops: Array, moved: Array, seconds: Array) -> float:
    return float(np.square(np.log(_times(guess, flops, moved) / seconds)).mean())
