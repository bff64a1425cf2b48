"""When each block of each prompt is used next, found from the last request to the first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from sim.footprint import Footprint

NEVER = 1 << 62
"""Later than every request."""


class NextUse(NamedTuple):
    """The next use of every block of one request: *uses[i]* from block *starts[i]* on.

    A use is the number of the next request that could hit the block, or NEVER: also where another
    request stores the block anew before, since until then it is of no use to anybody.
    """

    starts: list[int]
    uses: list[int]


def next_uses(footprints: Sequence[Footprint]) -> list[NextUse]:
    """For each request the next uses of its blocks, if the requests come in this order.

    The mirror image of `sim.analysis.mrc`: the blocks of which a request is the next user are
    always the end of its path, so one entry each, under the key of the first of them, is enough.
    """
    heads: dict[Hashable, int] = {}
    found: list[NextUse] = []
    for number in range(len(footprints) - 1, -1, -1):
        keys, _, num_stored, *_ = footprints[number]
        starts: list[int] = []
        uses: list[int] = []
        position = 0
        while position < num_stored:
            user = heads.pop(keys[position], None)
            if user is None:
                break
            others, num_hittable, end, *_ = footprints[user]
            start = position
            position += keys.common(others, start, min(end, num_stored))
            if position < end:
                heads[others[position]] = user
            if start < num_hittable:
                starts.append(start)
                uses.append(user)
            if num_hittable < position:
                starts.append(max(start, num_hittable))
                uses.append(NEVER)
        if num_stored:
            heads[keys[0]] = number
        starts.append(position)
        uses.append(NEVER)
        found.append(NextUse(starts, uses))
    found.reverse()
    return found
