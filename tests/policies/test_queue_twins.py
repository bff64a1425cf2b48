"""The queue-like policies decide the same block by block and by spans."""

from __future__ import annotations

import pytest

from policies.arc import ARC
from policies.clock import Clock
from policies.fifo import FIFO
from policies.hyperbolic import Hyperbolic
from policies.lecar import LeCaR
from policies.lirs import LIRS
from policies.random_choice import Random
from policies.reference import ReferenceBlockManager
from policies.s3fifo import S3FIFO
from policies.sieve import Sieve
from policies.slru import SLRU
from policies.slru_sglang import ProtectedLRU
from policies.two_q import TwoQ
from policies.vllm import VLLMBlockManager
from policies.wtinylfu import WTinyLFU
from sim.twins import Twins

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


def run_program(name: str, seed: int) -> None:
    order = ("tail", "unhashed_first")[seed % 2]
    Twins(
        lambda n, size: ReferenceBlockManager(n, size, eviction=POLICIES[name](), free_order=order),
        lambda n, size: VLLMBlockManager(n, size, eviction=POLICIES[name](), free_order=order),
        seed,
    ).run(60)


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
