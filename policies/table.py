"""The block table of one request of `policies.vllm`: spans, not block ids."""

from __future__ import annotations

from collections.abc import Iterator

from policies.prefix_tree import Copy, Node


class Table:
    """What one request holds: spans with content, in order, then blocks without.

    *tip*: the node at which its content ends. A span that was cut after it was put here stands for
    all its parts.
    """

    __slots__ = ("num_stored", "num_unhashed", "spans", "tip")

    def __init__(self, tip: Node) -> None:
        self.spans: list[Copy] = []
        self.num_stored = 0
        self.num_unhashed = 0
        self.tip = tip

    def parts(self) -> Iterator[Copy]:
        """Every span held, the deepest first.

        The next one is looked up when it is asked for, since to let one go may cut others.
        """
        for i in range(len(self.spans) - 1, -1, -1):
            yield from parts_of(self.spans, i)


def parts_of(spans: list[Copy], i: int) -> Iterator[Copy]:
    """What *spans*[i] stands for since it was put there: its parts, the deepest first."""
    part: Copy | None = spans[i]
    bound = spans[i - 1].start + spans[i - 1].num_blocks if i else 0
    while part is not None:
        above = part.above if part.start > bound else None
        yield part
        part = above
