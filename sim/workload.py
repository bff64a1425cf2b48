"""What a workload promises: the same requests, in arrival order, every time it is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from sim.request import Request

LATEST = 1e10
"""Seconds: the last moment at which something may arrive; later, floats tell no microseconds."""


class Workload(ABC):
    """Requests in arrival order (ties: file order), as fresh objects on every iteration.

    *block_size*: tokens per block of the requests' keys; the manager's must be the same.
    *hints*: the names that every request's `hints` has; a policy may need some of them.
    *notes*: what a reader of results should know about the input, e.g. that rows were sorted.
    *has_content*: False if only lengths are known, so that a hit rate would say nothing.
    """

    block_size: int
    hints: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    has_content: bool = True

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that the requests were read from: the attribute `path`, if there is one."""
        path = getattr(self, "path", None)
        return () if path is None else (Path(path),)

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """The requests, `arrival_time` non-decreasing, nothing computed yet."""

    @abstractmethod
    def __len__(self) -> int:
        """How many requests there are."""
