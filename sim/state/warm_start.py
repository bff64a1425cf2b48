"""A run that does not begin with an empty cache: what was served before its clock starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sim.cache import BlockManager
from sim.request import Request
from sim.state.saved_state import StateFile, block_size_of
from sim.workload import Workload

SAVED = "sim.state.warm_start:Saved"
"""What `use: saved` stands for in `warm_start`."""


class Saved(Workload):
    """The state in *path*, which `kvsim replay --save-state` wrote: no requests, only their cache.

    ConfigError if *path* holds none.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.block_size = block_size_of(self.path)

    def __iter__(self) -> Iterator[Request]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def restore(self, manager: BlockManager) -> None:
        """Give *manager*, which is empty, the state; time goes on at 0."""
        StateFile(self.path, manager).restore()


class Before(Workload):
    """The requests of *of* under other names and earlier: the last arrives at time 0."""

    def __init__(self, of: Workload) -> None:
        self.of = of
        self.block_size, self.hints, self.notes = of.block_size, of.hints, of.notes
        self.has_content = of.has_content
        self._end = max((request.arrival_time for request in of), default=0.0)

    @property
    def inputs(self) -> tuple[Path, ...]:
        return self.of.inputs

    def __iter__(self) -> Iterator[Request]:
        for request in self.of:
            request.request_id = f"before the run: {request.request_id}"
            request.arrival_time -= self._end
            yield request

    def __len__(self) -> int:
        return len(self.of)


def warm_up(manager: BlockManager, before: Before, *, decode: bool) -> None:
    """Serve *before* one request at a time; what *manager* then holds is where a run begins.

    Nothing of it is counted: evictions are counted from here on. This brings every manager and
    policy into a state that it can reach, with its counters, ghosts and queues.
    """
    for request in before:
        num_answer = request.max_tokens - 1 if decode else 0
        num_tokens = request.num_prompt_tokens + num_answer
        if num_tokens <= manager.num_blocks * manager.block_size:
            manager.serve(request, num_tokens, now=request.arrival_time)
    manager.num_evicted_blocks = 0
