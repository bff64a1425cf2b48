"""Each bug on purpose is found by the checks without tensors that should find it."""

from __future__ import annotations

import pytest

from gpu_backend.check import check_trace
from gpu_backend.mutants import MUTANTS, Mutant

LAYERS = {"metadata", "pool", "L0"}


@pytest.mark.parametrize("free_order", ["tail", "unhashed_first"])
@pytest.mark.parametrize("name", MUTANTS)
def test_what_should_find_it_finds_it(name, free_order):
    """In both free orders; and what cannot see it does not pretend to."""
    mutant = MUTANTS[name]
    trace = mutant.trace(num_blocks=60, free_order=free_order)
    seen = set(check_trace(trace, tamper=mutant.tamper).counts)
    assert mutant.found_by & LAYERS <= seen
    assert not seen & mutant.blind


def test_without_a_bug_nothing_is_found():
    """The same traffic, unbroken."""
    assert check_trace(Mutant("nothing", frozenset()).trace(num_blocks=60)).is_clean


def test_every_layer_is_tried():
    """No layer is without a bug that it must find."""
    tried = frozenset[str]().union(*(mutant.found_by for mutant in MUTANTS.values()))
    assert tried == LAYERS | {"L1 output", "L1 KV"}
