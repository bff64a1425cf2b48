"""One pass gives what a replay at every pool size gives."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from time import process_time

import numpy as np
import pytest

from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.analysis.mrc import HitCurve, Sums, lru_curve
from sim.analysis.shards import hot_blocks, sampled_lru_curve
from sim.cache import BlockManager
from sim.checks.letters import Letters
from sim.errors import ConfigError
from sim.footprint import Footprint, all_ids, prompt, with_answer
from sim.keys import ChunkKeys, SegmentKeys
from sim.replay import replay
from sim.request import Request
from workloads.mooncake import Mooncake
from workloads.shared_prefix import SharedPrefix

# Hit blocks of vLLM's block pool (new free order, prompt only and with answers; classic order, the
# same), engine convention: docs/optimum.md. MIN's are in tests/policies/test_belady.py.
VLLM_HITS = {
    ("conversation", 2_000): (15_942, 15_756, 15_645, 15_326),
    ("conversation", 5_859): (40_640, 39_780, 39_194, 38_218),
    ("conversation", 20_000): (84_689, 83_406, 82_935, 81_953),
    ("conversation", 50_000): (102_723, 102_226, 102_165, 101_895),
    ("synthetic", 2_000): (18_254, 18_216, 17_814, 17_735),
    ("synthetic", 5_859): (38_366, 38_220, 37_622, 37_565),
    ("synthetic", 20_000): (70_848, 70_462, 69_494, 69_345),
    ("synthetic", 50_000): (77_740, 77_740, 77_740, 77_740),
}
# Every id a block, whole paths may be hit.
ALL_IDS_HITS = {
    "conversation": {
        1_000: 12_847,
        2_000: 15_665,
        5_859: 39_258,
        10_000: 61_046,
        20_000: 83_035,
        50_000: 102_290,
        100_000: 104_924,
    },
    "synthetic": {
        1_000: 10_252,
        2_000: 17_839,
        5_859: 37_703,
        10_000: 51_669,
        20_000: 69_686,
    },
}
ORDERS = ("tail", "unhashed_first")


def trace(data: Path, name: str, block_size: int = 512, **options) -> Mooncake:
    return Mooncake(data / "mooncake" / f"{name}_trace.jsonl.xz", block_size, **options)


def replayed(requests, num_blocks: int, free_order: str, decode: bool = False) -> int:
    block_size = requests[0].keys.block_size
    manager: BlockManager = VLLMBlockManager(
        num_blocks, block_size, eviction=LRU(), null_block=False, free_order=free_order
    )
    return replay(manager, requests, decode=decode).hit_blocks


def texts(seed: int, num_requests: int = 25, whole_blocks: bool = False) -> list[Request]:
    """Prompts that continue earlier prompts and answers; some may fill their last block."""
    rng = np.random.default_rng(seed)
    block_size = int(rng.integers(2, 4))
    seen, requests = [""], []
    for i in range(num_requests):
        base = seen[rng.integers(len(seen))]
        text = base[: rng.integers(len(base) + 1)]
        text += "".join(rng.choice(list("ab"), size=rng.integers(1, 4 * block_size)))
        if not whole_blocks and len(text) % block_size == 0:
            text += "a"
        answer = chr(1_000 + i) * int(rng.integers(1, 2 * block_size))
        seen.append(text + answer)
        requests.append(Request(i, Letters(text + answer, block_size), len(text), len(answer)))
    return requests


def different(requests, convention, free_order: str, decode: bool) -> list[int]:
    """The pool sizes at which a replay does not hit what the curve says."""
    curve = lru_curve(requests, convention, free_order=free_order)
    return [
        size
        for size in range(max(1, curve.min_num_blocks), curve.enough + 3)
        if replayed(requests, size, free_order, decode) != curve.hit_blocks(size)
    ]


def test_by_hand() -> None:
    """Blocks of 1 token: A B, C, A B again. Before the third request the list is C A B.

    A is second and B third, so A B hits 0 blocks in a pool of 1, A in a pool of 2, both in one of
    3. A further token of each prompt may not be hit and is left out by the footprint.
    """
    keys = [SegmentKeys(ids, [1, 2, 3][: len(ids)], 1) for ids in ([1, 2, 9], [3, 8], [1, 2, 7])]
    requests = [Request(i, one, len(one), 1) for i, one in enumerate(keys)]

    def without_last(request: Request) -> Footprint:
        num = len(request.keys) - 1
        return Footprint(request.keys, num, num, 0, num)

    curve = lru_curve(requests, without_last)
    assert [curve.hit_blocks(size) for size in range(5)] == [0, 0, 1, 2, 2]
    assert (curve.unbounded, curve.enough, curve.min_num_blocks) == (2, 3, 2)
    assert (curve.query_blocks, curve.query_tokens) == (5, 5)
    assert [curve.size_for(rate) for rate in (0.1, 0.2, 0.3, 0.4, 0.5)] == [2, 2, 3, 3, None]


@pytest.mark.parametrize(("free_order", "decode"), [*product(ORDERS, (False, True))])
def test_equals_a_replay_at_every_pool_size(free_order: str, decode: bool) -> None:
    """80 random workloads whose prompts end inside a block: no difference at any size."""
    convention = with_answer if decode else prompt
    for seed in range(80):
        assert different(texts(seed), convention, free_order, decode) == [], seed


def test_second_copies_are_the_only_exception() -> None:
    """Where a prompt fills its last block, the curve differs only if it says `num_twice`.

    The last token is never hit, so such a block is computed a second time; vLLM keeps both copies.
    """
    num_exact = num_twice = 0
    for seed in range(200):
        requests = texts(seed, 12, whole_blocks=True)
        if lru_curve(requests).num_twice:
            num_twice += 1
            continue
        num_exact += 1
        assert different(requests, prompt, "tail", False) == [], seed
        assert different(requests, prompt, "unhashed_first", False) == [], seed
    assert num_exact > 20
    assert num_twice > 20


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Touched one by one, deepest first, the path itself is in the way of its upper blocks."""
    behind = Sums.behind

    def inflated(self: Sums, i: int) -> int:
        return behind(self, i) + 1

    monkeypatch.setattr(Sums, "behind", inflated)
    assert any(different(texts(seed), prompt, "tail", False) for seed in range(5))


