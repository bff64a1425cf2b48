"""What is in a workload before any cache is: lengths, load, sharing, and how soon content returns.

Hits are those of a memory without limit, one request after the other in order of arrival, in the
units that the workload names (workloads/units.py): for a recorded trace its own ids, the partial
last one included. An engine hits a little less (docs/traces.md).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.request import Request
from sim.workload import Workload
from workloads.units import units

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

REUSE_BINS = (1.0, 10.0, 60.0, 600.0, 3600.0, 86_400.0)  # s
FEW = 4
DEPTH_BINS = (1, 256, 1024, 4096, 16_384, 65_536)  # tokens


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts of prompts or answers."""

    total: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: int

    @classmethod
    def of(cls, values: Ints) -> Lengths:
        """The statistics of *values*, of which there is at least one."""
        p50, p90, p99 = (float(p) for p in np.percentile(values, (50, 90, 99)))
        return cls(int(values.sum()), float(values.mean()), p50, p90, p99, int(values.max()))


@dataclass(frozen=True, slots=True)
class Sharing:
    """Named units of all prompts, and which of them stood before in the same place.

    *request_hit_rate*: the mean over requests of hit units over units. *depth*: number of requests
    by hit tokens; *reuse_s*: number of hit units by seconds since their last use. Both count what
    is below each bound, and last what is above all.
    """

    units: int
    unique: int
    roots: int
    hit_units: int
    hit_tokens: int
    unit_hit_rate: float
    token_hit_rate: float
    request_hit_rate: float
    requests_hit: int
    requests_fully_cached: int
    depth: dict[str, int]
    reuse_s: dict[str, int]


@dataclass(frozen=True, slots=True)
class Profile:
    """What `kvsim trace info` prints; *sharing* is None if the workload has no content."""

    requests: int
    span_s: float
    requests_per_s: float | None
    gap_cv: float | None
    most_at_once: int
    sessions: int
    prompt: Lengths
    answer: Lengths
    block_size: int
    sharing: Sharing | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def profile(workload: Workload) -> Profile:
    """The profile of *workload*, in one pass; memory grows with its different units."""
    seen = Seen()
    arrivals, prompts, answers = list[float](), list[int](), list[int]()
    sessions: set[Hashable] = set()
    for request in workload:
        arrivals.append(request.arrival_time)
        prompts.append(request.num_prompt_tokens)
        answers.append(request.max_tokens)
        if request.session is not None:
            sessions.add(request.session)
        if workload.has_content:
            seen.add(request)
    times = np.array(arrivals)
    span = float(times[-1] - times[0])
    return Profile(
        requests=len(times),
        span_s=span,
        requests_per_s=len(times) / span if span else None,
        gap_cv=_gap_cv(times),
        most_at_once=int(np.unique(times, return_counts=True)[1].max()),
        sessions=len(sessions),
        prompt=Lengths.of(np.array(prompts)),
        answer=Lengths.of(np.array(answers)),
        block_size=workload.block_size,
        sharing=seen.sharing(sum(prompts)) if workload.has_content else None,
        notes=workload.notes,
    )


def _gap_cv(times: Floats) -> float | None:
    gaps = np.diff(times)
    return float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() else None


class Seen:
    """The units met so far, numbered by first use, with the time of the last and their number.

    *reuse_bins*: bounds of the histogram `reuse` of hit units by seconds since their last use.
    """

    def __init__(self, reuse_bins: Sequence[float] = REUSE_BINS) -> None:
        self._bins = np.array(reuse_bins)
        self.reuse = np.zeros(len(reuse_bins) + 1, dtype=np.int64)
        self._numbers: dict[Hashable, int] = {}
        self._last_use, self._uses = np.zeros(1024), np.zeros(1024, dtype=np.int64)
        self._roots: set[Hashable] = set()
        self._depth = np.zeros(len(DEPTH_BINS) + 1, dtype=np.int64)
        self._shares: list[float] = []
        self._units = self._hit_units = self._hit_tokens = self._hit = self._full = 0

    @property
    def uses(self) -> Ints:
        """How often each unit was asked for, by number."""
        return self._uses[: len(self._numbers)]

    def add(self, request: Request) -> None:
        """Count one request."""
        names, ends = units(request)
        num = len(names)
        num_hit = self._num_seen(names)
        hit_tokens = ends[num_hit - 1] if num_hit else 0
        self._units += num
        self._hit_units += num_hit
        self._hit_tokens += hit_tokens
        self._hit += num_hit > 0
        self._full += 0 < num == num_hit
        self._shares.append(num_hit / num if num else 0.0)
        self._depth[bisect_right(DEPTH_BINS, hit_tokens)] += 1
        if num:
            self._roots.add(names[0])
        self._touch(names, num_hit, request.arrival_time)

    def sharing(self, num_tokens: int) -> Sharing:
        """All that was counted; *num_tokens* of all prompts."""
        return Sharing(
            units=self._units,
            unique=len(self._numbers),
            roots=len(self._roots),
            hit_units=self._hit_units,
            hit_tokens=self._hit_tokens,
            unit_hit_rate=self._hit_units / max(1, self._units),
            token_hit_rate=self._hit_tokens / num_tokens,
            request_hit_rate=float(np.mean(self._shares)),
            requests_hit=self._hit,
            requests_fully_cached=self._full,
            depth=_binned(self._depth, DEPTH_BINS),
            reuse_s=_binned(self.reuse, self._bins.tolist()),
        )

    def _num_seen(self, names: Sequence[Hashable]) -> int:
        """How many of *names* were met; a name tells all before it, so a bisection finds it."""
        numbers = self._numbers
        return bisect_left(range(len(names)), True, key=lambda i: names[i] not in numbers)

    def _touch(self, names: Sequence[Hashable], num_hit: int, now: float) -> None:
        first_new = len(self._numbers)
        if num_hit <= FEW:  # for so few, NumPy costs more than it saves
            for name in names[:num_hit]:
                self._reuse_one(self._numbers[name], now)
        else:
            self._reuse_many(names[:num_hit], num_hit, now)
        new = range(first_new, first_new + len(names) - num_hit)
        self._numbers.update(zip(names[num_hit:], new, strict=True))
        if new.stop > len(self._last_use):
            self._last_use = np.resize(self._last_use, 2 * new.stop)
            self._uses = np.resize(self._uses, 2 * new.stop)
        self._last_use[new.start : new.stop] = now
        self._uses[new.start : new.stop] = 1

    def _reuse_one(self, number: int, now: float) -> None:
        self.reuse[bisect_right(self._bins, now - self._last_use[number])] += 1
        self._last_use[number] = now
        self._uses[number] += 1

    def _reuse_many(self, names: Sequence[Hashable], num: int, now: float) -> None:
        numbers = np.fromiter(map(self._numbers.__getitem__, names), np.int64, num)
        bins = np.searchsorted(self._bins, now - self._last_use[numbers], side="right")
        self.reuse += np.bincount(bins, minlength=len(self.reuse))
        self._last_use[numbers] = now
        self._uses[numbers] += 1  # a unit stands once in a prompt


def _binned(counts: Ints, bounds: Iterable[float]) -> dict[str, int]:
    names = [f"<{bound:g}" for bound in bounds]
    names.append(f">={names[-1][1:]}")
    return dict(zip(names, counts.tolist(), strict=True))
