"""Random: every block that may go is as likely as any other.

The baseline that knows nothing. Among all blocks it is ruinous for prefixes: a block that goes
takes everything behind it out of reach, and most of the pool ends as orphans (73 to 86 % on
Mooncake's traces). Among leaves (`victims: leaf`, or the radix manager) it is a sensible baseline;
`rlt` is the same for whole leaves under every manager. Parameter: *seed* of the draws.
Source: textbook. libCacheSim's Random draws a bucket of its hash table first, so that blocks that
share one are less likely; its misses differ by up to 3 %.

Single blocks: a span would give its deepest block first, which is not uniform.
"""

from __future__ import annotations

from policies.held_array import HeldArray
from sim.cache import Span


class Random(HeldArray):
    """Evict any block."""

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        return self.draw(1)[0], 1
