"""Who does what when, among requests that only decode: nothing is looked at before its step.

A decoding request computes one token per step. So it needs a new block at the steps congruent to
its first such step modulo block_size, and the step in which it ends is known from the start: one
bucket per residue, one heap of last steps, one running sum of context lengths. A step costs
O(requests that need a block + requests that end), however many decode.
"""

from __future__ import annotations

import heapq
import math
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
    *entries*: the requests, in running order. *context*: the tokens that all of them attend to in
    the next step. *next_end*: the first step in which one of them ends (or could have, had it not
    left before).
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.step = 0
        self.context = 0
        self.next_end = math.inf
        self.entries: dict[Request, Entry] = {}
        self._needing: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self._filling: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self._ends: list[tuple[int, int, Any]] = []  # (last step, number, entry)
        self._num_entries = 0

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
        self.next_end = self._ends[0][0]

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

    def advance(self) -> None:
        """The next step is over."""
        self.step += 1
        self.context += len(self.entries)

    def ending(self) -> list[Request]:
        """Those whose last step was the one just over, in running order; they leave."""
        ended: list[Request] = []
        ends = self._ends
        while ends and ends[0][0] < self.step:
            entry: Entry = heapq.heappop(ends)[2]
            if self.entries.get(entry.request) is entry:  # it did not leave before
                self.leave(entry.request)
                ended.append(entry.request)
        self.next_end = ends[0][0] if ends else math.inf
        return ended
