"""A block manager under observation: each call goes to it, what it does is held to the rules."""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction
from typing import Any

from sim.cache import NO_HIT, Allocation, BlockManager, Hit
from sim.checks.contract import ContractBroken, require
from sim.checks.wording import described, difference, show_table
from sim.events import EventSink
from sim.request import Request

REFUSABLE = ("allocate_slots", "serve")
IN_USE = "a block in use keeps its content and is not given to anyone else"


class Witness:
    """Behaves as *manager* does; `ContractBroken` at the first rule that *manager* breaks.

    *program*: the calls so far, to be read; *call*: the last one, and whether it *is_running*.
    *history*: after each call, what can be seen from outside.
    """

    def __init__(self, manager: BlockManager) -> None:
        self.manager = manager
        self.program: list[str] = []
        self.call = ""
        self.is_running = False
        self.history: list[object] = []
        self._contents: dict[int | str, str] = {}
        self._running: dict[int | str, Request] = {}
        self._computed: set[Hashable] = set()  # keys of all content that was ever given slots

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    @property
    def events(self) -> EventSink | None:
        """Where the manager's events go."""
        return self.manager.events

    @events.setter
    def events(self, sink: EventSink | None) -> None:
        self.manager.events = sink

    # What is asked

    def get_computed_blocks(self, request: Request) -> Hit:
        before = self._state()
        hit: Hit = self._do("get_computed_blocks", request)
        again: Hit = self._do("get_computed_blocks", request)
        require(
            self._state() == before and again.num_tokens == hit.num_tokens,
            "a lookup changes nothing, and a second one finds the same",
            f"{hit.num_tokens} tokens, then {again.num_tokens}; "
            + difference(before, self._state()),
        )
        self._check_hit(request, hit.num_tokens)
        self.is_running = False
        return hit

    def allocate_slots(
        self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT, **options: Any
    ) -> Allocation | None:
        before = self._state()
        given: Allocation | None = self._do(
            "allocate_slots", request, num_new_tokens, hit, **options
        )
        if given is None:
            require(
                self._state() == before,
                "a refused allocation changes nothing",
                difference(before, self._state()),
            )
            return None
        self._running[request.request_id] = request
        num_tokens = request.num_computed_tokens + hit.num_tokens + num_new_tokens
        self._note(request, num_tokens)
        num_slots = len(self.manager.table(request.request_id)) * self.manager.block_size
        require(
            num_slots >= num_tokens,
            "an allocation gives a slot to every token asked for, or is refused",
            f"request {request.request_id} has {num_slots} slots for {num_tokens} tokens",
        )
        self._check_books(before, request)
        return given

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        before = self._state()
        self._do("cache_blocks", request, num_tokens)
        self._check_books(before, request)

    def free(self, request: Request, **options: Any) -> None:
        before = self._state()
        self._do("free", request, **options)
        self._running.pop(request.request_id, None)
        left = self.manager.table(request.request_id)
        require(not left, "free() lets go of every block", f"{len(left)} blocks are still held")
        self._check_books(before, request)

    def serve(self, request: Request, num_tokens: int, **options: Any) -> int | None:
        before = self._state()
        num_hit: int | None = self._do("serve", request, num_tokens, **options)
        if num_hit is not None:
            self._check_hit(request, num_hit)
            self._note(request, num_tokens)
        self._check_books(before, request)
        return num_hit

    def reset_prefix_cache(self) -> bool:
        before = self._state()
        done: bool = self._do("reset_prefix_cache")
        require(
            done == (not self._running),
            "reset_prefix_cache() is refused while, and only while, a request holds a block",
            f"it returned {done} with {len(self._running)} requests running",
        )
        after = self._state()
        if done:
            self._computed.clear()
            cached = self.manager.num_cached_blocks
            require(cached == 0, "a reset forgets all content", f"{cached} blocks are cached")
        else:
            rule = "a refused reset changes nothing"
            require(after == before, rule, difference(before, after))
        self._check_books(before, None)
        return done

    # What must be true

    def _do(self, name: str, *arguments: Any, **options: Any) -> Any:
        if arguments:
            self._introduce(arguments[0])
        self.call, self.is_running = described(name, arguments, options), True
        try:
            result = getattr(self.manager, name)(*arguments, **options)
        except ContractBroken:
            raise
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
            raise ContractBroken(f"{name}() raises nothing if used as agreed", seen) from error
        self.history.append((name, getattr(result, "num_tokens", result is None)))
        if name != "get_computed_blocks":
            self.is_running = False
            self.program.append(
                f"{self.call}{' -> refused' if result is None and name in REFUSABLE else ''}"
            )
            self.history.append([str(block.key) for block in self.manager.free_blocks()])
        return result

    def _introduce(self, request: Request) -> None:
        """Say in the program what a request contains, when that is news."""
        content = repr(getattr(request.keys, "text", request.num_tokens))
        if self._contents.get(request.request_id) != content:
            self._contents[request.request_id] = content
            self.program.append(f"request {request.request_id} is {content}")

    def _note(self, request: Request, num_tokens: int) -> None:
        """The first *num_tokens* tokens of *request* have been computed, or will be now."""
        num_blocks = min(num_tokens // self.manager.block_size, len(request.keys))
        self._computed.update(request.keys[i] for i in range(num_blocks))

    def _check_hit(self, request: Request, num_tokens: int) -> None:
        num_known, size = request.num_tokens, self.manager.block_size
        require(
            0 <= num_tokens <= num_known - 1,
            "a hit has at most num_tokens - 1 tokens: the last known token must be computed",
            f"{num_tokens} of {num_known} tokens",
        )
        require(num_tokens % size == 0, "a hit consists of whole blocks", f"{num_tokens} tokens")
        reads = self.manager.enable_caching and not request.skip_reading_prefix_cache
        require(
            reads or not num_tokens,
            "nothing is hit with enable_caching off or skip_reading_prefix_cache set",
            f"{num_tokens} tokens",
        )
        unknown = [i for i in range(num_tokens // size) if request.keys[i] not in self._computed]
        require(
            not unknown,
            "only content that some request has computed since the last reset can be hit",
            f"block {unknown[:1]} of the hit was never computed",
        )

    def _check_books(self, before: dict[str, Any], changed: Request | None) -> None:
        manager = self.manager
        num_free, num_blocks = manager.num_free_blocks, manager.num_blocks
        listed = list(manager.free_blocks())
        cached = sum(block.key is not None for block in listed)
        counts = f"{num_free} free, {manager.num_cached_blocks} of them cached; " + (
            f"listed {len(listed)}, {cached} of them with content"
        )
        require(
            len(listed) == num_free and cached == manager.num_cached_blocks,
            "free_blocks() lists num_free_blocks blocks, num_cached_blocks of them with content",
            counts,
        )
        tables = [manager.table(request_id) for request_id in self._running]
        num_used = sum(Fraction(1, max(block.ref_cnt, 1)) for table in tables for block in table)
        require(
            num_used + num_free == num_blocks,
            "every block is either free or in use: used + free = num_blocks at all times",
            f"{num_used} in use (by ref_cnt), {num_free} free, {num_blocks} in all",
        )
        usage = manager.usage
        require(
            0 <= usage <= 1 and (usage == 0) == (num_free == num_blocks),
            "usage is the share of blocks in use, 0 to 1",
            f"usage {usage} with {num_free} of {num_blocks} free",
        )
        evicted = manager.num_evicted_blocks
        rule = "num_evicted_blocks counts over the whole run and never falls"
        require(evicted >= before["evicted"], rule, f"{before['evicted']}, then {evicted}")
        self._check_tables(before, changed)
        try:
            manager.check()
        except AssertionError as error:
            raise ContractBroken("check() passes after every operation", str(error)) from error

    def _check_tables(self, before: dict[str, Any], changed: Request | None) -> None:
        """No running request has lost a block or its content; only one may have changed."""
        for request_id, request in self._running.items():
            table = self.manager.table(request_id)
            seen = f"request {request_id}: {show_table(table)}"
            require(all(block.ref_cnt > 0 for block in table), IN_USE, seen)
            wrong = [
                i for i, b in enumerate(table) if b.key is not None and b.key != request.keys[i]
            ]
            require(not wrong, IN_USE, f"{seen}; block {wrong[:1]} holds something else")
            if request is not changed and request_id in before["tables"]:
                old = before["tables"][request_id]
                was = f"{seen}; before: {show_table(old)}"
                require([b.key for b in old] == [b.key for b in table], IN_USE, was)

    def _state(self) -> dict[str, Any]:
        """All that can be seen from outside."""
        manager = self.manager
        return {
            "free": manager.num_free_blocks,
            "cached": manager.num_cached_blocks,
            "evicted": manager.num_evicted_blocks,
            "free blocks": list(manager.free_blocks()),
            "tables": {each: manager.table(each) for each in self._running},
            "stored": {each: manager.num_stored_blocks(each) for each in self._running},
        }
