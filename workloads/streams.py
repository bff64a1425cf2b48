"""Streams of random numbers, one for each component and independent of all others.

A stream is named, not numbered: a component that is added or draws more leaves the others as they
are. Equal seeds and names give equal numbers in every process and on every platform.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np


def seed_of(seed: int | np.random.SeedSequence, *names: str) -> np.random.SeedSequence:
    """The seed of the component called *names* under *seed*."""
    root = np.random.SeedSequence(seed) if isinstance(seed, int) else seed
    key = (*root.spawn_key, *(crc32(name.encode()) for name in names))
    return np.random.SeedSequence(root.entropy, spawn_key=key)


def stream(seed: int | np.random.SeedSequence, *names: str) -> np.random.Generator:
    """The random numbers of the component called *names*."""
    return np.random.Generator(np.random.PCG64(seed_of(seed, *names)))
