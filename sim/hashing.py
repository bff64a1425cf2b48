"""The hash of one full block, byte for byte as vLLM computes it.

hash = H(parent hash, token ids, extra keys or None), H over Python's pickle (protocol 5) or over
canonical CBOR of that triple. Nothing here depends on PYTHONHASHSEED or on the process, so equal
content has equal keys everywhere. Source: vLLM 0.33.0; equal to the 350 recorded vectors
(tests/sim/test_hashing.py).

Differs from vLLM: without PYTHONHASHSEED vLLM seeds the xxhash pair at random in each process;
here all four functions start from the same fixed seed.
"""

from __future__ import annotations

import hashlib
import pickle
from functools import lru_cache
from typing import Any, Literal, get_args

from sim.errors import ConfigError

HashFunction = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]
HASH_FUNCTIONS: tuple[str, ...] = get_args(HashFunction)
NONE_SEED = "vllm-none-hash"


def block_hash(
    function: HashFunction,
    parent: bytes,
    token_ids: tuple[int, ...],
    extra_keys: tuple[Any, ...] | None,
) -> bytes:
    """The hash of a block: 32 bytes for the sha256 pair, 16 for the xxhash pair."""
    return _digest(function, (parent, token_ids, extra_keys))


@lru_cache
def none_hash(function: HashFunction, seed: str = NONE_SEED) -> bytes:
    """The parent of a first block: the hash of *seed* (vLLM uses PYTHONHASHSEED if it is set)."""
    return _digest(function, seed)


def _digest(function: HashFunction, value: Any) -> bytes:
    if function not in HASH_FUNCTIONS:
        raise ConfigError(f"hash function {function!r} is unknown; use {', '.join(HASH_FUNCTIONS)}")
    algorithm, _, encoding = function.partition("_")
    data = _cbor(value) if encoding else pickle.dumps(value, protocol=5)
    return hashlib.sha256(data).digest() if algorithm == "sha256" else _xxh3_128(data)


def _cbor(value: Any) -> bytes:
    try:
        import cbor2
    except ImportError:
        raise ConfigError("the *_cbor hashes need cbor2; pip install 'kvsim[hashing]'") from None
    return cbor2.dumps(value, canonical=True)


def _xxh3_128(data: bytes) -> bytes:
    try:
        import xxhash
    except ImportError:
        raise ConfigError("the xxhash hashes need xxhash; pip install 'kvsim[hashing]'") from None
    return xxhash.xxh3_128_digest(data)