@pytest.mark.parametrize("free_order", ORDERS)
def test_equals_the_reference_manager(free_order) -> None:
    """Synthetic traffic at 16 tokens a block, block by block: the same hits at four sizes."""
    requests = [r for r in SharedPrefix(num_requests=400, seed=3) if r.num_prompt_tokens % 16]
    curve = lru_curve(requests, free_order=free_order)
    for size in (curve.min_num_blocks, 1_000, 3_000, curve.enough):
        manager = ReferenceBlockManager(size, 16, null_block=False, free_order=free_order)
        assert replay(manager, requests).hit_blocks == curve.hit_blocks(size)


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_vllm_hits_of_the_mooncake_traces(kvsim_data: Path, name: str) -> None:
    """All 32 hit counts of vLLM's own block pool, from four passes over each trace."""
    workload = trace(kvsim_data, name)
    curves = [
        lru_curve(workload, convention, free_order=order)
        for order, convention in product(("unhashed_first", "tail"), (prompt, with_answer))
    ]
    for (of, size), hits in VLLM_HITS.items():
        if of == name:
            assert tuple(curve.hit_blocks(size) for curve in curves) == hits


@pytest.mark.parametrize(
    ("name", "unbounded", "rate"),
    [("conversation", 105_710, 0.36641), ("synthetic", 77_953, 0.63960)],
)
def test_every_id_a_block(kvsim_data: Path, name: str, unbounded: int, rate: float) -> None:
    """The published counts of both traces with their partial last blocks, and the limit."""
    curve = lru_curve(trace(kvsim_data, name), all_ids)
    assert {size: curve.hit_blocks(size) for size in ALL_IDS_HITS[name]} == ALL_IDS_HITS[name]
    assert curve.unbounded == unbounded
    assert curve.hit_rate(10**9) == pytest.approx(rate, abs=1e-5)


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_every_pool_size_of_the_first_requests(kvsim_data: Path, name: str) -> None:
    """The first 80 requests of both traces, 512 tokens a block: no difference at any size."""
    requests = list(trace(kvsim_data, name, limit=80))
    assert different(requests, prompt, "unhashed_first", False) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "block_size", "num_sizes"),
    [("conversation", 24_576, 1_195), ("synthetic", 16_384, 761)],
)
def test_every_pool_size_of_the_whole_traces(
    kvsim_data: Path, name: str, block_size: int, num_sizes: int
) -> None:
    """Both traces in full, in large blocks so that there are few sizes: no difference at any."""
    requests = list(trace(kvsim_data, name, block_size))
    curve = lru_curve(requests, free_order="unhashed_first")
    assert curve.enough + 3 - curve.min_num_blocks == num_sizes
    assert different(requests, prompt, "unhashed_first", False) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_16_tokens_a_block(kvsim_data: Path, name: str) -> None:
    """At the engines' usual block size: within the few blocks that vLLM holds twice.

    7 and 11 blocks are computed twice; a replay hits at most that many of millions fewer.
    """
    requests = list(trace(kvsim_data, name, 16))
    curve = lru_curve(requests, free_order="unhashed_first")
    assert curve.num_twice == {"conversation": 7, "synthetic": 11}[name]
    for size in np.geomspace(curve.min_num_blocks, curve.enough, 8).astype(int):
        hits = replayed(requests, int(size), "unhashed_first")
        assert 0 <= curve.hit_blocks(int(size)) - hits <= curve.num_twice


