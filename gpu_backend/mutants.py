"""Bugs on purpose: each must be found by the layer that should find it, or the layer is no check.

A mutant breaks a manager like `reference`, the block keys, or a step's metadata, and runs the toy
traffic. The bugs are those that real engines had: a hash without its parent, a salt that is not
hashed, a hash that outlives its content, a block published half full, a block freed under somebody
who reads it, a block table or slot that is off, a write into a block that others read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, cast

import numpy as np

from gpu_backend.check import Tamper
from gpu_backend.metadata import AttentionMetadata
from gpu_backend.toy import toy_engine, toy_requests
from gpu_backend.trace import StepTrace
from gpu_backend.tracing import Tracer
from sim.cache import Hit
from sim.keys import TokenKeys
from sim.request import Request

NUM_REQUESTS = 36  # enough for every bug to do harm
Break = Callable[[Any], None]  # of a manager like `reference`
Rehash = Callable[[TokenKeys], TokenKeys]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug and the layers of which each must find it; *blind*: the layers that cannot."""

    about: str
    found_by: frozenset[str]
    blind: frozenset[str] = frozenset()
    break_manager: Break | None = None
    rehash: Rehash | None = None
    tamper: Tamper | None = None

    def trace(self, **options: Any) -> StepTrace:
        """The toy traffic with this bug; *options* as for `toy_engine`."""
        requests = toy_requests(NUM_REQUESTS)
        if self.rehash is not None:
            requests = [_rehashed(request, self.rehash) for request in requests]
        engine = toy_engine(**options)
        if self.break_manager is not None:
            self.break_manager(engine.manager)
            engine.manager.check = lambda: None  # type: ignore[method-assign]
        tracer = Tracer.of(engine)
        with suppress(Exception):  # a broken manager may not survive; what it did until then counts
            engine.run(requests)
        return tracer.trace()


def _rehashed(request: Request, rehash: Rehash) -> Request:
    assert isinstance(request.keys, TokenKeys)
    return replace(request, keys=rehash(request.keys))


# Block keys


class Parentless(TokenKeys):
    """Hashes a block without what is before it."""

    __slots__ = ()

    def __getitem__(self, i: int, /) -> Any:
        extra = self.extra_keys(i, i + 1)[0]
        return (tuple(self.tokens(i, i + 1)), extra)


class Saltless(TokenKeys):
    """Hashes everything but the salt."""

    __slots__ = ()

    def _extra(self, block: int) -> tuple[Any, ...] | None:
        extra = super()._extra(block) or ()
        return tuple(part for part in extra if part[0] != "cache_salt") or None


def _as(kind: type[TokenKeys]) -> Rehash:
    def rehash(keys: TokenKeys) -> TokenKeys:
        tokens = keys.tokens(0, len(keys) + 1)
        return kind(tokens, keys.block_size, lora=keys.lora, images=keys.images, salt=keys.salt)

    return rehash


# Managers


def stale_hash(manager: Any) -> None:
    """A block that is handed out anew stays findable under its old content."""
    look_up, size = manager.get_computed_blocks, manager.block_size

    def unhash(block: Any) -> None:
        block.block_hash = None

    def get_computed_blocks(request: Request) -> Hit:
        """Without blank blocks: to adopt one would break the books, and the run would end."""
        spans = list(
            takewhile(lambda b: b.ref_cnt or b.block_hash is not None, look_up(request)[1])
        )
        return Hit(len(spans) * size, spans)

    manager._unhash = unhash
    manager.get_computed_blocks = get_computed_blocks


