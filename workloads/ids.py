"""Block ids of a whole trace in one flat column, and the check that they are prefix hashes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class IdColumn:
    """Integers >= 0 of any size, eight bytes each and never rounded.

    Ids below 2**64 are stored as they are. The first larger one makes the column number all ids
    by first appearance instead: equal numbers still mean equal ids, and `original` maps back.
    """

    def __init__(self) -> None:
        self.values = array("Q")
        self._numbers: dict[int, int] | None = None  # id -> number, once some id is too large

    def __len__(self) -> int:
        return len(self.values)

    def extend(self, ids: Sequence[int]) -> None:
        """Add *ids* at the end."""
        end = len(self.values)
        try:
            self.values.extend(ids if self._numbers is None else self._numbered(ids))
        except OverflowError:
            del self.values[end:]
            self.values = array("Q", self._numbered(self.values))
            self.values.extend(self._numbered(ids))

    def original(self, start: int, stop: int) -> list[int]:
        """Ids *start* to *stop* - 1 as they were added."""
        values = self.values[start:stop].tolist()
        if self._numbers is None:
            return values
        ids = list(self._numbers)
        return [ids[number] for number in values]

    def _numbered(self, ids: Iterable[int]) -> Iterable[int]:
        if self._numbers is None:
            self._numbers = {}
        numbers = self._numbers
        return [numbers.setdefault(i, len(numbers)) for i in ids]


def first_conflict(
    ids: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64]
) -> tuple[int, int] | None:
    """Two places in *ids* that hold one id at two positions or after two parents, if any do.

    *offsets*: where each prompt's ids begin, and the end of the last. Prefix hashes have no
    conflict: such an id names everything before it too. The later place is the earliest possible.
    """
    if not len(ids):
        return None
    lengths = np.diff(offsets)
    position = np.arange(len(ids)) - np.repeat(offsets[:-1], lengths)
    parent = np.roll(ids, 1)
    parent[position == 0] = 0  # a first block has no parent; its position already says so

    order = np.argsort(ids, kind="stable")
    before, after = order[:-1], order[1:]
    differs = (position[before] != position[after]) | (parent[before] != parent[after])
    broken = (ids[before] == ids[after]) & differs
    if not broken.any():
        return None
    worst = np.flatnonzero(broken)[np.argmin(after[broken])]
    return int(before[worst]), int(after[worst])
