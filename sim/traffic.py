"""What synthetic traffic is made of: when sessions start, what they ask, how long things are.

Three contracts, each with its own random stream, so that one can be changed without the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Arrivals(ABC):
    """When sessions start. *num_users*: how many there are at a time; None if it is open."""

    num_users: int | None = None

    @abstractmethod
    def times(self, num: int, rng: np.random.Generator) -> Floats:
        """*num* moments in seconds from 0 on, non-decreasing.

        With *num_users* the first of them start their users' first sessions; each later number is
        a pause between two sessions of one user instead.
        """


class Lengths(ABC):
    """How many tokens, turns, steps or seconds."""

    @abstractmethod
    def draw(self, num: int, rng: np.random.Generator) -> Floats:
        """*num* values above 0; who needs whole ones rounds them, to at least 1."""


@dataclass(slots=True)
class Turns:
    """The requests of many sessions, column by column; those of a session stand together.

    Request i has the segments *starts[i]* to *stops[i]* - 1 of *ids* and *ends* (as `SegmentKeys`
    takes them); the last is its answer. Requests may share stretches: a turn that continues
    another begins with its segments, answer included. *pauses*: seconds after the start of the
    session, or after the last of the requests that it *follows* has ended.
    """

    sessions: Ints
    pauses: Floats
    prompts: Ints
    outputs: Ints
    starts: Ints
    stops: Ints
    ids: Ints
    ends: Ints
    follows: Sequence[tuple[int, ...]] | None = None
    hints: Mapping[str, Sequence[Any]] = field(default_factory=dict)


class Prompts(ABC):
    """What sessions ask. *hints*: the names of the hints that every request gets."""

    hints: frozenset[str] = frozenset()

    @abstractmethod
    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        """The requests of *num_sessions* sessions; more sessions begin with the same ones."""