def publish_partial(manager: Any) -> None:
    """A block becomes findable as soon as it has a token."""
    publish, size = manager.cache_blocks, manager.block_size

    def cache_blocks(request: Request, num_tokens: int) -> None:
        publish(request, -(-num_tokens // size) * size)

    manager.cache_blocks = cache_blocks


def free_shared(manager: Any) -> None:
    """Who ends first frees the blocks of all who share them."""
    free = manager.free

    def free_all(request: Request, *, now: float = 0.0) -> None:
        for block in manager.tables.get(request.request_id, ()):
            block.ref_cnt = min(block.ref_cnt, 1)
        free(request, now=now)

    manager.free = free_all


def write_shared(manager: Any) -> None:
    """A block that begins alike counts as hit up to there, and is then written without a copy."""
    look_up, size = manager.get_computed_blocks, manager.block_size
    seen: list[Any] = []

    def get_computed_blocks(request: Request) -> Hit:
        hit: Hit = look_up(request)
        keys = cast("TokenKeys", request.keys)
        i, longest, block = len(hit.spans), 0, None
        for other in seen:
            follows = i < len(other) and (
                i == 0 or (i <= len(keys) and other[i - 1] == keys[i - 1])
            )
            if follows and other.extra_keys(i, i + 1) == keys.extra_keys(i, i + 1):
                alike = _common(keys.tokens(i, i + 1), other.tokens(i, i + 1))
                found = manager.cached.get(other[i])
                if longest < alike < size and found is not None:
                    longest, block = alike, found
        seen.append(keys)
        longest = min(longest, request.num_tokens - 1 - i * size)
        if block is None or longest < 1:
            return hit
        return Hit(i * size + longest, [*hit.spans, block])

    manager.get_computed_blocks = get_computed_blocks


def _common(one: Iterable[Hashable], other: Iterable[Hashable]) -> int:
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return same


# Metadata


def next_slot(metadata: AttentionMetadata) -> AttentionMetadata:
    """A decoding row writes into the neighbouring slot of its block."""
    slots = metadata.slot_mapping.copy()
    starts, lengths = metadata.query_start_loc[:-1], np.diff(metadata.query_start_loc)
    slots[starts[lengths == 1]] ^= 1
    return replace(metadata, slot_mapping=slots)


def short_length(metadata: AttentionMetadata) -> AttentionMetadata:
    """The new tokens do not count as there."""
    return replace(metadata, seq_lens=np.maximum(metadata.seq_lens - 1, 1).astype(np.int32))


def swapped_blocks(metadata: AttentionMetadata) -> AttentionMetadata:
    """The first two blocks of every table change places after the slots were computed."""
    table = metadata.block_table.copy()
    if table.shape[1] > 1:
        table[:, [0, 1]] = table[:, [1, 0]]
    return replace(metadata, block_table=table)


L1 = frozenset({"L1 output", "L1 KV"})
EVERY = L1 | {"L0"}

MUTANTS = {
    "hash without parent": Mutant(
        "equal tokens after another history are taken for equal", EVERY, rehash=_as(Parentless)
    ),
    "salt ignored": Mutant(
        "a tenant hits another's blocks; the numbers are the same",
        frozenset({"L0"}),
        blind=L1 | {"pool", "metadata"},
        rehash=_as(Saltless),
    ),
    "stale hash": Mutant("a hash outlives its content", EVERY, break_manager=stale_hash),
    "partial block published": Mutant(
        "a block is findable before it is full", EVERY, break_manager=publish_partial
    ),
    "freed while shared": Mutant(
        "a block is handed out while another reads it", EVERY | {"pool"}, break_manager=free_shared
    ),
    "write into a shared block": Mutant(
        "copy-on-write is missing", EVERY | {"pool"}, break_manager=write_shared
    ),
    "wrong slot": Mutant(
        "KV goes into the slot beside its own", EVERY | {"metadata"}, tamper=next_slot
    ),
    "length too short": Mutant(
        "a row does not see its newest token",
        EVERY | {"metadata"},
        blind=frozenset({"pool"}),
        tamper=short_length,
    ),
    "swapped blocks": Mutant(
        "a block table is not in the order of the tokens",
        frozenset({"metadata", "L0", "L1 output"}),
        tamper=swapped_blocks,
    ),
}
