"""The null manager counts blocks and nothing else."""

from __future__ import annotations

import pytest

from policies.uncached import UncachedBlockManager
from policies.vllm import VLLMBlockManager
from sim.engine import Engine
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.latency import Constant
from sim.replay import replay
from sim.request import Request


def test_nothing_is_ever_hit(serving):
    """The same prompt again and again is computed again and again."""
    manager = UncachedBlockManager(9, 4)
    serve = serving(manager)
    for _ in range(3):
        assert serve.run(serve.prompt(range(17), num_outputs=3)) == 0
        assert (manager.num_free_blocks, manager.num_cached_blocks, manager.usage) == (8, 0, 0.0)
    assert manager.num_evicted_blocks == 0


def test_growing_adds_the_difference(serving):
    """Case C7: 100 tokens are 7 blocks of 16, 200 are 13; then the last block fills up."""
    manager = UncachedBlockManager(15, 16)
    serve = serving(manager)
    request = serve.prompt(range(200), num_outputs=20)
    serve.admit(request, 100)
    assert manager.num_free_blocks == 14 - 7
    assert manager.allocate_slots(request, 100).num_new_blocks == 6
    request.num_computed_tokens = 200
    for _ in range(8):
        assert serve.decode(request)
    assert len(manager.table(request.request_id)) == 13
    assert serve.decode(request)
    assert len(manager.table(request.request_id)) == 14
    manager.check()


def test_refusals(serving):
    """No room, none for the whole prompt, or only reserved blocks: None, and nothing changes."""
    manager = UncachedBlockManager(4, 4, null_block=False)
    serve = serving(manager)
    serve.admit(serve.prompt(range(8)))
    assert serve.admit(serve.prompt(range(9))) is None
    assert serve.admit(serve.prompt(range(9)), 4, full_sequence_must_fit=True) is None
    assert serve.admit(serve.prompt(range(4)), reserved_blocks=2) is None
    assert serve.admit(serve.prompt(range(8)), num_lookahead_tokens=1) is None
    assert (manager.num_free_blocks, manager.usage) == (2, 0.5)
    assert serve.admit(serve.prompt(range(9)), 4) == 0


def test_reset_waits_for_running_requests(serving):
    """Case C10: there is nothing to forget, but a reset under way is refused all the same."""
    manager = UncachedBlockManager(9, 4)
    serve = serving(manager)
    request = serve.prompt(range(8))
    serve.admit(request)
    assert not manager.reset_prefix_cache()
    manager.free(request)
    assert manager.reset_prefix_cache()


def test_same_run_as_vllm_with_caching_off():
    """The baseline is vLLM with `enable_caching: false`: engine and replay agree in everything."""
    requests = [
        Request(i, SegmentKeys([1, 10 + i], [20, 30 + i], 4), 24 + i, 6, arrival_time=i / 2)
        for i in range(12)
    ]
    records, replays = [], []
    for manager_class, options in (
        (UncachedBlockManager, {}),
        (VLLMBlockManager, {"enable_caching": False}),
    ):
        for macro_steps in (False, True):
            manager = manager_class(24, 4, **options)
            engine = Engine(manager, latency=Constant(0.5), macro_steps=macro_steps)
            records.append(engine.run(requests))
        replays.append(replay(manager_class(24, 4, **options), requests, decode=True))
    assert all(record == records[0] for record in records)
    assert records[0].totals["num_preemptions"] > 0
    assert replays[0] == replays[1]
    assert replays[0].hit_tokens == 0


def test_a_pool_that_can_hold_nothing_is_refused():
    """One block of two is the null block; a pool of the null block alone is a ConfigError."""
    assert UncachedBlockManager(2).num_blocks == 1
    assert UncachedBlockManager(1, null_block=False).num_blocks == 1
    with pytest.raises(ConfigError, match="num_blocks is 1; it must be at least 2"):
        UncachedBlockManager(1)
