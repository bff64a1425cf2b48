"""What a policy threw away, when, and whether it was wanted again: a replay with its eyes open."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import dataclass, field
from math import nan
from typing import Any

from sim.cache import BlockManager, EvictionPolicy, Span
from sim.errors import ConfigError
from sim.keys import BlockKeys
from sim.latency import LatencyModel, StepLoad
from sim.needs import policy_of
from sim.request import Request

EVICTIONS = {
    "time": "float64",  # when, in seconds
    "start": "int64",  # place of the first block in its prompt
    "num_blocks": "int64",
    "num_answer_blocks": "int64",  # those among them that hold an answer
    "session": "object",
    "tenant": "object",  # whose content it was, where requests have a hint of that name
    "lifetime": "float64",  # since it was inserted, in seconds
    "idle": "float64",  # since its last use
    "num_uses": "int64",  # hits while it was there
    "returned_after": "float64",  # until it was wanted again; NaN: never
    "num_recomputed": "int64",  # blocks of it computed again
    "ttft_paid": "float64",  # seconds that it took
}


@dataclass(slots=True)
class _Life:
    """One span's time in the pool."""

    keys: BlockKeys
    num_prompt_blocks: int
    session: int | str | None
    tenant: int | str | None
    inserted: float
    released: float
    num_uses: int = 0


@dataclass(slots=True)
class EvictionLog:
    """Watches the policy of *manager*, which is empty, while requests are served one by one.

    `rows` has one list per column of `EVICTIONS`, `gaps` a pair (seconds between two uses, number
    of blocks) for every hit. *num_orphans_wanted*: blocks that were computed again although they
    were there, since one before them was not; *num_orphans* by the last request. ConfigError if the
    manager has no policy to watch.
    """

    manager: BlockManager
    latency: LatencyModel
    rows: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in EVICTIONS})
    gaps: list[tuple[float, int]] = field(default_factory=list)
    num_orphans_wanted: int = 0
    num_orphans: int = 0
    _lives: dict[Span, _Life] = field(default_factory=dict)
    _gone: dict[Hashable, tuple[int, BlockKeys, int, int]] = field(default_factory=dict)
    _now: float = 0.0

    def __post_init__(self) -> None:
        policy = policy_of(self.manager)
        if policy is None:
            name = type(self.manager).__name__
            raise ConfigError(f"{name} has no eviction policy of its own to watch; take another")
        self._watch(policy, "release", self._release)
        self._watch(policy, "hit", self._hit)
        self._watch(policy, "split", self._split)
        self._watch(policy, "evicted", self._evicted)
        self._watch(policy, "forget", self._forget)

    @staticmethod
    def _watch(policy: EvictionPolicy, name: str, note: Callable[..., None]) -> None:
        """Call *note* before the policy's own method, on this object only."""
        own = getattr(policy, name)

        def both(*arguments: Any) -> Any:
            note(*arguments)
            return own(*arguments)

        setattr(policy, name, both)

    def serve(self, request: Request, num_tokens: int, num_known: int) -> int | None:
        """`BlockManager.serve`; *num_known*: leading blocks of the prompt that were stored before.

        What of them is not hit was evicted: those evictions are now known to be regretted.
        """
        self._now = request.arrival_time
        num_hit = self.manager.serve(request, num_tokens, now=request.arrival_time)
        if num_hit is not None:
            size = self.manager.block_size
            stop = min(num_known, (request.num_prompt_tokens - 1) // size)
            blamed: dict[int, int] = {}
            self.num_orphans = self._return(request.keys, num_hit // size, stop, blamed)
            self._charge(request, num_hit, blamed)
            self.num_orphans_wanted += self.num_orphans
        return num_hit

    # What happens to spans

    def _release(self, span: Span, request: Request, now: float) -> None:
        life = self._lives.get(span)
        if life is None and span.num_blocks and span.key(0) is not None:
            num_prompt = request.num_prompt_tokens // self.manager.block_size
            tenant = (request.hints or {}).get("tenant")
            life = _Life(request.keys, num_prompt, request.session, tenant, now, now)
            self._lives[span] = life
        if life is not None:
            life.released = now

    def _hit(self, span: Span, request: Request, now: float) -> None:
        life = self._lives.get(span)
        if life is not None:
            self.gaps.append((now - life.released, span.num_blocks))
            life.num_uses += 1

    def _split(self, upper: Span, lower: Span) -> None:
        if lower in self._lives:
            self._lives[upper] = copy(self._lives[lower])

    def _forget(self, span: Span) -> None:
        self._lives.pop(span, None)

    def _evicted(self, span: Span, num_blocks: int) -> None:
        life = self._lives.get(span)
        if life is None:  # no content
            return
        start = span.start + span.num_blocks
        self._gone[life.keys[start]] = (len(self.rows["time"]), life.keys, start, num_blocks)
        num_answer = start + num_blocks - max(start, life.num_prompt_blocks)
        row = (
            self._now,
            start,
            num_blocks,
            max(0, num_answer),
            life.session,
            life.tenant,
            self._now - life.inserted,
            self._now - life.released,
            life.num_uses,
            nan,
            0,
            0.0,
        )
        for column, value in zip(self.rows.values(), row, strict=True):
            column.append(value)
        if not span.num_blocks:
            del self._lives[span]

    def _charge(self, request: Request, num_hit: int, blamed: dict[int, int]) -> None:
        """Share the time that evicted blocks cost *request* among the evictions."""
        num_blocks = sum(blamed.values())
        if not num_blocks:
            return
        more = num_blocks * self.manager.block_size
        missed = request.num_prompt_tokens - num_hit
        paid = self._seconds(missed, num_hit) - self._seconds(missed - more, num_hit + more)
        for row, number in blamed.items():
            self.rows["ttft_paid"][row] += paid * number / num_blocks

    def _seconds(self, num_tokens: int, num_computed: int) -> float:
        load = StepLoad()
        load.add(num_tokens, num_computed)
        return self.latency.step_time(load)

    def _return(self, keys: BlockKeys, position: int, stop: int, blamed: dict[int, int]) -> int:
        """Blocks *position* to *stop* - 1 were computed again: find out who evicted them.

        How many of them were not evicted. *blamed* gains the number of blocks by row of `rows`.
        """
        num_orphans = 0
        while position < stop:
            found = self._gone.pop(keys[position], None)
            if found is None:  # still there, but not findable: an orphan
                num_orphans += 1
                position += 1
                continue
            row, others, start, num_blocks = found
            num_back = keys.common(others, start, min(start + num_blocks, stop))
            if self.rows["num_recomputed"][row] == 0:
                self.rows["returned_after"][row] = self._now - self.rows["time"][row]
            self.rows["num_recomputed"][row] += num_back
            blamed[row] = blamed.get(row, 0) + num_back
            position += num_back
            if num_back < num_blocks:  # the rest is still gone
                rest = start + num_back
                self._gone[others[rest]] = (row, others, rest, num_blocks - num_back)
        return num_orphans
