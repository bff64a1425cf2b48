"""A replay kept in the same tables as a run of the engine, so that both can be compared and drawn.

There is no clock: all times after the arrival are NaN, a request is admitted when it arrives, and
the state over time is sampled between requests, at the arrival of the latest.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.cache import BlockManager
from sim.recorder import SERIES, Recorder, RunRecord
from sim.replay import replay
from sim.request import Request, RequestStatus
from sim.stats import HitRateWindow, PrefixCacheStats
from sim.workload import Workload

NO_ROOM = "prompt and answer need more blocks than the pool has"


def record_replay(manager: BlockManager, workload: Workload, *, decode: bool) -> RunRecord:
    """Serve *workload* one request at a time, with *decode* the answers too, and record it."""
    requests = list(workload)
    hits: list[int] = []
    cached: list[int] = []
    sampled = _Samples(manager, requests)
    replay(manager, requests, decode=decode, on_progress=sampled.note, hits=hits, cached=cached)
    for request, num_hit, num_cached in zip(requests, hits, cached, strict=True):
        request.num_cached_tokens = num_hit
        request.num_orphan_tokens = max(0, num_cached - num_hit) if num_cached >= 0 else -1
        if num_hit < 0:
            request.status, request.reason = RequestStatus.REFUSED, NO_ROOM
            continue
        request.status = RequestStatus.FINISHED
        request.num_output_tokens = request.max_tokens
    recorder = Recorder(manager, interval=1.0)
    recorder.stats = _stats(requests)
    recorder.min_free_blocks = manager.num_blocks - _most_blocks(requests, manager, decode)
    recorder.series = sampled.series(hits)
    return recorder.finish(requests, requests[-1].arrival_time if requests else 0.0)


class _Samples:
    """What the manager holds after every few requests."""

    def __init__(self, manager: BlockManager, requests: Sequence[Request]) -> None:
        self._manager = manager
        self._requests = requests
        self._rows: list[tuple[int, int, int]] = []

    def note(self, num_done: int) -> None:
        manager = self._manager
        self._rows.append((num_done, manager.num_cached_blocks, manager.num_evicted_blocks))

    def series(self, hits: Sequence[int]) -> dict[str, list[float]]:
        """The columns of `sim.recorder.SERIES`; hit rates are those of the engine."""
        columns: dict[str, list[float]] = {name: [] for name in SERIES}
        window, total = HitRateWindow(), PrefixCacheStats()
        done = 0
        for num_done, num_cached, num_evicted in self._rows:
            for i in range(done, num_done):
                if hits[i] >= 0:
                    step = PrefixCacheStats(1, self._requests[i].num_prompt_tokens, hits[i])
                    window.observe(step)
                    total.add(step)
            done = num_done
            row = {name: 0.0 for name in SERIES} | {
                "time": self._requests[num_done - 1].arrival_time,
                "num_cached_blocks": num_cached,
                "num_blank_blocks": self._manager.num_blocks - num_cached,
                "hit_rate_window": window.hit_rate,
                "hit_rate": total.hits / total.queries if total.queries else 0.0,
                "num_evicted_blocks": num_evicted,
            }
            for name, value in row.items():
                columns[name].append(value)
        return columns


def _stats(requests: Sequence[Request]) -> PrefixCacheStats:
    total = PrefixCacheStats()
    for request in requests:
        if request.num_cached_tokens >= 0:
            total.add(PrefixCacheStats(1, request.num_prompt_tokens, request.num_cached_tokens))
    return total


def _most_blocks(requests: Sequence[Request], manager: BlockManager, decode: bool) -> int:
    """The blocks of the largest request that was served."""
    slots = (
        request.num_prompt_tokens + (request.max_tokens - 1 if decode else 0)
        for request in requests
        if request.status is RequestStatus.FINISHED
    )
    return -(-max(slots, default=0) // manager.block_size)
