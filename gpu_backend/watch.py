"""L0 at the verbs of a manager, for tests that have no engine: `watch(manager)`, and go on as ever.

Each verb of a watched manager checks what a step would: what a request counts as computed must lie
in its table with its own content, and what it is about to compute goes where nobody else reads.
A break raises AssertionError on the spot. Tokens that were computed without asking for memory
(macro steps) are noted at the request's next verb.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gpu_backend.content import Words, content_of, fingerprints
from gpu_backend.shadow import UNWRITTEN
from sim.cache import NO_HIT, Allocation, BlockManager, Hit
from sim.keys import TokenKeys
from sim.request import Request

Blocks = npt.NDArray[np.int64]


@dataclass(slots=True)
class Held:
    """What is known of a request that holds blocks."""

    num_written: int = 0
    words: Words = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))


class Watch:
    """The shadow of one manager, whose verbs it wraps."""

    def __init__(self, manager: BlockManager) -> None:
        self.manager = manager
        self.block_size = manager.block_size
        self.slots = np.full((0, self.block_size), UNWRITTEN)
        self.num_reads = 0
        self._is_allocating = False
        self._held: WeakKeyDictionary[Request, Held] = WeakKeyDictionary()
        for name in ("allocate_slots", "cache_blocks", "free"):
            setattr(manager, name, self._wrapped(name, getattr(manager, name)))

    def _wrapped(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        return getattr(self, f"_{name}")(verb)  # type: ignore[no-any-return]

    def _allocate_slots(self, verb: Callable[..., Allocation | None]) -> Callable[..., Any]:
        def allocate_slots(
            request: Request, num_new_tokens: int, hit: Hit = NO_HIT, **gates: Any
        ) -> Allocation | None:
            num_old = len(self._table(request))
            self._settle(request, request.num_computed_tokens)
            start = request.num_computed_tokens + hit.num_tokens
            self._is_allocating = True  # a verb may call others, which see half of it
            try:
                given = verb(request, num_new_tokens, hit, **gates)
            finally:
                self._is_allocating = False
            if given is not None:
                num_hits = -(-hit.num_tokens // self.block_size)
                self._given(request, start, start + num_new_tokens, num_old or num_hits)
            return given

        return allocate_slots

    def _cache_blocks(self, verb: Callable[..., None]) -> Callable[..., None]:
        def cache_blocks(request: Request, num_tokens: int) -> None:
            self._settle(request, num_tokens)
            verb(request, num_tokens)

        return cache_blocks

    def _free(self, verb: Callable[..., None]) -> Callable[..., None]:
        def free(request: Request, **when: Any) -> None:
            self._settle(request, request.num_computed_tokens)
            self._held.pop(request, None)
            verb(request, **when)

        return free

    def _given(self, request: Request, start: int, stop: int, num_old: int) -> None:
        """*request* got memory to compute its tokens *start* to *stop* - 1.

        The first *num_old* blocks of its table were its own before, or are hits.
        """
        table, held = self._table(request), self._held.setdefault(request, Held())
        if len(table) and table.max() >= len(self.slots):
            more = np.full((int(table.max()) + 1 - len(self.slots), self.block_size), UNWRITTEN)
            self.slots = np.concatenate([self.slots, more])
        self.slots[table[num_old:]] = UNWRITTEN
        stop = min(stop, _num_known(request))
        words = self._words(request, stop)
        flat = self._flat(table)
        self.num_reads += start
        wrong = np.flatnonzero(self.slots.reshape(-1)[flat[:start]] != words[:start])
        if len(wrong):
            self._complain(request, int(wrong[0]), table)
        states = self.manager.table(request.request_id)
        for i in range(start // self.block_size, -(-stop // self.block_size)):
            assert states[i].ref_cnt == 1, (
                f"request {request.request_id} writes into block {table[i]}, "
                f"which {states[i].ref_cnt} requests hold"
            )
        self.slots.reshape(-1)[flat[start:stop]] = words[start:stop]
        held.num_written = stop

    def _settle(self, request: Request, num_tokens: int) -> None:
        """Tokens up to *num_tokens* were computed in the blocks that *request* had already."""
        held = self._held.get(request)
        if held is None or self._is_allocating:
            return
        flat = self._flat(self._table(request))
        stop = min(num_tokens, len(flat), _num_known(request))
        start = held.num_written
        if start < stop:
            words = self._words(request, stop)
            self.slots.reshape(-1)[flat[start:stop]] = words[start:stop]
        held.num_written = stop  # less than before where drafted tokens were rejected

    def _words(self, request: Request, num_tokens: int) -> Words:
        """The fingerprints of the first *num_tokens* tokens."""
        held = self._held.setdefault(request, Held())
        if len(held.words) < num_tokens:
            owner = (id(request), request.request_id)
            words = fingerprints(content_of(request.keys, num_tokens, owner))
            self._rename(request, held, words)
            held.words = words
        return held.words

    def _rename(self, request: Request, held: Held, words: Words) -> None:
        """What was the request's own has a name now that more of its content is known."""
        stop = min(held.num_written, len(held.words))
        renamed = np.flatnonzero(held.words[:stop] != words[:stop])
        slots, flat = self.slots.reshape(-1), self._flat(self._table(request))[renamed]
        is_own = slots[flat] == held.words[renamed]
        slots[flat[is_own]] = words[renamed[is_own]]

    def _table(self, request: Request) -> Blocks:
        states = self.manager.table(request.request_id)
        return np.array([state.block_id for state in states], dtype=np.int64)

    def _flat(self, table: Blocks) -> Blocks:
        """The slots of a table, in order."""
        places = table[:, None] * self.block_size + np.arange(self.block_size)
        return np.asarray(places.reshape(-1))

    def _complain(self, request: Request, position: int, table: Blocks) -> None:
        block = int(table[position // self.block_size])
        unwritten = self.slots[block, position % self.block_size] == UNWRITTEN
        raise AssertionError(
            f"request {request.request_id} counts position {position} as computed; its slot in "
            f"block {block} {'is unwritten' if unwritten else 'holds other content'}"
        )


def _num_known(request: Request) -> int:
    """How many tokens of *request* are known; drafted tokens are not among them."""
    if isinstance(request.keys, TokenKeys):
        return len(request.keys.tokens(0, len(request.keys) + 1))
    return request.num_prompt_tokens + max(request.max_tokens, request.num_output_tokens)


def watch(manager: BlockManager) -> Watch:
    """Check *manager*, whose blocks have ids, from now on; it must be empty."""
    return Watch(manager)


def watch_every(set_attribute: Callable[[type, str, Any], None], kind: type[BlockManager]) -> None:
    """Watch every manager of *kind* that is made from now on; *set_attribute* can undo it."""
    make = kind.__init__

    def make_watched(manager: BlockManager, *arguments: Any, **options: Any) -> None:
        make(manager, *arguments, **options)
        watch(manager)

    set_attribute(kind, "__init__", wraps(make)(make_watched))
