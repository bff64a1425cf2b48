"""How much memory for how many hits: the LRU curve for every pool size in one pass.

After a request the pool is the top of one list: the request's blocks from the first to the last,
then what was there before. So block b hits in a pool of C blocks exactly if its place in the list
is at most C, whatever C is (Mattson et al. 1970; docs/optimum.md for prefix chains). The list is
kept in runs: the blocks that a request was the last to use are always the end of its own path.

    path of request t    |......|########|    the run of t: blocks start to end - 1
                         used again later     one dictionary entry, under the key of its first block

A request costs O(log n) for each run on its path, however long the runs are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sim.footprint import Convention, prompt
from sim.keys import BlockKeys
from sim.request import Request
from sim.workload import Workload

Ints = npt.NDArray[np.int64]
FreeOrder = Literal["tail", "unhashed_first"]


@dataclass(frozen=True, slots=True, eq=False)
class HitCurve:
    """Hit blocks by pool size, in usable blocks (the null block is not among them).

    Between two *corners* the curve is a straight line; beyond the last it is flat. It is that of a
    real pool from *min_num_blocks* on, the longest request; a smaller pool must refuse some.
    *num_twice*: blocks that were recomputed although they might be cached (the last-token rule).
    A manager that then keeps two copies, as vLLM does, may differ from the curve by about as many.
    """

    block_size: int
    num_requests: int
    query_tokens: int
    query_blocks: int
    min_num_blocks: int
    num_twice: int
    corners: Ints  # pool sizes, ascending from 0
    hits: Ints  # hit blocks there

    def hit_blocks(self, num_blocks: int) -> int:
        """Blocks hit in a pool of *num_blocks*."""
        return round(float(np.interp(num_blocks, self.corners, self.hits)))

    def hit_rate(self, num_blocks: int) -> float:
        """Hit tokens over prompt tokens in a pool of *num_blocks*."""
        return self.hit_blocks(num_blocks) * self.block_size / max(1, self.query_tokens)

    @property
    def unbounded(self) -> int:
        """Blocks hit in a pool that never evicts: the most that any policy can hit."""
        return round(float(self.hits[-1]))

    @property
    def enough(self) -> int:
        """The smallest pool in which nothing more is to be gained."""
        return max(int(self.corners[np.argmax(self.hits)]), self.min_num_blocks)

    def size_for(self, hit_rate: float) -> int | None:
        """The smallest pool with at least this token hit rate; None if no pool reaches it."""
        if self.hit_rate(int(self.corners[-1])) < hit_rate:
            return None
        low, high = self.min_num_blocks - 1, max(self.enough, self.min_num_blocks)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.hit_rate(middle) >= hit_rate else (middle, high)
        return high


def lru_curve(
    requests: Workload | Sequence[Request],
    convention: Convention = prompt,
    *,
    free_order: FreeOrder = "tail",
) -> HitCurve:
    """The hits of LRU in pools of every size, requests served one after the other.

    *convention*: what of a request is stored and may be hit (`sim.footprint`); *free_order* as for
    the managers: where blocks without content go. The curve is exact for `policies.vllm` and
    `policies.reference`, except for second copies (`HitCurve.num_twice`).
    """
    stack = _Stack(len(requests))
    starts: list[int] = []
    lengths: list[int] = []
    last_unhashed = num_twice = longest = query_blocks = query_tokens = 0
    block_size = 1
    at_tail = free_order == "tail"
    for request in requests:
        keys, num_hittable, num_stored, num_unhashed, num_tokens = convention(request)
        # Blanks ahead of the queue are spent first: while one is left, the list has less room.
        shift = 0 if at_tail else last_unhashed
        position = 0
        for rank, num_blocks in stack.use(keys, num_stored, num_unhashed if at_tail else 0):
            num_hits = min(num_blocks, num_hittable - position)
            if num_hits > 0:
                starts.append(rank + shift)
                lengths.append(num_hits)
            position += num_blocks
        num_twice += max(0, position - num_hittable)
        last_unhashed = num_unhashed
        longest = max(longest, num_stored + num_unhashed)
        query_blocks += num_stored
        query_tokens += num_tokens
        block_size = keys.block_size
    return curve(
        starts,
        lengths,
        block_size=block_size,
        num_requests=len(requests),
        query_tokens=query_tokens,
        query_blocks=query_blocks,
        min_num_blocks=longest,
        num_twice=num_twice,
    )


def curve(starts: Sequence[int], lengths: Sequence[int], **counts: int) -> HitCurve:
    """The curve of runs that begin to hit in pools above *starts* and are whole *lengths* later.

    *counts*: the other fields of `HitCurve`.
    """
    first = np.array(starts, dtype=np.int64)
    last = first + np.array(lengths, dtype=np.int64)
    corners, places = np.unique(np.concatenate([[0], first, last]), return_inverse=True)
    change = np.zeros(len(corners), dtype=np.int64)
    np.add.at(change, places[1 : len(first) + 1], 1)
    np.add.at(change, places[len(first) + 1 :], -1)
    gained = np.cumsum(change)[:-1] * np.diff(corners)
    hits = np.concatenate([[0], np.cumsum(gained)])
    return HitCurve(corners=corners, hits=hits, **counts)


class Sums:
    """Numbers in a row that change, and the sum behind any of them, in O(log n): a Fenwick tree."""

    def __init__(self, length: int) -> None:
        self._sums = [0] * (length + 1)
        self._total = 0

    def add(self, i: int, number: int) -> None:
        """Add *number* to the *i*-th number."""
        sums, length = self._sums, len(self._sums)
        self._total += number
        i += 1
        while i < length:
            sums[i] += number
            i += i & -i

    def behind(self, i: int) -> int:
        """The sum of all numbers after the *i*-th."""
        sums, left = self._sums, self._total
        i += 1
        while i:
            left -= sums[i]
            i &= i - 1
        return left


class _Stack:
    """The list of all blocks ever used, the latest path first; kept as one run per request.

    The places of all blocks follow from the lengths of the runs.
    """

    def __init__(self, num_requests: int) -> None:
        self._lengths = Sums(num_requests)
        self._heads: dict[Hashable, int] = {}  # key of a run's first block -> its request
        self._keys: list[BlockKeys] = []
        self._ends: list[int] = []

    def use(self, keys: BlockKeys, num_stored: int, num_unhashed: int) -> list[tuple[int, int]]:
        """Move a path to the front; (blocks ahead, number of blocks) of each run that it was in.

        *num_unhashed* blocks without content follow the path in the list and never move again.
        """
        found: list[tuple[int, int]] = []
        touched: list[tuple[int, int]] = []
        heads, behind = self._heads, self._lengths.behind
        position = 0
        while position < num_stored:
            run = heads.pop(keys[position], None)
            if run is None:
                break
            end, others = self._ends[run], self._keys[run]
            common = keys.common(others, position, end if end < num_stored else num_stored)
            found.append((behind(run), common))  # the runs of later requests are ahead of it
            touched.append((run, common))
            position += common
            if position < end:
                heads[others[position]] = run
        for run, num_blocks in touched:  # only now: the ranks are those before the request
            self._lengths.add(run, -num_blocks)
        self._append(keys, num_stored, num_unhashed)
        return found

    def _append(self, keys: BlockKeys, num_stored: int, num_unhashed: int) -> None:
        run = len(self._keys)
        self._keys.append(keys)
        self._ends.append(num_stored)
        if num_stored:
            self._heads[keys[0]] = run
        self._lengths.add(run, num_stored + num_unhashed)
