from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.keys import TokenKeys
from sim.request import Request
from sim.usage import usage

MANAGERS = [ReferenceBlockManager, VLLMBlockManager]


def started(manager: Any, request_id: int, tokens: list[int]) -> Request:
    request = Request(request_id, TokenKeys(tokens, manager.block_size), len(tokens), 4)
    hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, len(tokens) - hit.num_tokens, hit) is not None
    request.num_computed_tokens = len(tokens)
    return request


@pytest.mark.parametrize("make", MANAGERS)
def test_blocks_tokens_and_fill(make: Any) -> None:
    """Case L5: twice 17 tokens in 8 blocks of 16: 4/8 blocks, 34/128 slots, 34/64 filled."""
    manager = make(8, 16, null_block=False)
    running = [started(manager, i, list(range(100 * i, 100 * i + 17))) for i in (1, 2)]
    found = usage(manager, running)
    assert (found.blocks, found.tokens, found.fill) == (0.5, 34 / 128, 34 / 64)


@pytest.mark.parametrize("make", MANAGERS)
def test_shared_tokens_count_once(make: Any) -> None:
    """The same 17 tokens twice: one block is shared, so 18 slots of 3 blocks are filled."""
    manager = make(8, 16, null_block=False)
    running = [started(manager, i, list(range(17))) for i in (1, 2)]
    found = usage(manager, running)
    assert (found.blocks, found.tokens, found.fill) == (3 / 8, 18 / 128, 18 / 48)


@pytest.mark.parametrize("make", MANAGERS)
def test_an_idle_pool(make: Any) -> None:
    """Cached content is no usage; nothing held has no fill."""
    manager = make(8, 16, null_block=False)
    manager.free(started(manager, 1, list(range(40))))
    found = usage(manager, [])
    assert (found.blocks, found.tokens) == (0.0, 0.0)
    assert isnan(found.fill)
