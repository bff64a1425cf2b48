"""A prompt as the units that its trace or generator names: chunks, segments, or hashed blocks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple

from sim.keys import BlockKeys, ChunkKeys, SegmentKeys
from sim.request import Request
from workloads.scoped_keys import ScopedKeys


class Units(NamedTuple):
    """*names*, each of which names all units before it too, and the tokens at which they end."""

    names: Sequence[Hashable]
    ends: Sequence[int]


def units(request: Request) -> Units:
    """The named units of the prompt of *request*; what is private to it is left out.

    A partial last chunk counts if it has a name of its own (Mooncake). Segments that reach into the
    answer are no part of the prompt.
    """
    return _units(request.keys, request.num_prompt_tokens)


def _units(keys: BlockKeys, num_prompt: int) -> Units:
    if isinstance(keys, ScopedKeys):
        names, ends = _units(keys.keys, num_prompt)
        return Units([(keys.scope, name) for name in names], ends)
    if isinstance(keys, ChunkKeys):
        chunk, named = keys.chunk_size, min(keys.num_prompt_tokens, num_prompt)
        # What is named beyond the prompt is the answer; the chunk between the two is not counted.
        num = named // chunk if keys.num_prompt_tokens > num_prompt else -(-named // chunk)
        ends = list(range(chunk, num * chunk + 1, chunk))
        if ends:
            ends[-1] = min(ends[-1], named)
        return Units(keys.ids[:num], ends)
    if isinstance(keys, SegmentKeys):
        private = keys.num_shareable_tokens
        limit = num_prompt if private is None else min(num_prompt, private)
        num = next((i for i, end in enumerate(keys.ends) if end > limit), len(keys.ends))
        return Units(keys.ids[:num], keys.ends[:num])
    num = num_prompt // keys.block_size
    return Units([keys[i] for i in range(num)], list(accumulate(repeat(keys.block_size, num))))
