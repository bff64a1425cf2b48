"""Ranks that differ within a prompt: among the blocks of one span, deeper ones may go earlier.

Exact, and spans stay whole: a span is held under the rank of its deepest blocks, and only as many
blocks are offered as share it. The rest is looked at again when it comes to the front.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from policies.ranked import Rank, Ranked
from sim.cache import Span
from sim.request import Request


class Stepped(Ranked):
    """Evict the block with the smallest rank, where ranks rise or stay equal toward the root."""

    lists_in_order: ClassVar[bool] = False  # what has shrunk or was cut is re-ranked later

    @abstractmethod
    def remember(self, span: Span, request: Request, now: float) -> None:
        """Put into `span.note` all that `step` needs; called at every release."""

    @abstractmethod
    def step(self, span: Span) -> tuple[Rank, int]:
        """The rank of the span's deepest block, and how many blocks from there on share it."""

    def rank(self, span: Span, request: Request, now: float) -> Rank:
        self.remember(span, request, now)
        return self.step(span)[0]

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        while True:
            span, num_offered = super().victim(num_blocks)
            rank, num_alike = self.step(span)
            held, *place = self._entries[span][:3]
            if rank == held:
                return span, min(num_offered, num_alike)
            self._enter((rank, place[0], place[1], span))
