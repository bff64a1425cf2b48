"""L0 at the verbs: what a broken manager does is found by the request's next verb."""

from __future__ import annotations

import pytest

from gpu_backend.check import check_trace
from gpu_backend.tracing import TracedScheduler, Tracer, traced_run
from gpu_backend.watch import watch, watch_every
from policies.reference import ReferenceBlockManager
from sim.cache import Hit
from sim.engine import Engine
from sim.golden import replay_file
from sim.golden import scheduler as golden
from sim.keys import TokenKeys
from sim.latency import Constant
from sim.request import Request
from sim.scheduler_config import SchedulerConfig


def request(name, tokens, **content):
    return Request(name, TokenKeys([*tokens, 99], 4, **content), len(tokens), 1)


def admit(manager, one):
    hit = manager.get_computed_blocks(one)
    given = manager.allocate_slots(one, one.num_tokens - hit.num_tokens, hit)
    assert given is not None
    one.num_computed_tokens = one.num_tokens
    return hit.num_tokens


class IgnoresSalt(ReferenceBlockManager):
    def get_computed_blocks(self, request):
        keys = request.keys
        request.keys = TokenKeys(keys.tokens(0, len(keys) + 1), 4)
        try:
            return super().get_computed_blocks(request)
        finally:
            request.keys = keys


class ForgetsToCopy(ReferenceBlockManager):
    """Hits a whole prompt and computes its last token in the shared block."""

    def get_computed_blocks(self, request):
        hit = super().get_computed_blocks(request)
        block = self.cached.get(request.keys[1])
        return hit if block is None else Hit(7, [*hit.spans, block])


class HandsOutTwice(ReferenceBlockManager):
    def free(self, request, *, now=0.0):
        for block in self.tables[request.request_id]:
            block.ref_cnt = 1
        super().free(request, now=now)


def test_a_right_manager_passes():
    """Hits, a block that decode fills, evictions and a return; all reads are counted."""
    manager = ReferenceBlockManager(6, 4)
    shadow = watch(manager)
    for i in range(5):
        one = request(i, [*range(8), i])
        assert admit(manager, one) == (8 if i else 0)
        manager.free(one)
    assert shadow.num_reads == 4 * 8


def test_another_tenants_block_is_found():
    """Its numbers would be the same; it must not be read all the same."""
    manager = IgnoresSalt(10, 4)
    watch(manager)
    admit(manager, request("a", range(9)))
    with pytest.raises(AssertionError, match=r"request b counts position 0 .* holds other content"):
        admit(manager, request("b", range(9), salt="secret"))


def test_a_write_into_a_shared_block_is_found():
    """Two requests hold the block that the second writes its last token into."""
    manager = ForgetsToCopy(10, 4)
    watch(manager)
    admit(manager, request("a", range(8)))
    with pytest.raises(AssertionError, match="b writes into block 2, which 2 requests hold"):
        admit(manager, request("b", range(8)))


def test_a_block_freed_while_shared_is_found():
    """b still holds a's blocks when c gets them; b's next verb reads them."""
    manager = HandsOutTwice(4, 4)
    watch(manager)
    a, b = request("a", range(8)), Request("b", TokenKeys(range(20), 4), 10, 10)
    admit(manager, a)
    admit(manager, b)
    manager.free(a)
    admit(manager, request("c", range(50, 56)))
    b.num_output_tokens = 1
    with pytest.raises(AssertionError, match="request b counts position"):
        manager.allocate_slots(b, 1)


def test_every_manager_made_from_now_on(monkeypatch):
    """Classes derived from it too, until it is undone."""
    watch_every(monkeypatch.setattr, ReferenceBlockManager)
    assert "allocate_slots" in vars(IgnoresSalt(10, 4))
    monkeypatch.undo()
    assert "allocate_slots" not in vars(ReferenceBlockManager(10, 4))


def test_recorded_schedules_step_by_step(monkeypatch, goldens):
    """In the schedules recorded from real vLLM every read is of the request's own content."""
    tracers = []

    def make(manager, config):
        tracers.append(Tracer(manager))
        return TracedScheduler(manager, config, tracers[-1])

    monkeypatch.setattr(golden, "Scheduler", make)
    paths = [path for letter in "tse" for path in sorted(goldens.rglob(f"{letter}*.json"))]
    num_reads = 0
    for path in paths:
        tracers.clear()
        if replay_file(path).status == "same":
            report = check_trace(tracers[0].trace())
            assert report.findings == [], path
            num_reads += report.num_reads
    assert num_reads > 10_000


def test_a_flaw_of_vllms_is_found():
    """Under priority scheduling a victim's blocks stay findable though no step computed them.

    V computes 8 tokens per step. In the third it is given the blocks 7 and 8, then R, which matters
    more, needs one: V gives all back, R takes block 8. When V returns it hits block 7, which was
    stored and never written.
    """
    victim = Request("V", TokenKeys(range(29), 4), 28, 1, priority=5)
    rival = Request("R", TokenKeys(range(50, 60), 4), 8, 2, arrival_time=0.5, priority=0)
    config = SchedulerConfig(policy="priority", long_prefill_token_threshold=8, rules="0.23")
    engine = Engine(ReferenceBlockManager(9, 4), latency=Constant(1.0), scheduler=config)
    report = check_trace(traced_run(engine, [victim, rival]))
    assert report.counts == {"L0": 1}
    (found,) = report.findings
    assert (found.request, found.position, found.block) == (0, 16, 7)
    assert found.message == "the slot is unwritten"
