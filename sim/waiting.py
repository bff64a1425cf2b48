"""Requests that wait for their turn: only the head is ever tried, so nothing overtakes it."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from sim.request import Request


class WaitingQueue(Protocol):
    """Requests that do not run, in the order in which they will."""

    def add(self, request: Request) -> None:
        """A request arrives."""

    def give_back(self, request: Request) -> None:
        """A preempted request returns."""

    def head(self) -> Request:
        """The next request to admit."""

    def pop(self) -> Request:
        """Take the head out."""

    def remove(self, request: Request) -> None:
        """Take *request* out."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FCFSQueue(deque[Request]):
    """First come, first served; a preempted request returns to the front."""

    add = deque.append
    give_back = deque.appendleft
    pop = deque.popleft

    def head(self) -> Request:
        return self[0]


class PriorityQueue:
    """Smallest (priority, arrival time, id) first; a preempted request returns to its place."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        bisect.insort(
            self._requests, request, key=lambda r: (r.priority, r.arrival_time, r.request_id)
        )

    give_back = add

    def head(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.pop(0)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)
