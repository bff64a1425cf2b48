"""How long a computation takes: CPU time of one thread, or a GPU's own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import process_time

import torch


def seconds(work: Callable[[], object], device: str, *, at_least: float = 0.05) -> float:
    """The median time of *work*, over repetitions that together take *at_least* seconds.

    On a CPU the time of this process, so that other programs do not count; set one thread.
    """
    work()  # what is loaded, compiled or allocated once
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < at_least and len(taken) < 100):
        taken.append(_once(work, device))
    return statistics.median(taken)


def _once(work: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = process_time()
        work()
        return process_time() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3
