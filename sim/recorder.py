"""What a run leaves behind, as plain columns: one row per request, one per sampled moment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.block_states import COLUMN, are_noted, block_states, written
from sim.cache import BlockManager
from sim.request import Request, RequestStatus
from sim.stats import HitRateWindow, PrefixCacheStats
from sim.step import Step

Columns = dict[str, list[Any]]

_ENDED = (RequestStatus.FINISHED, RequestStatus.REFUSED, RequestStatus.ABORTED)


@dataclass(slots=True)
class RunRecord:
    """The columns and totals of one run; `sim.results.Results.from_run` makes tables of them."""

    requests: Columns
    series: Columns
    totals: dict[str, int | float]


@dataclass(slots=True)
class Recorder:
    """Watches one engine: counts what happens and samples its state every *interval* seconds.

    A sample is the state at the first step boundary at or after its moment, with the time of that
    boundary.
    """

    manager: BlockManager
    interval: float
    next_sample: float = 0.0
    stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)
    window: HitRateWindow = field(default_factory=HitRateWindow)
    num_steps: int = 0
    num_preemptions: int = 0
    min_free_blocks: int = 0
    series: Columns = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.min_free_blocks = self.manager.num_blocks
        self.series = {name: [] for name in SERIES}
        if are_noted(self.manager):
            self.series[COLUMN] = []

    def scheduled(self, step: Step) -> None:
        """*step* was scheduled: its memory is given out, so this is when least of it is free."""
        self.num_steps += 1
        self.num_preemptions += len(step.preempted)
        if step.stats:
            self.stats.add(step.stats)
            self.window.observe(step.stats)
        self._note_free_blocks()

    def skipped(self, num_steps: int) -> None:
        """*num_steps* steps in which requests only decoded are over."""
        self.num_steps += num_steps
        self._note_free_blocks()

    def _note_free_blocks(self) -> None:
        free = self.manager.num_free_blocks
        if free < self.min_free_blocks:
            self.min_free_blocks = free

    def sample(self, now: float, running: Collection[Request], num_waiting: int) -> None:
        """Note the state at *now* and when the next sample is due."""
        manager, stats = self.manager, self.stats
        free, cached = manager.num_free_blocks, manager.num_cached_blocks
        row = (
            now,
            manager.num_blocks - free,
            cached,
            free - cached,
            len(running),
            num_waiting,
            self.window.hit_rate,
            stats.hits / stats.queries if stats.queries else 0.0,
            self.num_preemptions,
            manager.num_evicted_blocks,
        )
        for name, value in zip(SERIES, row, strict=True):
            self.series[name].append(value)
        if COLUMN in self.series:
            states = block_states(manager, [request.request_id for request in running])
            self.series[COLUMN].append(written(states))
        self.next_sample = (now // self.interval + 1) * self.interval

    def finish(self, requests: Sequence[Request], end_time: float) -> RunRecord:
        """The record of the whole run."""
        stats, manager = self.stats, self.manager
        totals: dict[str, int | float] = {
            "num_steps": self.num_steps,
            "prefix_cache_queries": stats.queries,
            "prefix_cache_hits": stats.hits,
            "preempted_queries": stats.preempted_queries,
            "preempted_hits": stats.preempted_hits,
            "num_preemptions": self.num_preemptions,
            "num_evicted_blocks": manager.num_evicted_blocks,
            "num_orphaned_blocks": manager.num_orphaned_blocks,
            "num_blocks": manager.num_blocks,
            "block_size": manager.block_size,
            "end_time": end_time,
            "peak_used_blocks": manager.num_blocks - self.min_free_blocks,
        }
        return RunRecord(request_columns(requests), self.series, totals)


SERIES = (
    "time",
    "num_used_blocks",
    "num_cached_blocks",
    "num_blank_blocks",
    "num_running",
    "num_waiting",
    "hit_rate_window",
    "hit_rate",
    "num_preemptions",
    "num_evicted_blocks",
)

_REQUEST_FIELDS = (
    "request_id",
    "session",
    "reason",
    "arrival_time",
    "num_prompt_tokens",
    "max_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "first_scheduled_time",
    "first_token_time",
    "finish_time",
    "num_preemptions",
    "num_orphan_tokens",
)


def request_columns(requests: Sequence[Request]) -> Columns:
    """One row per request."""
    columns = {name: [getattr(r, name) for r in requests] for name in _REQUEST_FIELDS}
    columns["status"] = [r.status.value if r.status in _ENDED else "unfinished" for r in requests]
    return columns
