from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from policies.fifo import FIFO
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.cache import BlockManager
from sim.errors import ConfigError
from sim.events import KVEvent
from sim.keys import ChunkKeys, SegmentKeys, TokenKeys
from sim.replay import ReplayResult, replay
from sim.request import Request
from workloads.mooncake import Mooncake
from workloads.shared_prefix import SharedPrefix

FreeOrder = Literal["tail", "unhashed_first"]
Count = dict[tuple[str, int], tuple[int, int, int, int]]

# Hit blocks of real vLLM's block pool at 512 tokens a block, C usable blocks, one request at a
# time: new free order prompt only and with answers, then the same in the classic free order.
VLLM_HITS: Count = {
    ("conversation", 2_000): (15_942, 15_756, 15_645, 15_326),
    ("conversation", 5_859): (40_640, 39_780, 39_194, 38_218),
    ("conversation", 20_000): (84_689, 83_406, 82_935, 81_953),
    ("conversation", 50_000): (102_723, 102_226, 102_165, 101_895),
    ("synthetic", 2_000): (18_254, 18_216, 17_814, 17_735),
    ("synthetic", 5_859): (38_366, 38_220, 37_622, 37_565),
    ("synthetic", 20_000): (70_848, 70_462, 69_494, 69_345),
    ("synthetic", 50_000): (77_740, 77_740, 77_740, 77_740),
}

# Real vLLM's hit rates on the conversation trace at 512 tokens a block: num_blocks with the null
# block, new order in tokens and in full blocks, classic order in tokens.
VLLM_RATES = [
    (1_000, 0.0459, 0.0470, 0.0454),
    (10_000, 0.2192, 0.2242, 0.2156),
    (30_000, 0.3371, 0.3448, 0.3319),
    (50_000, 0.3632, 0.3715, 0.3613),
    (100_000, 0.3710, 0.3795, 0.3706),
]


def prompt(request_id: int, num_tokens: int, max_tokens: int = 1, first: int = 0) -> Request:
    """Tokens *first*, *first* + 1, ... in blocks of 4."""
    tokens = range(first, first + num_tokens)
    return Request(request_id, TokenKeys(tokens, 4), num_tokens, max_tokens)


def trace(data: Path, name: str, block_size: int = 512) -> Mooncake:
    return Mooncake(data / "mooncake" / f"{name}_trace.jsonl.xz", block_size)


def rounded(rate: float | None) -> float:
    assert rate is not None
    return round(rate, 4)


def test_a_replay_counts_tokens_blocks_and_evictions() -> None:
    """Worked by hand, 4 tokens a block, 4 usable blocks, classic free order.

    9 tokens take blocks 1-3, two are stored. Again: 8 tokens hit, block 4 is taken. 12 other
    tokens take block 3, which is blank, block 4, blank too, and block 2, which is evicted.
    """
    manager = ReferenceBlockManager(5, 4)
    requests = [prompt(0, 9), prompt(1, 9), prompt(2, 12, first=100)]
    assert replay(manager, requests) == ReplayResult(
        requests=3,
        refused=0,
        query_blocks=2 + 2 + 3,
        hit_blocks=2,
        query_tokens=30,
        hit_tokens=8,
        evicted_blocks=1,
        cached_blocks=4,
        orphaned_blocks=0,
        seconds=0.0,
    )


@pytest.mark.parametrize(
    ("num_tokens", "num_hit"), [(3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8)]
)
def test_the_last_token_is_never_hit(num_tokens: int, num_hit: int) -> None:
    """Case A1: of a repeated prompt 4 * floor((P - 1) / 4) tokens are hit."""
    manager = ReferenceBlockManager(100, 4)
    result = replay(manager, [prompt(0, num_tokens), prompt(1, num_tokens)])
    assert result.hit_tokens == num_hit
    assert result.query_tokens == 2 * num_tokens


def test_rates_are_of_tokens_and_of_full_blocks() -> None:
    """Case A5: 8 of 24 tokens, 2 of 5 full blocks; None where nothing was asked."""
    first, second = prompt(0, 9), prompt(1, 15)
    second.keys = TokenKeys([*range(8), *range(50, 57)], 4)
    result = replay(ReferenceBlockManager(100, 4), [first, second])
    assert result.hit_rate == pytest.approx(8 / 24)
    assert result.block_hit_rate == pytest.approx(2 / 5)
    empty = replay(ReferenceBlockManager(100, 4), [])
    assert (empty.requests, empty.hit_rate, empty.block_hit_rate) == (0, None, None)


