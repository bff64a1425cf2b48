"""What a prompt contains, as a lazy sequence of block keys.

The key of a block identifies the block's tokens *and everything before them*: equal keys mean
equal KV. Hence two chains that agree at position i agree everywhere before it, so a whole run
of blocks is compared by its last key, and the common prefix of two chains is found by bisection.

Three kinds of chain exist: `TokenKeys` hashes real token ids as vLLM does, `ChunkKeys` and
`SegmentKeys` name content by ids (of equal or of varying length) without looking at tokens.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from sim.hashing import HashFunction, block_hash, none_hash

POSITION_BITS = 24
"""A key made of an id is `id << POSITION_BITS | position`: chains of up to 16 M blocks."""


class BlockKeys(ABC):
    """The keys of one request's full blocks: `len(keys)`, `keys[i]`; prompt first, then answer."""

    __slots__ = ()

    block_size: int

    @property
    def private_from(self) -> int | None:
        """Blocks from this one on belong to this request alone, whatever others hold; or None."""
        return None

    @property
    def shared(self) -> BlockKeys | None:
        """The same content as if nothing isolated it (salt, LoRA, tenant).

        None if nothing does, or if the keys do not know.
        """
        return None

    @abstractmethod
    def __len__(self) -> int:
        """How many full blocks the prompt and the whole answer have."""

    @abstractmethod
    def __getitem__(self, i: int, /) -> Hashable:
        """The key of block *i*; ids and hashes of other blocks never equal it by accident."""

    def common(self, other: BlockKeys, start: int, stop: int) -> int:
        """How many of the blocks *start* to *stop* - 1 are equal to *other*'s, from *start* on.

        Equal keys mean equal prefixes, so the last block is tried first and the rest is bisected.
        """
        if other is self or self[stop - 1] == other[stop - 1]:
            return stop - start
        low, high = start, stop - 1  # blocks before low are equal, block high differs
        while low < high:
            middle = (low + high) // 2
            if self[middle] == other[middle]:
                low = middle + 1
            else:
                high = middle
        return low - start

    def tokens(self, start: int, stop: int) -> list[int] | None:
        """The token ids of blocks *start* to *stop* - 1; None if only identities are known."""
        return None

    def extra_keys(self, start: int, stop: int) -> list[tuple[Any, ...] | None] | None:
        """What besides tokens entered the hash of each of these blocks (LoRA, images, salt)."""
        return None


