"""The offline optimum (Belady's MIN) of a given schedule: no policy can hit more blocks.

A schedule says who is admitted when and who holds how much memory until when. If it is given, to
evict what is needed again latest, deeper blocks first among equals, is optimal for prefix hits:
docs/optimum.md has the claim, the proof and what it does not cover.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from sim.errors import ConfigError
from sim.footprint import Footprint
from sim.keys import BlockKeys
from sim.parts import Part, Parts


class Moment(NamedTuple):
    """One line of a schedule: from now on a request holds *num_blocks* blocks.

    The first *num_stored* of them are stored: others can hit them. An admission is a moment with
    *num_hittable*, the most blocks that the request could reuse then. 0 blocks: it lets go.
    """

    request: int  # its place in the list of chains
    num_stored: int
    num_blocks: int
    num_hittable: int | None = None


Schedule = Sequence[Moment]


def one_at_a_time(footprints: Iterable[Footprint]) -> Iterator[Moment]:
    """The schedule of a replay: each request is admitted, holds all its blocks and lets go."""
    for i, footprint in enumerate(footprints):
        yield Moment(i, footprint.num_stored, footprint.num_blocks, footprint.num_hittable)
        yield Moment(i, 0, 0)


class _Use:
    """What is known about a part: when it is used, who holds it, how much of it is cached."""

    __slots__ = ("entry", "num_cached", "ref_cnt", "times", "wanted")

    def __init__(self) -> None:
        self.times: list[int] = []  # moments at which the part is used
        self.wanted: list[bool] = []  # whether it could be hit then, or is only stored again
        self.reset()

    def reset(self) -> None:
        self.ref_cnt = 0
        self.num_cached = 0  # its first blocks; all of them while it is held
        self.entry: tuple[int, int, Part] | None = None

    def next_use(self, time: int) -> float:
        """When the part can next be hit after *time*; never, if it will be stored anew before."""
        i = bisect_right(self.times, time)
        return self.times[i] if i < len(self.times) and self.wanted[i] else inf


class Optimum:
    """The most block hits that a schedule allows, for any number of blocks.

    *chains*: the keys of each request. Hits of every admission count, those of a request that was
    preempted and comes back too. One copy of each content is enough for the optimum.
    """

    def __init__(self, chains: Sequence[BlockKeys], schedule: Iterable[Moment]) -> None:
        self._chains = chains
        self._schedule = list(schedule)
        parts = Parts()
        for moment in self._schedule:
            for end in {moment.num_stored, moment.num_hittable or 0}:
                parts.add(chains[moment.request], end)
        self._uses: list[_Use] = []
        self._paths: dict[tuple[int, int], list[Part]] = {}
        for time, moment in enumerate(self._schedule):
            if moment.num_hittable is not None:
                self._note(time, self._path(parts, moment.request, moment.num_hittable), True)
            self._note(time, self._path(parts, moment.request, moment.num_stored), False)

    def _path(self, parts: Parts, request: int, num_blocks: int) -> list[Part]:
        at = (request, num_blocks)
        if at not in self._paths:
            path = self._paths[at] = parts.path(self._chains[request], num_blocks)
            for part in path:
                if part.state is None:
                    part.state = _Use()
                    self._uses.append(part.state)
        return self._paths[at]

    @staticmethod
    def _note(time: int, path: list[Part], wanted: bool) -> None:
        for part in path:
            times = part.state.times
            if not times or times[-1] != time:
                times.append(time)
                part.state.wanted.append(wanted)

    def num_hits(self, num_blocks: int, *, pins: bool = True, grants: bool = True) -> int:
        """The most block hits in a pool of *num_blocks*.

        Without *pins* requests need no memory while they run: only what is kept from one admission
        for a later one counts against the pool. *grants* matter where a request stores its prompt
        in several moments: see `_Run.renew`. With them the number is a bound, without them what MIN
        itself collects; the optimum is between the two. ConfigError if the schedule needs more.
        """
        for use in self._uses:
            use.reset()
        run = _Run(num_blocks, pins, grants)
        for time, moment in enumerate(self._schedule):
            path = self._paths[moment.request, moment.num_stored]
            if moment.num_hittable is None:
                run.hold(time, moment, path)
            else:
                wanted = self._paths[moment.request, moment.num_hittable]
                run.look_up(wanted)
                run.hold(time, moment, path)
                run.renew(time, wanted[len(path) :])
            run.make_room(time, moment)
        return run.num_hits


class _Run:
    """MIN in a pool of one size. `num_idle` blocks are cached and held by nobody."""

    def __init__(self, num_blocks: int, pins: bool, grants: bool) -> None:
        self.num_blocks = num_blocks
        self.pins = pins
        self.grants = grants
        self.num_hits = self.num_idle = self.num_held = 0
        self._holds: dict[int, tuple[list[Part], int]] = {}
        self._latest: list[tuple[float, int, Part]] = []  # (- next use, - start, part)

    def look_up(self, path: list[Part]) -> None:
        """Count the cached prefix of *path*."""
        for part in path:
            self.num_hits += part.state.num_cached
            if part.state.num_cached < part.num_blocks:
                return

    def hold(self, time: int, moment: Moment, path: list[Part]) -> None:
        """A request now holds what *moment* says: pin what is new, let go of the rest."""
        before, num_unhashed = self._holds.pop(moment.request, ([], 0))
        if moment.num_blocks:
            now_unhashed = moment.num_blocks - moment.num_stored
            self._holds[moment.request] = (path, now_unhashed)
            self.num_held += now_unhashed
        self.num_held -= num_unhashed
        for part in path[len(before) :]:
            self._pin(part)
        for part in reversed(before[len(path) :]):
            self._let_go(part, time)

    def _pin(self, part: Part) -> None:
        use = part.state
        if not use.ref_cnt:
            self.num_idle -= use.num_cached
            self.num_held += part.num_blocks
            use.num_cached = part.num_blocks
            use.entry = None
        use.ref_cnt += 1

    def _let_go(self, part: Part, time: int) -> None:
        use = part.state
        use.ref_cnt -= 1
        if use.ref_cnt:
            return
        self.num_held -= part.num_blocks
        self._keep(part, time)

    def renew(self, time: int, path: list[Part]) -> None:
        """An admission has passed and its request will store *path* later, or never.

        What was missed cannot be hit by others before it is stored, so one eviction can cost
        several hits. A bound grants such a part as if it had been cached: then each costs one.
        """
        for part in path:
            use = part.state
            if not use.ref_cnt:
                self.num_idle -= use.num_cached
                if self.grants:
                    use.num_cached = part.num_blocks
                self._keep(part, time)

    def _keep(self, part: Part, time: int) -> None:
        """Keep an idle part until it is needed again; at once give up what never is."""
        use = part.state
        next_use = use.next_use(time)
        if next_use == inf or not use.num_cached:
            use.num_cached, use.entry = 0, None
            return
        self.num_idle += use.num_cached
        use.entry = entry = (-next_use, -part.start, part)
        heappush(self._latest, entry)

    def make_room(self, time: int, moment: Moment) -> None:
        """Evict until all fits; ConfigError if what is held does not."""
        if self.pins:
            excess = self.num_held + self.num_idle - self.num_blocks
        else:
            excess = 0 if moment.num_blocks else self.num_idle - self.num_blocks
        while excess > 0:
            if not self.num_idle:
                raise ConfigError(
                    f"num_blocks is {self.num_blocks}; at moment {time} of this schedule requests "
                    f"hold {self.num_held} blocks; give at least as many"
                )
            excess -= self._evict(excess)

    def _evict(self, num_blocks: int) -> int:
        """Drop up to *num_blocks* blocks, those needed again latest; how many."""
        entry = self._latest[0]
        use = entry[2].state
        if use.entry is not entry:
            heappop(self._latest)
            return 0
        num_evicted: int = min(num_blocks, use.num_cached)
        use.num_cached -= num_evicted
        self.num_idle -= num_evicted
        if not use.num_cached:
            use.entry = None
            heappop(self._latest)
        return num_evicted
