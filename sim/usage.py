"""How full a pool is: three numbers that answer three questions and are easily mixed up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sim.cache import BlockManager
from sim.request import Request


@dataclass(frozen=True, slots=True)
class Usage:
    """Shares between 0 and 1.

    *blocks*: of the pool's blocks, those that running requests hold (vLLM's kv_cache_usage).
    *tokens*: of the pool's token slots, those with a token of a running request in them.
    *fill*: of the slots in blocks that are held, those with a token; the rest is lost to unfilled
    blocks. NaN while nothing is held.
    """

    blocks: float
    tokens: float
    fill: float


def usage(manager: BlockManager, running: Iterable[Request]) -> Usage:
    """The usage of *manager*, whose blocks are held by *running*.

    Only full blocks are shared, so every empty slot belongs to one request. The requests' counters
    must be up to date, as they are between the steps of the plain scheduler.
    """
    size = manager.block_size
    num_held = manager.num_blocks - manager.num_free_blocks
    num_empty = sum(
        len(manager.table(request.request_id)) * size - request.num_computed_tokens
        for request in running
    )
    num_tokens = num_held * size - num_empty
    return Usage(
        blocks=manager.usage,
        tokens=num_tokens / (manager.num_blocks * size) if manager.num_blocks else 0.0,
        fill=num_tokens / (num_held * size) if num_held else float("nan"),
    )