@pytest.mark.parametrize("decode", [False, True])
def test_requests_come_out_as_they_went_in(decode: bool) -> None:
    """The same objects can be replayed again, with another manager, and count the same."""
    requests = list(SharedPrefix(num_requests=100))
    before = [
        (r.status, r.num_computed_tokens, r.num_output_tokens, r.num_tokens) for r in requests
    ]
    first = replay(ReferenceBlockManager(1000, 16), requests, decode=decode)
    after = [(r.status, r.num_computed_tokens, r.num_output_tokens, r.num_tokens) for r in requests]
    assert after == before
    assert replay(ReferenceBlockManager(1000, 16), requests, decode=decode) == first


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "decode", "refused"),
    [
        (784, 1, False, 0),
        (785, 1, False, 1),
        (784, 1, True, 0),
        (784, 2, True, 1),
        (784, 2, False, 0),
        (780, 5, True, 0),
        (780, 6, True, 1),
    ],
)
def test_a_request_larger_than_the_pool_is_refused(
    num_tokens: int, max_tokens: int, decode: bool, refused: int
) -> None:
    """Case G1: 49 usable blocks of 16 hold 784 tokens; the last answer token needs no slot."""
    keys = ChunkKeys([0, 1], 512, 16, num_tokens, num_tokens + max_tokens, -1)
    request = Request(0, keys, num_tokens, max_tokens)
    result = replay(ReferenceBlockManager(50, 16), [request], decode=decode)
    assert (result.requests, result.refused) == (1, refused)
    assert result.query_tokens == (0 if refused else num_tokens)


def test_a_refused_request_changes_nothing() -> None:
    """A prompt that fits with an answer that does not evicts nothing; the next one still hits."""
    manager = ReferenceBlockManager(4, 4)
    requests = [prompt(0, 9), prompt(1, 9, max_tokens=9, first=50), prompt(2, 9)]
    result = replay(manager, requests, decode=True)
    assert (result.requests, result.refused) == (3, 1)
    assert (result.hit_tokens, result.evicted_blocks) == (8, 0)


class Answering(ReferenceBlockManager):
    """Gives answers one token at a time, as an engine does, when asked for all of them."""

    def allocate_slots(self, request, num_new_tokens, *args, **kwargs):  # type: ignore[no-untyped-def]
        allocate = super().allocate_slots
        if not request.num_output_tokens:
            return allocate(request, num_new_tokens, *args, **kwargs)
        given = None
        request.num_output_tokens = 0
        for _ in range(num_new_tokens):
            request.num_output_tokens += 1
            given = allocate(request, 1, *args, **kwargs)
            request.num_computed_tokens += 1
        return given


@pytest.mark.parametrize("free_order", ["tail", "unhashed_first"])
@pytest.mark.parametrize("num_blocks", [300, 700, 3000])
def test_an_answer_at_once_is_an_answer_token_by_token(
    free_order: FreeOrder, num_blocks: int
) -> None:
    """Same counts and the same blocks evicted in the same order."""
    results, removed = [], []
    for manager_class in (ReferenceBlockManager, Answering):
        events: list[KVEvent] = []
        manager = manager_class(num_blocks, 16, free_order=free_order, events=events.append)
        workload = SharedPrefix(num_requests=200, num_prefixes=5, output_tokens=200)
        results.append(replay(manager, workload, decode=True))
        removed.append([e for e in events if type(e).__name__ == "BlockRemoved"])
    assert results[0] == results[1]
    assert removed[0] == removed[1]
    assert results[0].hit_tokens > 0
    assert results[0].evicted_blocks > 0


def test_answers_take_memory_and_are_not_reused() -> None:
    """7 answer tokens with slots fill a second block after 5 prompt tokens, with its own key."""
    manager = ReferenceBlockManager(100, 4)
    keys = [ChunkKeys([7, 8], 4, 4, 5, 5 + 8, output) for output in (-1, -2)]
    requests = [Request(n, keys[n], 5, 8) for n in range(2)]
    result = replay(manager, requests, decode=True)
    assert result.hit_blocks == 1
    assert manager.num_cached_blocks == 1 + 2 + 2


def test_nobody_else_runs_so_no_watermark_applies() -> None:
    """A pool of 4 with a watermark of 50 % still serves a prompt of 4 blocks."""
    manager = ReferenceBlockManager(5, 4, watermark=0.5)
    assert replay(manager, [prompt(0, 16)]).refused == 0


def test_evictions_of_an_earlier_replay_are_not_counted_again() -> None:
    manager = ReferenceBlockManager(3, 4)
    first = replay(manager, [prompt(0, 8), prompt(1, 8, first=50)])
    assert first.evicted_blocks == 2
    assert replay(manager, [prompt(2, 1, first=99)]).evicted_blocks == 1


def test_the_books_are_checked_at_the_end() -> None:
    """A manager whose books do not balance ends the replay with an AssertionError."""

    class Leaking(ReferenceBlockManager):
        def free(self, request: Request, *, now: float = 0.0) -> None:
            del self.tables[request.request_id]

    with pytest.raises(AssertionError, match="wrong ref_cnt"):
        replay(Leaking(100, 4), [prompt(0, 9)])


