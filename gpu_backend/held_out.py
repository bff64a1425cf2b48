"""Steps that no part of a profile was fitted to: measured and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_backend.step_timer import Rows
from sim.latency import StepLoad


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A step that no part of the profile was fitted to, in seconds."""

    rows: Rows
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        (first, before), (last, context) = self.rows[0], self.rows[-1]
        count = len(self.rows)
        what = f"{count} rows of {first} after {before}"
        if self.rows[0] != self.rows[-1]:
            what = f"{count - 1} rows of {first} after {before}, {last} after {context}"
        return (
            f"{what:<44} {self.measured * 1e3:9.2f} {self.predicted * 1e3:9.2f} {self.error:+7.1%}"
        )


def mean_error(steps: Sequence[HeldOut]) -> float:
    """The mean absolute error, a share."""
    return sum(abs(step.error) for step in steps) / len(steps)


def load_of(rows: Rows) -> StepLoad:
    """The load of a step of *rows*."""
    load = StepLoad()
    for num_tokens, num_computed in rows:
        load.add(num_tokens, num_computed)
    return load
