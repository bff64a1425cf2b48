"""The queue-like policies decide the same block by block and by spans."""

from __future__ import annotations

from functools import partial

import pytest

from policies.arc import ARC
from policies.clock import Clock
from policies.fifo import FIFO
from policies.hyperbolic import Hyperbolic
from policies.lecar import LeCaR
from policies.lirs import LIRS
from policies.radix import RadixBlockManager
from policies.random_choice import Random
from policies.reference import ReferenceBlockManager
from policies.s3fifo import S3FIFO
from policies.sieve import Sieve
from policies.slru import SLRU
from policies.slru_sglang import ProtectedLRU
from policies.two_q import TwoQ
from policies.vllm import VLLMBlockManager
from policies.wtinylfu import WTinyLFU
from sim.cache import EvictionPolicy
from sim.checks.twins import Twins

POLICIES = {
    "fifo": FIFO,
    "clock": Clock,
    "sieve": Sieve,
    "s3fifo": S3FIFO,
    "s3fifo, AIBrix": lambda: S3FIFO(0.3, 0.9, 1),
    "slru": SLRU,
    "slru, SGLang": ProtectedLRU,
    "two_q": TwoQ,
    "arc": ARC,
    "arc, vLLM": lambda: ARC("vllm"),
    "lirs": LIRS,
    "wtinylfu": WTinyLFU,
    "lecar": LeCaR,
    "hyperbolic": Hyperbolic,
    "random": Random,
}


def single_blocks(name: str) -> EvictionPolicy:
    """The policy, as one that needs single blocks."""
    made = POLICIES[name]()
    made.max_span = 1
    return made


def run_program(name: str, seed: int) -> None:
    """Block by block and by spans: vLLM's pool with both free orders, by leaves, SGLang's tree."""
    mode = ("tail", "unhashed_first", "leaf", "radix")[seed % 4]
    if mode == "radix":
        makes = [
            lambda n, size, make=make: RadixBlockManager(
                n, size, eviction=make(), evict_whole_nodes=False
            )
            for make in (partial(single_blocks, name), POLICIES[name])
        ]
    else:
        options = {"victims": "leaf"} if mode == "leaf" else {"free_order": mode}
        makes = [
            lambda n, size, kind=kind: kind(n, size, eviction=POLICIES[name](), **options)
            for kind in (ReferenceBlockManager, VLLMBlockManager)
        ]
    Twins(*makes, seed).run(60)


@pytest.mark.parametrize("name", POLICIES)
def test_same_decisions_block_by_block_and_by_spans(name):
    """30 random programs: equal hits, refusals, evictions in order, tables and events."""
    for seed in range(30):
        run_program(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_same_decisions_in_many_programs(name):
    """270 more."""
    for seed in range(30, 300):
        run_program(name, seed)