class ChunkKeys(BlockKeys):
    """Content named by one id for every *chunk_size* prompt tokens, as traces publish it.

    Block j has the key (id of the chunk that holds the block's last token, j), so any block size
    works, finer or coarser than the chunk, and nothing is materialised. Blocks that hold answer
    tokens get *output_id*, an id that occurs nowhere else.

    *ids*: the prompt's chunk ids, `ceil(num_prompt_tokens / chunk_size)` integers >= 0.
    *num_tokens*: prompt and answer together.
    """

    __slots__ = ("block_size", "chunk_size", "ids", "num_prompt_tokens", "num_tokens", "output_id")

    def __init__(
        self,
        ids: Sequence[int],
        chunk_size: int,
        block_size: int,
        num_prompt_tokens: int,
        num_tokens: int,
        output_id: int,
    ) -> None:
        self.ids = ids
        self.chunk_size = chunk_size
        self.block_size = block_size
        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = num_tokens
        self.output_id = output_id

    @property
    def private_from(self) -> int:
        return self.num_prompt_tokens // self.block_size

    def __len__(self) -> int:
        return self.num_tokens // self.block_size

    def __getitem__(self, i: int, /) -> int:
        last_token = (i + 1) * self.block_size - 1
        if last_token < self.num_prompt_tokens:
            return self.ids[last_token // self.chunk_size] << POSITION_BITS | i
        return self.output_id << POSITION_BITS | i

    def common(self, other: BlockKeys, start: int, stop: int) -> int:
        """As for any keys; two chains of equal chunks are compared chunk by chunk."""
        if other is self:
            return stop - start
        if type(other) is not ChunkKeys or other.chunk_size != self.chunk_size:
            return super().common(other, start, stop)
        size, chunk = self.block_size, self.chunk_size
        # Answer tokens are nobody else's: only whole prompt blocks of both can be equal.
        stop = min(stop, self.num_prompt_tokens // size, other.num_prompt_tokens // size)
        ours, theirs = self.ids, other.ids
        high = (stop * size - 1) // chunk
        if stop <= start or ours[high] == theirs[high]:
            return max(0, stop - start)
        low = ((start + 1) * size - 1) // chunk
        while low < high:
            middle = (low + high) // 2
            if ours[middle] == theirs[middle]:
                low = middle + 1
            else:
                high = middle
        return max(0, low * chunk // size - start)


class SegmentKeys(BlockKeys):
    """Content as a sequence of segments, each an id and the token count at which it ends.

    Block j has the key (id of the segment that holds the block's last token, j). An id must
    therefore name the segment *and all segments before it*: two chains may share an id only if
    they are equal up to the end of the shorter of the two segments.

    *ids*: one integer per segment. *ends*: cumulative token counts, strictly increasing; the last
    one is the length of prompt and answer together. *num_shareable_tokens*: all ids of segments
    that end behind it are this request's alone; None if that is not known.
    """

    __slots__ = ("block_size", "ends", "ids", "num_shareable_tokens")

    def __init__(
        self,
        ids: Sequence[int],
        ends: Sequence[int],
        block_size: int,
        num_shareable_tokens: int | None = None,
    ) -> None:
        self.ids = ids
        self.ends = ends
        self.block_size = block_size
        self.num_shareable_tokens = num_shareable_tokens

    @property
    def private_from(self) -> int | None:
        shareable = self.num_shareable_tokens
        return None if shareable is None else shareable // self.block_size

    def __len__(self) -> int:
        return self.ends[-1] // self.block_size

    def __getitem__(self, i: int, /) -> int:
        end = (i + 1) * self.block_size
        return self.ids[bisect_left(self.ends, end)] << POSITION_BITS | i


@dataclass(frozen=True, slots=True)
class Image:
    """An image among the placeholder tokens: its content hash, first token and number of tokens."""

    identifier: str
    offset: int
    length: int


class TokenKeys(BlockKeys):
    """Content as token ids, hashed block by block as vLLM does (docs/fidelity.md, "Hashes").

    Every block hash covers the parent hash, the block's token ids and the extra keys: *lora*
    (name, path) on every block, each overlapping image with its offset in the block, *salt* on the
    first block only. Hashing is lazy; `append` adds sampled tokens.

    *hash_function*: "sha256", "sha256_cbor", "xxhash" or "xxhash_cbor".
    """

    __slots__ = ("_hashes", "_ids", "block_size", "hash_function", "images", "lora", "salt")

    def __init__(
        self,
        token_ids: Sequence[int],
        block_size: int,
        *,
        hash_function: HashFunction = "sha256",
        lora: tuple[str, str] | None = None,
        images: Sequence[Image] = (),
        salt: str | None = None,
    ) -> None:
        self._ids = list(map(index, token_ids))  # plain ints: NumPy's would hash differently
        self._hashes: list[bytes] = []
        self.block_size = block_size
        self.hash_function = hash_function
        # Interned: pickle must see one object per name, whoever made the strings.
        self.lora = (sys.intern(lora[0]), sys.intern(lora[1])) if lora else None
        self.images = [replace(i, identifier=sys.intern(i.identifier)) for i in images]
        self.salt = sys.intern(salt) if salt else None

    @property
    def shared(self) -> TokenKeys | None:
        if self.lora is None and self.salt is None:
            return None
        function, images = self.hash_function, self.images
        return TokenKeys(self._ids, self.block_size, hash_function=function, images=images)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add sampled tokens at the end."""
        self._ids.extend(map(index, token_ids))

    def __len__(self) -> int:
        return len(self._ids) // self.block_size

    def __getitem__(self, i: int, /) -> bytes:
        hashes = self._hashes
        if i < 0:
            raise IndexError(f"block {i}; blocks are counted from 0")
        while len(hashes) <= i:
            block = len(hashes)
            if block >= len(self):
                raise IndexError(f"block {i} of a chain with {len(self)} full blocks")
            parent = hashes[-1] if hashes else none_hash(self.hash_function)
            extra = self._extra(block)
            token_ids = tuple(self._block_tokens(block, block + 1))
            hashes.append(block_hash(self.hash_function, parent, token_ids, extra))
        return hashes[i]

    def tokens(self, start: int, stop: int) -> list[int]:
        return self._block_tokens(start, stop)

    def extra_keys(self, start: int, stop: int) -> list[tuple[Any, ...] | None]:
        return [self._extra(block) for block in range(start, stop)]

    def _block_tokens(self, start: int, stop: int) -> list[int]:
        return self._ids[start * self.block_size : stop * self.block_size]

    def _extra(self, block: int) -> tuple[Any, ...] | None:
        """The tagged extra keys of vLLM >= 0.33, in its order: LoRA, images, salt."""
        start, stop = block * self.block_size, (block + 1) * self.block_size
        extra: list[tuple[Any, ...]] = []
        if self.lora is not None:
            extra.append(("lora", *self.lora))
        for image in self.images:
            if stop > image.offset and start < image.offset + image.length:
                extra.append(("mm", image.identifier, image.offset - start))
        if self.salt is not None and block == 0:
            extra.append(("cache_salt", self.salt))
        return tuple(extra) or None
