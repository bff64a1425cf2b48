"""What one request does to a cache, in blocks: the conventions of every count.

Numbers of hits can only be compared under one convention. `prompt` and `with_answer` are the
engine's: full blocks are stored, and the last token of a prompt is never a hit. `all_ids` is that
of most papers: every id of a trace is a block, also the partial last one, and all may be hit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sim.errors import ConfigError
from sim.keys import BlockKeys, ChunkKeys
from sim.request import Request


class Footprint(NamedTuple):
    """Of the blocks of *keys* the first *num_hittable* may be hit, the first *num_stored* stay.

    While the request is served it holds *num_unhashed* more, which can never be hit. A block that
    is stored but may not be hit is computed again, whether it is cached or not. Hit rates are of
    the *num_tokens* of the prompt.
    """

    keys: BlockKeys
    num_hittable: int
    num_stored: int
    num_unhashed: int
    num_tokens: int

    @property
    def num_blocks(self) -> int:
        """All blocks that the request holds while it is served."""
        return self.num_stored + self.num_unhashed


Convention = Callable[[Request], Footprint]


def prompt(request: Request) -> Footprint:
    """The prompt alone, as `replay` serves it."""
    return _served(request, request.num_prompt_tokens)


def with_answer(request: Request) -> Footprint:
    """Prompt and answer, as `replay` with *decode* and the engine serve them."""
    return _served(request, request.num_prompt_tokens + request.max_tokens - 1)


def _served(request: Request, num_slots: int) -> Footprint:
    keys = request.keys
    block_size = keys.block_size
    num_stored = min(num_slots // block_size, len(keys))
    num_hittable = (request.num_prompt_tokens - 1) // block_size
    return Footprint(
        keys,
        0 if request.skip_reading_prefix_cache else num_hittable,
        num_stored,
        -(-num_slots // block_size) - num_stored,
        request.num_prompt_tokens,
    )


def all_ids(request: Request) -> Footprint:
    """Every id of a trace as one full block that may be hit, the last one of a prompt too.

    Hit rates are then of blocks. ConfigError if the blocks of *request* are not the trace's ids.
    """
    keys = request.keys
    if not isinstance(keys, ChunkKeys) or keys.block_size != keys.chunk_size:
        raise ConfigError(
            f"all ids as blocks: block_size is {keys.block_size}; it must be the number of tokens "
            "that one id of the trace stands for; leave block_size at the format's default"
        )
    num_blocks, size = len(keys.ids), keys.block_size
    num_tokens = num_blocks * size
    whole = ChunkKeys(keys.ids, size, size, num_tokens, num_tokens, keys.output_id)
    return Footprint(whole, num_blocks, num_blocks, 0, num_tokens)