def test_now_is_the_arrival_time() -> None:
    """Managers and policies see the trace's clock, which no replay waits for."""
    seen: list[float] = []

    class Watching(ReferenceBlockManager):
        def free(self, request: Request, *, now: float = 0.0) -> None:
            seen.append(now)
            super().free(request, now=now)

    requests = list(SharedPrefix(num_requests=5))
    replay(Watching(1000, 16), requests)
    assert seen == [r.arrival_time for r in requests]


def test_a_different_block_size_is_a_config_error() -> None:
    message = "block_size of its keys is 4, of the manager 16; .* block_size=16"
    with pytest.raises(ConfigError, match=message):
        replay(ReferenceBlockManager(10, 16), [prompt(0, 9)])


def test_progress_is_told_now_and_then_and_at_the_end() -> None:
    told: list[int] = []
    workload = SharedPrefix(num_requests=600, suffix_tokens=8, prefix_tokens=16)
    replay(ReferenceBlockManager(1000, 16), workload, on_progress=told.append)
    assert told == [256, 512, 600]


@pytest.mark.slow
@pytest.mark.parametrize("null_block", [False, True])
@pytest.mark.parametrize(("name", "num_blocks"), VLLM_HITS)
def test_hits_on_public_traces_are_those_of_real_vllm(
    kvsim_data: Path, name: str, num_blocks: int, null_block: bool
) -> None:
    """Exact hit blocks for C usable blocks, with the null block as one more where there is one."""
    workload = trace(kvsim_data, name)
    orders: tuple[FreeOrder, ...] = ("unhashed_first", "tail")
    runs = [(order, decode) for order in orders for decode in (False, True)]
    if null_block:
        runs = runs[:1]  # the same pool, ids shifted by one
    for (order, decode), expected in zip(runs, VLLM_HITS[name, num_blocks], strict=False):
        manager = ReferenceBlockManager(
            num_blocks + null_block, 512, free_order=order, null_block=null_block
        )
        result = replay(manager, workload, decode=decode)
        assert (order, decode, result.hit_blocks) == (order, decode, expected)
        assert result.refused == 0


@pytest.mark.slow
@pytest.mark.parametrize(("num_blocks", "tokens", "blocks", "classic"), VLLM_RATES)
def test_hit_rates_at_512_are_those_of_real_vllm(
    kvsim_data: Path, num_blocks: int, tokens: float, blocks: float, classic: float
) -> None:
    """Four digits, in tokens and in full blocks, in both free orders."""
    workload = trace(kvsim_data, "conversation")
    new = replay(ReferenceBlockManager(num_blocks, 512, free_order="unhashed_first"), workload)
    assert (rounded(new.hit_rate), rounded(new.block_hit_rate)) == (tokens, blocks)
    old = replay(ReferenceBlockManager(num_blocks, 512), workload)
    assert rounded(old.hit_rate) == classic


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "free_order", "tokens"),
    [
        (VLLMBlockManager, "unhashed_first", 0.2829),
        (VLLMBlockManager, "tail", 0.2827),
        (ReferenceBlockManager, "tail", 0.2827),
    ],
)
def test_hit_rates_at_16_are_those_of_real_vllm(
    kvsim_data: Path, kind: type[BlockManager], free_order: FreeOrder, tokens: float
) -> None:
    """A pool of 10 % of the distinct blocks, 566,293 with the null block, 16 tokens a block."""
    workload = trace(kvsim_data, "conversation", block_size=16)
    manager = kind(566_293, 16, free_order=free_order)  # type: ignore[call-arg]
    result = replay(manager, workload)
    assert result.query_blocks == 9_044_013
    assert rounded(result.hit_rate) == tokens
    if free_order == "unhashed_first":  # of the classic order only the rate in tokens is known
        assert rounded(result.block_hit_rate) == 0.2831


@pytest.mark.parametrize("kind", [ReferenceBlockManager, VLLMBlockManager])
def test_orphans_are_counted(kind: type[BlockManager]) -> None:
    """3 usable blocks of 4 tokens, FIFO: A = a b, then B = a c, then two other blocks.

    They push out b and a, inserted first, and c cannot be hit without a. By leaves it is b and c.
    """
    for victims, num_orphaned in (("block", 1), ("leaf", 0)):
        manager = kind(4, 4, eviction=FIFO(), victims=victims)  # type: ignore[call-arg]
        texts = [(1, 1), (1, 2), (3, 3)]
        requests = [
            Request(i, SegmentKeys([10 * a, 10 * a + b], [4, 8], 4), 8, 1)
            for i, (a, b) in enumerate(texts)
        ]
        done = replay(manager, requests)
        assert (done.cached_blocks, done.orphaned_blocks) == (3, num_orphaned)
