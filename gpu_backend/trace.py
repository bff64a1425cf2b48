"""A run, step by step, as the attention kernels see it: rows, block ids, pool events, tokens.

Everything else in this folder needs only this: a file of it is a run that can be checked elsewhere.
`gpu_backend.tracing` makes one from the engine, `gpu_backend.trace_file` keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_backend.content import Content

EventKind = Literal["freed", "stored", "removed", "cleared", "copied"]
EVENT_KINDS: tuple[EventKind, ...] = ("freed", "stored", "removed", "cleared", "copied")


class Event(NamedTuple):
    """What happened in the pool since the rows of the step before.

    "freed": request *number* let go of its table; "stored": block *number* became findable;
    "removed": it is findable no more; "cleared": nothing is. "copied": block *number* got what
    block *source* holds (offloading; blocks of other tiers have ids from `num_blocks` on).
    """

    kind: EventKind
    number: int = -1
    source: int = -1


class TracedRow(NamedTuple):
    """One request's part of a step.

    *request*: its number in the trace. *block_ids*: the blocks that its table gained; on admission
    the whole table, hits included.
    """

    request: int
    num_computed_tokens: int
    num_scheduled_tokens: int
    is_admission: bool
    block_ids: npt.NDArray[np.int32]


class TracedStep(NamedTuple):
    """One step: *events* come before its *rows*, which are in scheduling order."""

    time: float
    events: Sequence[Event]
    rows: Sequence[TracedRow]


class TracedRequest(NamedTuple):
    """A request: its name, and its content as far as it was scheduled."""

    request_id: int | str
    num_prompt_tokens: int
    content: Content


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The steps of one run and the requests in it.

    *num_blocks*: ids are 0 to num_blocks - 1; *num_offload_blocks* more are elsewhere. *about*:
    what made it, as plain data; `null_block` says whether block 0 must stay unused. *trailing*:
    events behind the last step.
    """

    num_blocks: int
    block_size: int
    requests: Sequence[TracedRequest]
    steps: Sequence[TracedStep]
    about: Mapping[str, Any] = field(default_factory=dict)
    trailing: Sequence[Event] = ()
    num_offload_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        """Scheduled tokens of all steps."""
        return sum(row.num_scheduled_tokens for row in self.rows())

    def rows(self) -> Iterator[TracedRow]:
        """All rows of all steps."""
        for step in self.steps:
            yield from step.rows

    def head(self, num_tokens: int) -> StepTrace:
        """The first steps, as many as schedule *num_tokens* tokens at most, but at least one."""
        total, stop = 0, 0
        for step in self.steps:
            total += sum(row.num_scheduled_tokens for row in step.rows)
            if stop and total > num_tokens:
                break
            stop += 1
        if stop == len(self.steps):
            return self
        return replace(self, steps=self.steps[:stop], trailing=())


class Tables:
    """The block tables of all requests, kept up to date step by step."""

    def __init__(self, trace: StepTrace) -> None:
        self._by_request: dict[int, list[npt.NDArray[np.int32]]] = {}
        self._joined: dict[int, npt.NDArray[np.int32]] = {}
        self.trace = trace

    def apply(self, step: TracedStep) -> None:
        """Bring the tables to where *step* runs."""
        for event in step.events:
            if event.kind == "freed":
                self._by_request.pop(event.number, None)
                self._joined.pop(event.number, None)
        for row in step.rows:
            if row.is_admission:
                self._by_request[row.request] = [row.block_ids]
                self._joined.pop(row.request, None)
            elif len(row.block_ids):
                self._by_request[row.request].append(row.block_ids)
                self._joined.pop(row.request, None)

    def __getitem__(self, request: int) -> npt.NDArray[np.int32]:
        """The whole table of a request."""
        table = self._joined.get(request)
        if table is None:
            parts = self._by_request[request]
            table = parts[0] if len(parts) == 1 else np.concatenate(parts)
            self._by_request[request] = [table]
            self._joined[request] = table
        return table


def fresh_blocks(step: TracedStep, block_size: int) -> npt.NDArray[np.int32]:
    """The blocks that *step* hands out: what they held before is gone. Hits are not among them."""
    return np.concatenate([fresh_of(row, block_size) for row in step.rows])


def fresh_of(row: TracedRow, block_size: int) -> npt.NDArray[np.int32]:
    """The blocks that one row was handed out."""
    num_hits = -(-row.num_computed_tokens // block_size) if row.is_admission else 0
    return row.block_ids[num_hits:]
