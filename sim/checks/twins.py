"""Two block managers side by side: the same random program, the same decisions, or an error.

The differential test of `policies.vllm` against `policies.reference`, and for anyone who writes a
manager that claims to decide as another does. Prompts are made of a few letters, so that sharing,
duplicates and orphans abound in a pool of a dozen blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from sim.cache import NO_HIT, BlockManager
from sim.checks.letters import Letters
from sim.events import BlockRemoved, BlockStored, KVEvent
from sim.request import Request, RequestStatus

MakeManager = Callable[[int, int], BlockManager]  # (num_blocks, block_size)


class Twins:
    """A random program, run on two managers at once; AssertionError at the first disagreement."""

    def __init__(self, one: MakeManager, other: MakeManager, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.block_size = int(rng.integers(1, 5))
        self.num_blocks = int(rng.integers(3, 15))
        self.alphabet = "abc"[: int(rng.integers(1, 4))]
        self.managers = [make(self.num_blocks, self.block_size) for make in (one, other)]
        self.events: list[list[KVEvent]] = [[], []]
        for manager, events in zip(self.managers, self.events, strict=True):
            manager.events = events.append
        self.requests: list[Request] = []
        self.texts = [""]  # prompts and answers so far: new prompts continue them
        self.log: list[str] = []
        self.num_requests = 0
        self.now = 0.0

    def run(self, num_operations: int) -> None:
        """Do and compare *num_operations* operations, then end every request."""
        operations = (self._new, self._advance, self._advance, self._advance, self._end)
        rare = (self._preempt, self._reset, self._look, self._serve, self._evict_content)
        for _ in range(num_operations):
            self.now += 1.0
            pool = rare if self.rng.random() < 0.15 else operations
            self._do(pool[self.rng.integers(len(pool))])
        while self.requests:
            self._do(self._end)
        assert all(manager.usage == 0 for manager in self.managers)

    def _do(self, operation: Callable[[], Any]) -> None:
        try:
            operation()
            self._compare()
        except AssertionError as error:
            program = "\n  ".join(self.log[-40:])
            raise AssertionError(
                f"{error}\nblock_size {self.block_size}, {self.num_blocks} blocks:\n  {program}"
            ) from error

    def _both(self, act: Callable[[BlockManager], Any]) -> Any:
        """Do the same on both; what the first returned."""
        first, second = (act(manager) for manager in self.managers)
        assert first == second, f"results differ: {first} and {second}"
        return first

    # Operations

    def _new(self) -> None:
        """A prompt that continues an earlier text, perhaps cut short."""
        if len(self.requests) >= 5:
            return self._advance()
        rng = self.rng
        base = self.texts[rng.integers(len(self.texts))]
        base = base[: int(rng.integers(0, len(base) + 1))]
        extra = rng.choice(list(self.alphabet), size=int(rng.integers(1, 4 * self.block_size)))
        text = base + "".join(extra)
        self.num_requests += 1
        request = Request(
            self.num_requests,
            Letters(text, self.block_size),
            num_prompt_tokens=len(text),
            max_tokens=10**6,
            skip_reading_prefix_cache=bool(rng.random() < 0.1),
        )
        self.log.append(f"new {request.request_id}: {text}")
        self.requests.append(request)
        self.texts.append(text)
        del self.texts[:-12]

    def _advance(self) -> None:
        """One step of a request: admission, a chunk of its prompt, or a sampled token."""
        if not self.requests:
            return None
        request = self._any()
        if request.num_computed_tokens == 0:
            return self._admit(request)
        if request.num_computed_tokens == request.num_tokens:
            self._sample(request)
        num_left = request.num_tokens - request.num_computed_tokens
        return self._allocate(request, int(self.rng.integers(1, num_left + 1)), adopt=False)

    def _admit(self, request: Request) -> None:
        num_hit = self._both(lambda m: m.get_computed_blocks(request).num_tokens)
        num_new = request.num_tokens - num_hit
        if self.rng.random() < 0.4:
            num_new = int(self.rng.integers(1, num_new + 1))
        self._allocate(request, num_new, adopt=True)

    def _allocate(self, request: Request, num_tokens: int, adopt: bool) -> None:
        rng = self.rng
        options: dict[str, Any] = {
            "num_lookahead_tokens": int(rng.integers(0, 3)) if rng.random() < 0.1 else 0,
            "full_sequence_must_fit": adopt and bool(rng.random() < 0.3),
            "has_scheduled_reqs": bool(rng.random() < 0.5),
            "reserved_blocks": int(rng.integers(0, 3)) if rng.random() < 0.1 else 0,
            "delay_cache_blocks": bool(rng.random() < 0.05),
        }

        def allocate(manager: BlockManager) -> tuple[int, int] | None:
            hit = manager.get_computed_blocks(request) if adopt else NO_HIT
            given = manager.allocate_slots(request, num_tokens, hit, now=self.now, **options)
            return None if given is None else (hit.num_tokens, given.num_new_blocks)

        given = self._both(allocate)
        self.log.append(f"allocate {request.request_id}: {num_tokens} {options} -> {given}")
        if given is not None:
            request.num_computed_tokens += given[0] + num_tokens
            request.status = RequestStatus.RUNNING

    def _sample(self, request: Request) -> None:
        assert isinstance(request.keys, Letters)
        request.keys.text += str(self.rng.choice(list(self.alphabet)))
        request.num_output_tokens += 1
        self.texts.append(request.keys.text)

    def _end(self) -> None:
        if self.requests:
            request = self._any()
            self.requests.remove(request)
            self.log.append(f"free {request.request_id}")
            self._both(lambda manager: manager.free(request, now=self.now))

    def _preempt(self) -> None:
        if self.requests:
            request = self._any()
            self.log.append(f"preempt {request.request_id}")
            request.status = RequestStatus.PREEMPTED
            self._both(lambda manager: manager.free(request, now=self.now))
            request.num_computed_tokens = 0

    def _serve(self) -> None:
        """A new request's whole life at once, as in replay; its answer is not yet sampled."""
        self._new()
        request = self.requests[-1]
        if request.num_computed_tokens or request.num_output_tokens:
            return
        assert isinstance(request.keys, Letters)
        answer = "".join(self.rng.choice(list(self.alphabet), size=int(self.rng.integers(0, 6))))
        request.keys.text += answer
        num_tokens = len(request.keys.text)
        needed = -(-num_tokens // self.block_size)
        fits = needed <= min(manager.num_free_blocks for manager in self.managers)
        if fits and not any(manager.table(request.request_id) for manager in self.managers):
            watched = bool(self.rng.random() < 0.3)  # nobody listens: managers may go a short way
            served = self._both(lambda m: self._serve_by(m, request, num_tokens, watched))
            self.log.append(f"serve {request.request_id}: {request.keys.text} -> {served}")
        self.requests.remove(request)

    def _serve_by(
        self, manager: BlockManager, request: Request, num_tokens: int, watched: bool
    ) -> int | None:
        listener = manager.events
        if not watched:
            manager.events = None
        num_hit = manager.serve(request, num_tokens, now=self.now)
        manager.events = listener
        return num_hit

    def _reset(self) -> None:
        if self.rng.random() < 0.2:
            done = self._both(lambda manager: manager.reset_prefix_cache())
            self.log.append(f"reset -> {done}")

    def _evict_content(self) -> None:
        """One copy of some content is evicted by name, where both managers can do that."""
        if not all(_evicts_by_name(manager) for manager in self.managers):
            return
        first = self.managers[0]
        blocks = [*first.free_blocks()]
        for request in self.requests:
            blocks += first.table(request.request_id)
        keys = sorted({block.key for block in blocks if block.key is not None}, key=str)
        if keys:
            key = keys[self.rng.integers(len(keys))]
            nth_copy = int(self.rng.integers(len(first.copies(key))))
            self.log.append(f"evict copy {nth_copy} of {key}")
            self._both(lambda manager: _evict_content(manager, key, nth_copy))

    def _look(self) -> None:
        """Store what is computed (a no-op unless storing was delayed), and look twice."""
        if self.requests:
            request = self._any()
            self.log.append(f"cache_blocks {request.request_id}")
            self._both(lambda m: m.cache_blocks(request, request.num_computed_tokens))
            self._both(lambda m: m.get_computed_blocks(request).num_tokens)

    def _any(self) -> Request:
        return self.requests[self.rng.integers(len(self.requests))]

    # What must be equal

    def _compare(self) -> None:
        events = [list(map(_without_id, events)) for events in self.events]
        for seen in self.events:
            seen.clear()
        assert events[0] == events[1], f"events differ: {events[0]} and {events[1]}"
        self._both(lambda m: (m.num_free_blocks, m.num_cached_blocks, m.num_evicted_blocks))
        tables = [self._tables(manager) for manager in self.managers]
        assert tables[0] == tables[1], f"tables differ: {tables[0]} and {tables[1]}"
        order = [[str(block.key) for block in manager.free_blocks()] for manager in self.managers]
        if not self._has_order():
            order = [sorted(keys) for keys in order]
        assert order[0] == order[1], f"free blocks differ: {order[0]} and {order[1]}"
        assert len(order[0]) == self.managers[0].num_free_blocks, "free blocks do not add up"
        for manager in self.managers:
            manager.check()

    def _has_order(self) -> bool:
        """Whether the policies list what they hold in the order in which they would evict it."""
        return all(getattr(m.policy, "lists_in_order", True) for m in self.managers)  # type: ignore[attr-defined]

    def _tables(self, manager: BlockManager) -> list[tuple[Any, ...]]:
        tables = []
        for request in self.requests:
            blocks = [(b.key, b.ref_cnt) for b in manager.table(request.request_id)]
            tables.append((blocks, manager.num_stored_blocks(request.request_id)))
        return tables


def _evicts_by_name(manager: BlockManager) -> bool:
    by_name = hasattr(manager, "evict_content") or hasattr(manager, "evict_blocks")
    return by_name and not manager.leaf_only


def _evict_content(manager: BlockManager, key: Hashable, nth_copy: int) -> None:
    if hasattr(manager, "evict_content"):
        manager.evict_content(key, nth_copy)
    else:
        manager.evict_blocks([manager.copies(key)[nth_copy].block_id])  # type: ignore[attr-defined]


def _without_id(event: KVEvent) -> Hashable:
    if isinstance(event, BlockRemoved):
        return (event.block_hash, event.copies_left)
    if isinstance(event, BlockStored):
        return (event.block_hashes, event.parent_block_hash)
    return "cleared"
