"""The tree of shared prefixes as rectangles: who shares how many tokens with whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from sim.request import Request
from workloads.units import Units, units


class Branch(NamedTuple):
    """A run of tokens from *top* to *bottom* that *num_requests* prompts have in common.

    *left*: how many prompts stand to its left; below a branch are the branches that go on from it.
    """

    left: int
    num_requests: int
    top: int
    bottom: int


def branches(requests: Iterable[Request], least: int = 2) -> list[Branch]:
    """The branches of the prompts of *requests* that at least *least* of them share.

    The most popular come first from the left.
    """
    return list(_grow([units(request) for request in requests], 0, 0, 0, max(2, least)))


def _grow(prompts: list[Units], depth: int, top: int, left: int, least: int) -> Iterator[Branch]:
    """Branches of *prompts*, which agree in their first *depth* units, *top* tokens."""
    pending = [(prompts, depth, top, left)]
    while pending:
        prompts, depth, top, left = pending.pop()
        groups: dict[Hashable, list[Units]] = defaultdict(list)
        for prompt in prompts:
            if len(prompt.names) > depth:
                groups[prompt.names[depth]].append(prompt)
        for group in sorted(groups.values(), key=len, reverse=True):
            if len(group) < least:
                break
            end = _agree(group, depth)
            bottom = group[0].ends[end - 1]
            yield Branch(left, len(group), top, bottom)
            pending.append((group, end, bottom, left))
            left += len(group)


def _agree(group: list[Units], depth: int) -> int:
    """How many units all of *group* have in common, at least *depth* + 1.

    A name tells all before it, so the common length is where the last names agree.
    """
    first = group[0].names
    low, high = depth + 1, min(len(prompt.names) for prompt in group)
    while low < high:
        middle = (low + high + 1) // 2
        if all(prompt.names[middle - 1] == first[middle - 1] for prompt in group):
            low = middle
        else:
            high = middle - 1
    return low
