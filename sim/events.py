"""KV events, as vLLM publishes them: what became findable, and what is findable no more."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks became findable. Fields follow vLLM's KV event; unknown ones are None."""

    block_hashes: tuple[Hashable, ...]
    parent_block_hash: Hashable | None
    token_ids: tuple[int, ...] | None
    block_size: int
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of a block is findable no more.

    vLLM emits one per physical copy; *copies_left* > 0 says that the content is still cached.
    """

    block_hash: Hashable
    copies_left: int
    block_id: int | None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The prefix cache was reset."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared
EventSink = Callable[[KVEvent], None]
