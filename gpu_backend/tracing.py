"""From the engine to a step trace. Costs nothing where it is not asked for.

    engine = Engine(ReferenceBlockManager(4096))
    tracer = Tracer.of(engine)
    engine.run(workload)
    trace = tracer.trace()

The engine then takes every step the plain way, with the same results. The manager must have block
ids (`reference`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gpu_backend.content import content_of
from gpu_backend.trace import Event, StepTrace, TracedRequest, TracedRow, TracedStep
from sim.cache import BlockManager, BlockState, Span
from sim.engine import Engine
from sim.errors import ConfigError
from sim.events import BlockRemoved, BlockStored, KVEvent
from sim.request import Request
from sim.scheduler import Scheduler
from sim.scheduler_config import SchedulerConfig
from sim.step import Scheduled, Step


class Tracer:
    """Notes every step of one scheduler."""

    def __init__(self, manager: BlockManager) -> None:
        self.manager = manager
        self.steps: list[TracedStep] = []
        self.events: list[Event] = []  # since the last step
        self._numbers: dict[Request, int] = {}
        self._num_tokens: list[int] = []  # of each request: most that were ever scheduled
        self._listen()

    @classmethod
    def of(cls, engine: Engine) -> Tracer:
        """Trace *engine*, which has not run yet."""
        tracer = cls(engine.manager)
        engine.scheduler = TracedScheduler(engine.manager, engine.scheduler.config, tracer)
        return tracer

    def _listen(self) -> None:
        """Hear the manager's KV events, beside whoever hears them already."""
        others = getattr(self.manager, "events", None)

        def hear(event: KVEvent) -> None:
            self._note(event)
            if others is not None:
                others(event)

        self.manager.events = hear

    def _note(self, event: KVEvent) -> None:
        if isinstance(event, BlockStored):
            for key in event.block_hashes:
                copies = self.manager.copies(key)
                self.events.append(Event("stored", _block_id(copies[-1] if copies else None)))
        elif isinstance(event, BlockRemoved):
            assert event.block_id is not None
            self.events.append(Event("removed", event.block_id))
        else:
            self.events.append(Event("cleared"))

    def freed(self, request: Request) -> None:
        """*request* is about to let go of its blocks."""
        if request in self._numbers:
            self.events.append(Event("freed", self._numbers[request]))

    def copied(self, source: int, destination: int) -> None:
        """Block *destination* gets what *source* holds, before anything else happens to either."""
        self.events.append(Event("copied", destination, source))

    def scheduled(self, step: Step, now: float) -> None:
        """*step* was scheduled."""
        rows = [self._row(row) for row in step.scheduled]
        if rows:
            self.steps.append(TracedStep(float(now), self.events, rows))
            self.events = []

    def _row(self, row: Scheduled) -> TracedRow:
        request = row.request
        number = self._numbers.setdefault(request, len(self._numbers))
        if number == len(self._num_tokens):
            self._num_tokens.append(0)
        end = row.num_computed + row.num_tokens
        self._num_tokens[number] = max(self._num_tokens[number], end)
        admission = row.kind != "running"
        gained: Iterable[BlockState | Span] = row.spans
        if admission:  # what the manager holds counts, not what it said it gave
            gained = self.manager.table(request.request_id)
        ids = np.array([_block_id(block) for block in gained], dtype=np.int32)
        return TracedRow(number, row.num_computed, row.num_tokens, admission, ids)

    def trace(self, **about: Any) -> StepTrace:
        """What was noted so far; *about* is kept with it."""
        requests = [
            TracedRequest(r.request_id, r.num_prompt_tokens, content_of(r.keys, n, r.request_id))
            for r, n in zip(self._numbers, self._num_tokens, strict=True)
        ]
        manager = self.manager
        blocks = getattr(manager, "blocks", None)
        null_block = blocks is None or len(blocks) > manager.num_blocks
        return StepTrace(
            num_blocks=manager.num_blocks + null_block,
            block_size=manager.block_size,
            requests=requests,
            steps=self.steps,
            about={"null_block": null_block, **about},
            trailing=self.events,
        )


class TracedScheduler(Scheduler):
    """A `Scheduler` that tells a tracer what it did."""

    def __init__(self, manager: BlockManager, config: SchedulerConfig, tracer: Tracer) -> None:
        super().__init__(manager, config)
        self._tracer = tracer

    def schedule(self, now: float = 0.0) -> Step:
        step = super().schedule(now)
        self._tracer.scheduled(step, now)
        return step

    def abort(self, request: Request, *, now: float = 0.0) -> bool:
        self._tracer.freed(request)
        return super().abort(request, now=now)

    def _preempt(self, step: Step, now: float) -> tuple[Request, int]:
        victim, given_back = super()._preempt(step, now)
        self._tracer.freed(victim)
        return victim, given_back

    def _finish(self, step: Step, request: Request, now: float) -> None:
        self._tracer.freed(request)
        super()._finish(step, request, now)


def traced_run(engine: Engine, workload: Iterable[Request], **about: Any) -> StepTrace:
    """Run *engine* over *workload* and return the trace; *about* is kept with it."""
    tracer = Tracer.of(engine)
    engine.run(workload)
    return tracer.trace(**about)


def has_block_ids(manager: BlockManager) -> bool:
    """Whether *manager*, which is empty, says which blocks it hands out."""
    first = next(iter(manager.free_blocks()), None)
    return first is not None and first.block_id is not None


def _block_id(block: BlockState | Span | None) -> int:
    found = getattr(block, "block_id", None)
    if found is None:
        raise ConfigError(
            "this manager has no block ids; trace `reference`, which decides as `vllm` does"
        )
    return int(found)
