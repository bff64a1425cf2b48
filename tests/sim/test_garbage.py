"""Runs make no garbage that only the cycle collector could free."""

from __future__ import annotations

import gc

import pytest

from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.engine import Engine
from sim.garbage import no_cycle_collection
from sim.replay import replay
from workloads.shared_prefix import SharedPrefix


@pytest.mark.parametrize("manager", [ReferenceBlockManager, VLLMBlockManager])
def test_a_run_leaves_no_cycles_behind(manager):
    """Evicted nodes, ended requests and past events are all freed by reference counting."""
    workload = SharedPrefix(num_requests=400, seed=1)
    pools = [manager(800, 16), manager(800, 16)]
    gc.collect()
    with no_cycle_collection():
        replay(pools[0], workload)
        in_replay = gc.collect()
        Engine(pools[1]).run(workload)
        in_engine = gc.collect()
    assert pools[0].num_evicted_blocks > 1000
    assert in_replay < 50
    assert in_engine < 200  # SimPy's environment itself, not one per step or request


def test_the_collector_is_left_as_it_was():
    """Also after an error, and if it was off before."""

    @no_cycle_collection()
    def fail():
        assert not gc.isenabled()
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()
    gc.disable()
    with no_cycle_collection():
        pass
    assert not gc.isenabled()
    gc.enable()
