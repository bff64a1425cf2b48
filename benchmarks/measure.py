"""One measurement: CPU seconds of several repetitions and the peak memory of a process of its own.

Only the standard library is imported, so that a peer's interpreter can run it too.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import sys
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from time import process_time
from typing import TypeVar

Result = TypeVar("Result")

STATUS = Path("/proc/self/status")  # Linux
NUM_LOOPS = 200_000
WALK_PLACES = 2**20  # four bytes each
NUM_CALIBRATIONS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one job did: *seconds* of CPU for each repetition, and the *work* they all did.

    *num_blocks*: full blocks of the prompts, or None where blocks mean nothing.
    """

    num_requests: int
    num_blocks: int | None
    seconds: Sequence[float]
    work: str


@dataclass(frozen=True, slots=True)
class Row:
    """An outcome, and the process it came from.

    *group*: rows of one group are compared with its first. *peak_mib*: the most memory that the
    process ever had. *call_ns*, *walk_ns*: how fast the machine was for it (`call_ns`, `walk_ns`),
    before or after the job, whichever was faster.
    """

    name: str
    group: str
    outcome: Outcome
    peak_mib: float
    call_ns: float
    walk_ns: float

    @property
    def seconds(self) -> float:
        """The median of the repetitions."""
        return median(self.outcome.seconds)

    @property
    def requests_per_s(self) -> float:
        """By the median repetition."""
        return self.outcome.num_requests / self.seconds

    @property
    def best_requests_per_s(self) -> float:
        """By the fastest repetition."""
        return self.outcome.num_requests / min(self.outcome.seconds)

    @property
    def blocks_per_s(self) -> float | None:
        """By the median repetition."""
        num_blocks = self.outcome.num_blocks
        return None if num_blocks is None else num_blocks / self.seconds


def cpu_seconds() -> float:
    """CPU time of this process and of the children it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """CPU seconds of one call, and what it returned."""
    gc.collect()
    start = cpu_seconds()
    result = work()
    return cpu_seconds() - start, result


def repeated(
    work: Callable[[], tuple[float, Result]], repetitions: int
) -> tuple[list[float], Result]:
    """The CPU seconds that each call of *work* says it took, and the result they all agree on."""
    done = [work() for _ in range(repetitions)]
    results = [result for _, result in done]
    assert all(result == results[0] for result in results), "repetitions did different work"
    return [seconds for seconds, _ in done], results[0]


def in_fresh_process(name: str, group: str, job: Callable[..., Outcome], *arguments: object) -> Row:
    """The row of *job*, run in a Python process of its own."""
    return call_in_fresh_process(observed, name, group, job, *arguments)


def call_in_fresh_process(function: Callable[..., Result], *arguments: object) -> Result:
    """What *function* returns in a Python process of its own; its exceptions are raised here."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments).result()


def observed(name: str, group: str, job: Callable[..., Outcome], *arguments: object) -> Row:
    """Run *job* here, and say how fast and how large the process was."""
    call_before, walk_before = call_ns(), walk_ns()
    outcome = job(*arguments)
    memory = peak_mib()
    call, walk = min(call_before, call_ns()), min(walk_before, walk_ns())
    return Row(name, group, outcome, memory, call, walk)


def peak_mib() -> float:
    """The most memory that this process or one of its children has had, in MiB."""
    unit = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss: bytes there, KiB elsewhere
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / unit
    if STATUS.is_file():
        # ru_maxrss begins with what the parent had before this program was loaded; this does not.
        fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return max(int(fields["VmHWM"].split()[0]) / 2**10, children)
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, children)


def call_ns() -> float:
    """Nanoseconds of a loop around a call of an empty Python function: how fast the core is."""

    def calls() -> None:
        for _ in range(NUM_LOOPS):
            _nothing()

    return _ns_per_loop(calls)


def walk_ns() -> float:
    """Nanoseconds of a step to a random place in 4 MiB: how much of the caches others leave us."""
    following = _random_cycle()

    def walk() -> None:
        place = 0
        for _ in range(NUM_LOOPS):
            place = following[place]

    return _ns_per_loop(walk)


@cache
def _random_cycle() -> array[int]:
    """Where to go from each place, so that every place is passed once (a full-period LCG)."""
    return array("I", ((1664525 * i + 1013904223) % WALK_PLACES for i in range(WALK_PLACES)))


def _ns_per_loop(loop: Callable[[], None]) -> float:
    seconds = []
    for _ in range(NUM_CALIBRATIONS):
        start = process_time()
        loop()
        seconds.append(process_time() - start)
    return median(seconds) / NUM_LOOPS * 1e9


def _nothing() -> None:
    pass
