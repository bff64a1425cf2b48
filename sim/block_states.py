"""What every block of a small pool is at one moment: blank, cached, in use, shared.

Only managers with block ids (`reference`) can tell. A run of the engine notes it at every sample of
a pool of at most `MOST_BLOCKS`, as a text that fits into a column: the first id, a colon, and one
digit per block, an index of `STATES`.
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.cache import BlockManager
from sim.errors import ConfigError

STATES = ("blank", "cached", "in use", "shared")
BLANK, CACHED, IN_USE, SHARED = range(4)
MOST_BLOCKS = 256
COLUMN = "block_states"


def are_noted(manager: BlockManager) -> bool:
    """Whether *manager*, which is empty, has block ids, and few enough to be drawn."""
    first = next(iter(manager.free_blocks()), None)
    return manager.num_blocks <= MOST_BLOCKS and first is not None and first.block_id is not None


def block_states(manager: BlockManager, running: Iterable[int | str]) -> dict[int, int]:
    """The state of every block by its id; *running*: the requests that hold blocks.

    ConfigError if the manager has no block ids.
    """
    states: dict[int, int] = {}
    for block in manager.free_blocks():
        if block.block_id is None:
            kind = type(manager).__name__
            raise ConfigError(f"{kind} has no block ids to draw; take 'reference'")
        states[block.block_id] = BLANK if block.key is None else CACHED
    for name in running:
        for block in manager.table(name):
            assert block.block_id is not None
            states[block.block_id] = SHARED if block.ref_cnt > 1 else IN_USE
    return states


def written(states: dict[int, int]) -> str:
    """*states* as a text."""
    ids = sorted(states)
    return f"{ids[0]}:{''.join(str(states[i]) for i in ids)}"


def read(text: str) -> dict[int, int]:
    """What `written` wrote."""
    first, _, digits = text.partition(":")
    return {int(first) + i: int(digit) for i, digit in enumerate(digits)}
