"""What defines the KV of every token: a request's content, independent of how blocks are hashed.

The KV of a position depends on all tokens up to it and on what else entered the model (LoRA,
images) or isolates tenants (salt). `content_of` reads that from a request, token by token, and
never from block hashes: a wrong hash must not excuse itself. `fingerprints` folds it into one
64-bit number per position; equal numbers mean equal KV, but for one chance in 2**64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sim.keys import BlockKeys, ChunkKeys, SegmentKeys, TokenKeys

Words = npt.NDArray[np.uint64]
Tokens = npt.NDArray[np.int64]


class Extra(NamedTuple):
    """What besides tokens defines the KV from *start* to *stop* - 1: *label*, and the place in it.

    A LoRA and a salt are on the first token alone: everything behind depends on it.
    """

    label: str
    start: int
    stop: int


class Content(NamedTuple):
    """The tokens of a prompt and its answer as far as they are known, and the extras."""

    tokens: Tokens
    extras: tuple[Extra, ...]


def content_of(keys: BlockKeys, num_tokens: int, owner: object) -> Content:
    """The first *num_tokens* tokens that the *keys* of the request *owner* stand for.

    Content that is named by ids gets one invented token per (id, position). Keys of an unknown kind
    are believed: each full block is content named by its key, and what fills none is *owner*'s own.
    ValueError if the tokens are not known.
    """
    if isinstance(keys, TokenKeys):
        known = keys.tokens(0, -(-num_tokens // keys.block_size))[:num_tokens]
        if len(known) < num_tokens:
            raise ValueError(f"{num_tokens} tokens are scheduled; the keys know {len(known)}")
        return Content(np.array(known, dtype=np.int64), _extras(keys))
    names = _names(keys, num_tokens, owner)
    words = scrambled(names ^ scrambled(np.arange(num_tokens, dtype=np.uint64)))
    return Content((words >> np.uint64(1)).astype(np.int64), ())


def _extras(keys: TokenKeys) -> tuple[Extra, ...]:
    found = [Extra(f"image {i.identifier}", i.offset, i.offset + i.length) for i in keys.images]
    if keys.lora is not None:
        found.append(Extra(f"lora {keys.lora[0]} {keys.lora[1]}", 0, 1))
    if keys.salt is not None:
        found.append(Extra(f"salt {keys.salt}", 0, 1))
    return tuple(found)


def _names(keys: BlockKeys, num_tokens: int, owner: object) -> Words:
    """The name of the content at each position."""
    positions = np.arange(num_tokens, dtype=np.int64)
    if isinstance(keys, SegmentKeys):
        return _words(keys.ids)[np.searchsorted(np.array(keys.ends), positions, side="right")]
    if isinstance(keys, ChunkKeys):
        chunks = np.where(positions < keys.num_prompt_tokens, positions // keys.chunk_size, -1)
        return _words([*keys.ids, keys.output_id])[chunks]
    num_full = min(len(keys), num_tokens // keys.block_size)
    full = [number(repr(keys[i])) for i in range(num_full)]
    own = np.full(num_tokens - num_full * keys.block_size, number(f"own {owner!r}"))
    return np.concatenate([np.repeat(_words(full), keys.block_size), _words(own)])


def _words(numbers: Iterable[int]) -> Words:
    return np.array([int(n) & 0xFFFF_FFFF_FFFF_FFFF for n in numbers], dtype=np.uint64)


def fingerprints(content: Content) -> Words:
    """One number per position: the hash of everything that defines its KV, all before included."""
    words = scrambled(content.tokens.astype(np.uint64))
    for label, start, stop in content.extras:
        places = np.arange(len(words[start:stop]), dtype=np.uint64)
        words[start:stop] ^= scrambled(np.uint64(number(label)) ^ scrambled(places))
    positions = np.arange(len(words), dtype=np.uint64)
    # A running sum of (position, token) hashes: equal only if all of them are.
    sums = np.cumsum(scrambled(words ^ scrambled(~positions)), dtype=np.uint64)
    return np.maximum(scrambled(sums), np.uint64(1))  # 0 stands for "never written"


def scrambled(words: Any) -> Words:
    """A bijection of 64-bit words that looks random (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):  # 64-bit words wrap around
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(words ^ (words >> np.uint64(31)), dtype=np.uint64)


def number(text: str) -> int:
    """*text* as a number below 2**63 that is the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
