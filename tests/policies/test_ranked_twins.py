"""Every policy decides the same block by block and by spans, whatever is thrown at it."""

from __future__ import annotations

import pytest

from policies import POLICIES
from policies.radix import RadixBlockManager
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.checks.twins import Twins
from sim.spec.names import find
from sim.spec.place import Place

NUM_PROGRAMS = 300
ARGUMENTS = {  # such that every rule is at work in programs of 60 operations, one a second
    "continuum": {"min_samples": 3, "queueing_s": 8.0},
    "lru_k": {"history": 0.7},
    "queue_lookahead": {"window": 3},
    "tlru": {"threshold": 6, "next_prompt_estimate": 2},
    "workload_aware": {"life_s": 5.0, "first_guess_s": 3.0},
}
NAMES = (
    *("mru", "filo", "lfu", "lfuda", "lru_k", "gdsf", "pgdsf", "length_aware", "freq_cost"),
    *("priority", "ttl", "tlru", "continuum", "kvflow", "workload_aware", "queue_lookahead"),
    "rlt",
)
MODES = ("tail", "unhashed_first", "leaf", "radix")


class Hinted(Twins):
    """Programs whose requests carry hints and sessions, and whose policies see who waits."""

    def _new(self):
        num_before = self.num_requests
        super()._new()
        if self.num_requests == num_before:
            return
        request = self.requests[-1]
        draw = self.rng.integers
        request.arrival_time = self.now
        request.max_tokens = 5
        request.session = int(draw(3))
        request.hints = {
            "priority": (10, 35, 80)[draw(3)],
            "duration_s": (None, 2.0, 7.0)[draw(3)],
            "ttl_s": float(draw(11)),
            "type": "ab"[draw(2)],
            "turn": int(draw(4)),
            "tool": (None, "x", "y")[draw(3)],
            "steps_to_execution": int(draw(6)),
            "fixed_tokens": int(draw(9)),
        }

    def _do(self, operation):
        for manager in self.managers:
            manager.policy.waiting = [r for r in self.requests if not r.num_computed_tokens]
        super()._do(operation)


def policy(name, *, max_span=None):
    made = find("policy", name, Place())
    if max_span:
        made = type(made.__name__, (made,), {"max_span": max_span})
    return made(**ARGUMENTS.get(name, {}))


def pair(name, mode):
    """The same policy block by block, and by spans."""
    if mode == "radix":
        options = {"evict_whole_nodes": False}
        return (
            lambda n, size: RadixBlockManager(
                n, size, eviction=policy(name, max_span=1), **options
            ),
            lambda n, size: RadixBlockManager(n, size, eviction=policy(name), **options),
        )
    options = {"victims": "leaf"} if mode == "leaf" else {"free_order": mode}
    return (
        lambda n, size: ReferenceBlockManager(n, size, eviction=policy(name), **options),
        lambda n, size: VLLMBlockManager(n, size, eviction=policy(name), **options),
    )


def run_programs(name, mode, seeds):
    for seed in seeds:
        Hinted(*pair(name, mode), seed).run(60)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_same_decisions(name, mode):
    """Hits, refusals, evictions, tables and events are equal in a few programs."""
    run_programs(name, mode, range(6))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_same_decisions_in_many_programs(name, mode):
    """... and in 300 for every kind of manager."""
    run_programs(name, mode, range(6, NUM_PROGRAMS))


def test_the_names_exist():
    """All policies of this file are registered."""
    assert set(NAMES) <= set(POLICIES)


@pytest.mark.parametrize(
    ("name", "method", "broken"),
    [
        ("lfu", "split", lambda self, upper, lower: setattr(upper, "note", None)),
        ("tlru", "step", lambda self, span: (span.note > span.start, span.num_blocks)),
        ("mru", "_tick", lambda self, *_: setattr(self, "moment", self.moment + 1)),
    ],
)
def test_a_broken_policy_is_noticed(monkeypatch, name, method, broken):
    """The comparison can fail: a rule that is not the same for all blocks of a span is found."""
    monkeypatch.setattr(find("policy", name, Place()), method, broken)
    with pytest.raises((AssertionError, KeyError, AttributeError)):
        run_programs(name, "tail", range(60))
