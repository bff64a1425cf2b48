"""Runs without Python's cycle collector.

A run keeps many small objects for long and makes no garbage cycles (tests/sim/test_garbage.py):
reference counting frees what ends, and the collector would only walk over what lives, again and
again (a tenth of the time of a replay).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_cycle_collection() -> Iterator[None]:
    """Pause the collector inside the block; afterwards it is as it was."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
