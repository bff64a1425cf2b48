"""Every policy with a short name on real traffic: the same by blocks and by spans, below MIN."""

from __future__ import annotations

from itertools import islice

import pytest

from policies import POLICIES
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.analysis.bounds import bounds
from sim.replay import ReplayResult, replay
from sim.spec.build import build
from workloads.mooncake import Mooncake

NUM_BLOCKS = 1_000
HINTS = ("type", "turn", "tool", "priority", "steps_to_execution", "fixed_tokens", "ttl_s")
ARGUMENTS = {"learned": {"min_examples": 0}, "noisy_oracle": {"answers": False}}
ARGUMENTS |= {"belady": {"answers": False}}


@pytest.fixture(scope="module")
def requests(kvsim_data):
    """500 requests of the synthetic trace with made-up hints."""
    workload = Mooncake(kvsim_data / "mooncake" / "synthetic_trace.jsonl.xz", 512)
    found = list(islice(workload, 500))
    for number, request in enumerate(found):
        request.hints = dict.fromkeys(HINTS, number % 4)
    return found


@pytest.fixture(scope="module")
def optimum(requests):
    return bounds(requests, NUM_BLOCKS)


@pytest.mark.parametrize("victims", ["block", "leaf"])
@pytest.mark.parametrize("name", POLICIES)
def test_blocks_and_spans(name, victims, requests, optimum):
    """Equal hits, evictions and orphans; more hits than none, at most MIN; no orphan by leaves."""
    if name == "learned":
        pytest.importorskip("torch", reason="the extra `torch` is not installed")
    results: list[ReplayResult] = []
    for kind in (ReferenceBlockManager, VLLMBlockManager):
        known = {"num_blocks": NUM_BLOCKS, "block_size": 512, "seed": 0}
        spec = {"use": name, **ARGUMENTS.get(name, {})}
        policy = build("policy", spec, known=known)
        manager = kind(NUM_BLOCKS, 512, eviction=policy, null_block=False, victims=victims)
        if policy.is_offline:
            policy.prepare(requests)
        results.append(replay(manager, requests))
    assert results[0] == results[1]
    assert 0 < results[0].hit_blocks <= optimum.optimum
    if victims == "leaf":
        assert results[0].orphaned_blocks == 0
