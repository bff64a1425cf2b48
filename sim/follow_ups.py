"""Closed loops: requests that arrive when others have ended, not at a recorded time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from sim.errors import ConfigError
from sim.request import Request


class FollowUps:
    """Which requests wait for the end of which others (`Request.follows`).

    A request has ended when it is finished, aborted or refused. ConfigError if a request follows
    one that does not stand before it, so that no two can wait for each other.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._waiting: dict[int | str, list[Request]] = defaultdict(list)
        self._num_missing: dict[int | str, int] = {}
        self._away: dict[int | str, Request] = {}  # not arrived yet
        known: set[int | str] = set()
        for request in requests:
            if request.follows:
                self._add(request, known)
            known.add(request.request_id)

    def _add(self, request: Request, known: set[int | str]) -> None:
        name, before = request.request_id, set(request.follows)
        if not before <= known:
            raise ConfigError(
                f"request {name!r} follows {sorted(before - known, key=str)[0]!r}, which does not "
                "stand before it; a workload yields a request behind those that it follows"
            )
        if request.abort_time is not None:
            raise ConfigError(
                f"request {name!r} follows others and has an abort_time; when it arrives is not "
                "known, so that moment means nothing; leave it out"
            )
        if not (math.isfinite(request.think_time) and request.think_time >= 0):
            raise ConfigError(
                f"request {name!r}: think_time is {request.think_time}; it must be at least 0 s"
            )
        self._away[name] = request
        self._num_missing[name] = len(before)
        for one in before:
            self._waiting[one].append(request)

    def released_by(self, ended: Sequence[Request]) -> list[Request]:
        """The requests that waited for the last of *ended*; each comes once."""
        if not self._away:
            return []
        released = []
        for name in (request.request_id for request in ended):
            for follower in self._waiting.pop(name, ()):
                self._num_missing[follower.request_id] -= 1
                if not self._num_missing[follower.request_id]:
                    released.append(follower)
        return released

    def arrived(self, request: Request, now: float) -> None:
        """*request*, which was released, comes *now*."""
        request.arrival_time = now
        del self._away[request.request_id]

    def settle(self) -> None:
        """The run is over: what has not arrived never will."""
        for request in self._away.values():
            request.arrival_time = math.nan
