"""The content of many chains, cut into parts that are always used as a whole.

A run of blocks that no chain ends in, leaves or enters can be treated as one thing, however long
it is. Known beforehand, such parts make whole-trace computations cost what the traffic has branch
points.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sim.keys import BlockKeys


class Part:
    """Blocks *start* to *start* + *num_blocks* - 1 of every chain that leads through it."""

    __slots__ = ("children", "keys", "num_blocks", "start", "state")

    def __init__(self, keys: BlockKeys, start: int, num_blocks: int) -> None:
        self.keys = keys  # any chain that leads through the part
        self.start = start
        self.num_blocks = num_blocks
        self.children: dict[Hashable, Part] = {}
        self.state: Any = None  # whatever the user of the parts keeps about it


class Parts:
    """A prefix tree of chains. First `add` every chain at every length that matters, then ask."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, Part] = {}

    def add(self, keys: BlockKeys, num_blocks: int) -> int:
        """A part is to end after the first *num_blocks* blocks of *keys*; how many are not new."""
        children, start = self._roots, 0
        while start < num_blocks:
            key = keys[start]
            part = children.get(key)
            if part is None:
                children[key] = Part(keys, start, num_blocks - start)
                return start
            stop = start + part.num_blocks
            common = keys.common(part.keys, start, min(stop, num_blocks))
            if common < part.num_blocks:
                part = self._cut(children, key, part, common)
            start += part.num_blocks
            children = part.children
        return num_blocks

    def _cut(
        self, siblings: dict[Hashable, Part], key: Hashable, lower: Part, num_blocks: int
    ) -> Part:
        """Put the first *num_blocks* blocks of *lower* into a part of their own above it."""
        upper = siblings[key] = Part(lower.keys, lower.start, num_blocks)
        lower.start += num_blocks
        lower.num_blocks -= num_blocks
        upper.children[lower.keys[lower.start]] = lower
        return upper

    def path(self, keys: BlockKeys, num_blocks: int) -> list[Part]:
        """The parts of the first *num_blocks* blocks, which were added as such."""
        parts: list[Part] = []
        children, start = self._roots, 0
        while start < num_blocks:
            part = children[keys[start]]
            parts.append(part)
            start += part.num_blocks
            children = part.children
        return parts
