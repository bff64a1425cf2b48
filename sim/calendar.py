"""Who does what when, among requests that only decode: nothing is looked at before its step.

A decoding request computes one token per step. So it needs a new block at the steps congruent to
its first such step modulo block_size, and the step in which it ends is known from the start: one
bucket per residue, one heap of last steps, one running sum of context lengths. A step costs
O(requests that need a block + requests that end), however many decode.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

from sim.request import Request


@dataclass(slots=True)
class Entry:
    """A decoding request and its counters at the step in which it joined."""

    request: Request
    number: int  # of entries so far: the order of the running list
    step: int
    num_computed_tokens: int
    num_output_tokens: int


class Calendar:
    """The decoding requests of one engine.

    *step*: the number of the step that is scheduled next. Between a step's scheduling and its end
    (`advance`), the requests' tokens of that step count as computed but not yet as sampled.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.step = 0
        self.context = 0  # tokens that all of them attend to in the next step
        self.entries: dict[Request, Entry] = {}
        self._needing: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self._filling: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self._ends: list[tuple[int, int, Any]] = []  # (last step, number, entry)
        self._num_entries = 0

    def __len__(self) -> int:
        return len(self.entries)

    def join(self, request: Request, num_outputs: int, stores: bool) -> None:
        """*request* decodes from the next step on, until it has sampled *num_outputs* tokens.

        *stores*: its blocks must be stored in the step that fills them, see `filling`.
        """
        entry = Entry(
            request,
            self._num_entries,
            self.step,
            request.num_computed_tokens,
            request.num_output_tokens,
        )
        self._num_entries += 1
        self.entries[request] = entry
        self.context += request.num_computed_tokens + 1
        residue = (self.step - request.num_computed_tokens) % self.block_size
        self._needing[residue][request] = None
        if stores:
            self._filling[residue - 1][request] = None
        last_step = self.step + num_outputs - request.num_output_tokens - 1
        heapq.heappush(self._ends, (last_step, entry.number, entry))

    def leave(self, request: Request) -> None:
        """*request* stops decoding before the next step; its counters are brought up to date."""
        self.settle(request)
        entry = self.entries.pop(request)
        self.context -= request.num_computed_tokens + 1
        residue = (entry.step - entry.num_computed_tokens) % self.block_size
        del self._needing[residue][request]
        self._filling[residue - 1].pop(request, None)

    def settle(self, request: Request) -> None:
        """Bring the counters of *request* up to date, as of before the next step."""
        entry = self.entries[request]
        num_steps = self.step - entry.step
        request.num_computed_tokens = entry.num_computed_tokens + num_steps
        request.num_output_tokens = entry.num_output_tokens + num_steps

    def needing(self) -> dict[Request, None]:
        """Those that need one more block in the next step."""
        return self._needing[self.step % self.block_size]

    def filling(self) -> dict[Request, None]:
        """Those that fill a block in the next step and must store it then."""
        return self._filling[self.step % self.block_size]

    def last_step(self) -> int | None:
        """The first step in which a request ends, or None."""
        ends, entries = self._ends, self.entries
        while ends and entries.get(ends[0][2].request) is not ends[0][2]:
            heapq.heappop(ends)  # it left before
        return ends[0][0] if ends else None

    def advance(self) -> None:
        """The next step is over."""
        self.step += 1
        self.context += len(self.entries)

    def ending(self) -> list[Request]:
        """Those whose last step was the one just over, in running order; they leave."""
        ended: list[Request] = []
        while self.last_step() == self.step - 1:
            request = heapq.heappop(self._ends)[2].request
            self.leave(request)
            ended.append(request)
        return ended
