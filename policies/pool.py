"""What the block managers have in common: how a pool is described, and the event of its content."""

from __future__ import annotations

from typing import Literal, get_args

from sim.cache import Pool
from sim.errors import ConfigError
from sim.events import BlockStored
from sim.request import Request

FreeOrder = Literal["tail", "unhashed_first"]
Victims = Literal["block", "leaf"]
MOST_BLOCKS = 2**40
"""In a pool: far more than any memory holds, and sums of tokens and bytes stay in 64 bits."""
MOST_TOKENS = 2**20
"""In a block: more than any prompt has; an engine keeps a calendar of one day per token."""


def stored_event(request: Request, start: int, stop: int, block_size: int) -> BlockStored:
    """The event of a request whose blocks *start* to *stop* - 1 became findable."""
    keys = request.keys
    tokens, extra = keys.tokens(start, stop), keys.extra_keys(start, stop)
    return BlockStored(
        block_hashes=tuple(keys[i] for i in range(start, stop)),
        parent_block_hash=keys[start - 1] if start else None,
        token_ids=None if tokens is None else tuple(tokens),
        block_size=block_size,
        extra_keys=None if extra is None else tuple(extra),
    )


def check_pool(
    num_blocks: int,
    block_size: int,
    null_block: bool,
    free_order: FreeOrder = "tail",
    watermark: float = 0.0,
    victims: Victims = "block",
    most_blocks: int = MOST_BLOCKS,
    remedy: str = "",
) -> None:
    """Refuse a pool that could hold nothing or too much, and values that mean nothing.

    *most_blocks*: how many the manager can keep; *remedy*: what to do about more.
    """
    for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
        if type(value) is not int:
            raise ConfigError(f"{name} is {value!r}; it must be a whole number")
    least = 1 + null_block
    if num_blocks < least:
        raise ConfigError(f"num_blocks is {num_blocks}; it must be at least {least}")
    if num_blocks > most_blocks:
        raise ConfigError(f"num_blocks is {num_blocks}; it must be at most {most_blocks}{remedy}")
    if not 1 <= block_size <= MOST_TOKENS:
        limits = f"at least 1 and at most {MOST_TOKENS}"
        raise ConfigError(f"block_size is {block_size} tokens; it must be {limits}")
    for name, choice, choices in (
        ("free_order", free_order, get_args(FreeOrder)),
        ("victims", victims, get_args(Victims)),
    ):
        if choice not in choices:
            raise ConfigError(f"{name} is {choice!r}; it must be {' or '.join(choices)}")
    if not 0 <= watermark < 1:
        raise ConfigError(f"watermark is {watermark}; it must be a share of the pool, 0 to below 1")


def check_no_leaves(pool: Pool) -> None:
    """Refuse to evict by name in leaf mode: it would leave a gap, which leaf mode never does."""
    if pool.leaf_only:
        raise ConfigError("victims is 'leaf'; content can be evicted by name with 'block' only")
