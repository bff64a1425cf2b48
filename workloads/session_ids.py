"""Block ids that count anew in every session, numbered through and kept in four bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from workloads.ids import first_conflict

NUM_IDS = 2**32

Integers = npt.NDArray[np.int64]


class SessionIds:
    """The ids of many sessions in one column; those of different sessions are never equal."""

    def __init__(self) -> None:
        self.values = array("I")
        self._num_named = 0  # the ids of the next session are numbered from here on

    def __len__(self) -> int:
        return len(self.values)

    def add(self, prompts: Sequence[Sequence[int]]) -> None:
        """Add the ids of one session's prompts; a ValueError says which id breaks which rule.

        Within the session they must be prefix hashes: each with one position and one parent.
        """
        offsets = np.cumsum([0, *map(len, prompts)])
        ids = _flat(prompts)
        if not len(ids):
            return
        dense = ids
        if int(ids.max()) >= 2 * len(ids):  # not counted from 0 or 1
            dense = np.unique(ids, return_inverse=True)[1]
        if not _are_prefix_hashes(dense, offsets):
            raise ValueError(_conflict(ids, offsets))
        num_named = self._num_named + int(dense.max()) + 1
        if num_named > NUM_IDS:
            raise ValueError(f"the sessions have more than {NUM_IDS} different ids")
        self.values.frombytes((dense + self._num_named).astype(np.uint32).tobytes())
        self._num_named = num_named


def _flat(prompts: Iterable[Iterable[int]]) -> Integers:
    try:
        ids = np.fromiter(chain.from_iterable(prompts), np.int64)
    except OverflowError:
        raise ValueError("hash_ids holds an id outside 0 to 2**63 - 1") from None
    if len(ids) and ids.min() < 0:
        raise ValueError(f"hash_ids holds {ids.min()}; ids must be at least 0")
    return ids


def _are_prefix_hashes(ids: Integers, offsets: Integers) -> bool:
    """Whether each id stands at one position, after one parent; *ids* are small numbers."""
    position = np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets))
    parent = np.roll(ids, 1)
    parent[position == 0] = -1
    seen = np.empty(int(ids.max()) + 1, np.int64)
    for feature in (position, parent):
        seen[ids] = feature  # of several places of an id one wins; all must agree with it
        if not np.array_equal(seen[ids], feature):
            return False
    return True


def _conflict(ids: Integers, offsets: Integers) -> str:
    """What is wrong with ids that are not prefix hashes."""
    conflict = first_conflict(ids.astype(np.uint64), offsets)
    assert conflict is not None
    earlier, later = (int(np.searchsorted(offsets, p, side="right")) for p in conflict)
    return (
        f"block id {ids[conflict[1]]} stands in request {later} of the session at another place or "
        f"after another id than in request {earlier}; ids must be prefix hashes"
    )
