"""Who computes the units of a sweep: this process, or several on this machine.

An executor takes units and yields each with what became of it, in any order. Outcomes go into the
store as soon as they exist, so whoever stops, is stopped or is killed has lost only what was
being computed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Protocol

from sim.blame import blame, in_a_line
from sim.errors import KvsimError
from sim.studies.run_store import RunStore
from sim.studies.unit import Unit
from sim.studies.workload_cache import WorkloadCache

OnStart = Callable[[Unit], None]
DIED = "the process that computed it died (killed, or out of memory?)"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a unit has no outcome: in one line, and in full."""

    line: str
    text: str
    error: BaseException | None = None  # known in the same process only


Done = tuple[Unit, Failure | None]


class Executor(Protocol):
    """Computes units into a store."""

    def run(self, units: Sequence[Unit], store: RunStore, on_start: OnStart) -> Iterator[Done]:
        """Every unit with its failure, or None if its outcome is in the store."""
        ...


def perform(unit: Unit, store: RunStore, workloads: WorkloadCache) -> Failure | None:
    """Compute *unit* and keep it; KvsimError, which ends the sweep, if it cannot be written."""
    try:
        outcome = unit.compute(workloads)
    except (Exception, SystemExit) as error:
        return failure(error)
    store.put(unit, outcome)
    return None


def failure(error: BaseException) -> Failure:
    """*error* in one line and with its traceback."""
    known = isinstance(error, KvsimError)
    line = " ".join(str(error).split()) if known else blame(error) or in_a_line(error)
    return Failure(line, "".join(traceback.format_exception(error)), error)


AHEAD = 1  # units that wait for a worker, so that none waits for this process


class Serial:
    """One unit after the other, in this process."""

    def __init__(self, workloads: WorkloadCache | None = None) -> None:
        self._workloads = workloads or WorkloadCache()

    def run(self, units: Sequence[Unit], store: RunStore, on_start: OnStart) -> Iterator[Done]:
        for unit in units:
            on_start(unit)
            yield unit, perform(unit, store, self._workloads)


class Processes:
    """*jobs* processes on this machine; units with objects from Python are computed in this one.

    A worker that dies takes down its pool. Its units are then computed again one at a time, so that
    the one which kills its process is found; after its third death it has failed.
    """

    MOST_DEATHS = 3

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or num_cpus()

    def run(self, units: Sequence[Unit], store: RunStore, on_start: OnStart) -> Iterator[Done]:
        plain = deque(unit for unit in units if unit.is_plain)
        suspects: deque[Unit] = deque()
        deaths: Counter[str] = Counter()
        while plain or suspects:
            alone = bool(suspects)
            queue = suspects if alone else plain
            lost: list[Unit] = []
            yield from self._pool(queue, 1 if alone else self.jobs, store, on_start, lost)
            for unit in lost:
                deaths[unit.key] += 1
                if deaths[unit.key] < self.MOST_DEATHS:
                    suspects.append(unit)
                else:
                    yield unit, Failure(DIED, DIED)
        yield from Serial().run([unit for unit in units if not unit.is_plain], store, on_start)

    def _pool(
        self,
        queue: deque[Unit],
        jobs: int,
        store: RunStore,
        on_start: OnStart,
        lost: list[Unit],
    ) -> Iterator[Done]:
        """Compute *queue* until it is empty or a worker dies; *lost* gains what was in work."""
        pool = ProcessPoolExecutor(
            min(jobs, len(queue)),
            mp_context=get_context("spawn"),
            initializer=_start_worker,
            initargs=(list(sys.path), store.folder),
        )
        running: dict[Future[Failure | None], Unit] = {}
        most = jobs + AHEAD if jobs > 1 else 1  # alone: nobody else is lost with it
        try:
            while (queue or running) and not lost:
                while queue and len(running) < most:
                    unit = queue.popleft()
                    if store.has(unit):  # finished just before its pool went down
                        yield unit, None
                        continue
                    on_start(unit)
                    try:
                        running[pool.submit(_perform, unit)] = unit
                    except BrokenProcessPool:
                        lost.append(unit)
                        break
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    unit = running.pop(future)
                    try:
                        yield unit, future.result()
                    except BrokenProcessPool:
                        lost.append(unit)
            lost.extend(running.values())
            pool.shutdown()
        except BaseException:
            stop(pool)
            raise


def stop(pool: ProcessPoolExecutor) -> None:
    """End the workers of *pool* at once; what they had not finished is not kept."""
    workers = list((getattr(pool, "_processes", None) or {}).values())
    for worker in workers:
        worker.kill()
    pool.shutdown(cancel_futures=True)


def num_cpus() -> int:
    """How many processes this one may keep busy."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# In a worker

_here: tuple[RunStore, WorkloadCache]


def _start_worker(search: list[str], folder: Path) -> None:
    """Find what the parent finds, leave Ctrl-C to it, and end when it ends."""
    global _here
    sys.path.extend(path for path in search if path not in sys.path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _here = RunStore(folder), WorkloadCache()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _perform(unit: Unit) -> Failure | None:
    failed = perform(unit, *_here)
    return failed and Failure(failed.line, failed.text)  # some exceptions cannot be sent