@pytest.mark.slow
def test_costs_less_than_three_replays(kvsim_data: Path) -> None:
    """All pool sizes cost about as much CPU time as one replay by spans, at 16 tokens a block."""
    workload = trace(kvsim_data, "conversation", 16)
    ratios = []
    for _ in range(5):
        start = process_time()
        lru_curve(workload)
        seconds = process_time() - start
        manager = VLLMBlockManager(187_488, 16, eviction=LRU())
        ratios.append(seconds / replay(manager, workload).seconds)
    assert min(ratios) < 3


def test_the_curve_never_falls(kvsim_data: Path) -> None:
    """LRU is a stack algorithm here: a larger pool never hits less."""
    curve = lru_curve(trace(kvsim_data, "synthetic"))
    assert (np.diff(curve.hits) >= 0).all()
    assert (np.diff(curve.corners) > 0).all()


def test_nothing_to_serve() -> None:
    """An empty workload has an empty curve."""
    curve = lru_curve([])
    assert (curve.hit_blocks(10), curve.unbounded, curve.hit_rate(10)) == (0, 0, 0.0)
    assert curve.size_for(0.1) is None


def test_all_ids_needs_the_blocks_of_the_trace() -> None:
    """Blocks of another size than the ids' have no ids: one line that says so."""
    request = Request(0, ChunkKeys([1], 512, 16, 20, 21, -1), 20, 1)
    with pytest.raises(ConfigError, match="block_size is 16; it must be the number of tokens"):
        lru_curve([request], all_ids)


# Sampling


def error(sample: HitCurve, exact: HitCurve) -> float:
    """The mean error of the hit rate in blocks over eight pool sizes."""
    sizes = (1_000, 2_000, 5_859, 10_000, 20_000, 30_000, 50_000, 100_000)
    missed = [abs(sample.hit_blocks(size) - exact.hit_blocks(size)) for size in sizes]
    return float(np.mean(missed)) / exact.query_blocks


@pytest.mark.parametrize("free_order", ORDERS)
def test_a_sample_of_everything_is_exact(free_order) -> None:
    """One block in one: the same curve, found block by block."""
    for seed in range(30):
        requests = texts(seed, whole_blocks=True)
        exact = lru_curve(requests, free_order=free_order)
        sample = sampled_lru_curve(requests, 1, free_order=free_order)
        sizes = range(exact.enough + 3)
        assert [sample.hit_blocks(n) for n in sizes] == [exact.hit_blocks(n) for n in sizes]
        assert sample.query_tokens == exact.query_tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_one_block_in_ten(kvsim_data: Path, name: str) -> None:
    """A tenth of the blocks is enough for the hit rate to within 1 point, whatever the seed."""
    workload = list(trace(kvsim_data, name))
    exact = lru_curve(workload, all_ids)
    errors = [error(sampled_lru_curve(workload, 10, all_ids, seed=s), exact) for s in range(3)]
    assert max(errors) < 0.01


def test_the_root_that_all_share_is_hot(kvsim_data: Path) -> None:
    """Every conversation starts with the same block: 4.2 % of all uses; nothing else is hot."""
    workload = trace(kvsim_data, "conversation")
    first = next(iter(workload)).keys[0]
    assert hot_blocks(workload, all_ids, 0.001 * 288_500) == {first}
