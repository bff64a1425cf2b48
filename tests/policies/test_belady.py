"""MIN is the optimum, where docs/optimum.md says so: against exhaustive search and known counts."""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import inf
from pathlib import Path

import numpy as np
import pytest

from policies import POLICIES
from policies.belady import Belady
from policies.pool import Victims
from policies.reference import ReferenceBlockManager
from policies.uncached import UncachedBlockManager
from policies.vllm import VLLMBlockManager
from sim.analysis import next_use
from sim.analysis.bounds import bounds, pool_bounds, replay_optimum
from sim.analysis.mrc import lru_curve
from sim.analysis.optimum import Moment, Optimum, Schedule, _Use, one_at_a_time
from sim.analysis.recording import Recording
from sim.cache import BlockManager, EvictionPolicy
from sim.checks.letters import Letters
from sim.engine import Engine
from sim.errors import ConfigError
from sim.events import BlockRemoved
from sim.footprint import Footprint, all_ids, prompt, with_answer
from sim.keys import SegmentKeys
from sim.replay import replay
from sim.request import Request, RequestStatus
from sim.scheduler_config import SchedulerConfig
from sim.spec.build import build
from workloads.mooncake import Mooncake
from workloads.shared_prefix import SharedPrefix

# Hit blocks of MIN, one request at a time, 512 tokens a block: full blocks, and every id a block.
ENGINE_HITS = {
    "conversation": {2_000: 71_894, 5_859: 101_339, 20_000: 105_592, 50_000: 105_592},
    "synthetic": {2_000: 45_551, 5_859: 66_848, 20_000: 77_740, 50_000: 77_740},
}
ALL_IDS_HITS = {
    "conversation": {
        1_000: 51_705,
        2_000: 71_949,
        5_859: 101_431,
        10_000: 105_710,
        20_000: 105_710,
        50_000: 105_710,
        100_000: 105_710,
    },
    "synthetic": {
        1_000: 32_803,
        2_000: 45_608,
        5_859: 66_978,
        10_000: 75_241,
        20_000: 77_953,
    },
}
CLOUD_PHYSICS_MISSES = {
    500: 90_175,
    1_000: 87_025,
    2_000: 81_870,
    4_000: 74_311,
    8_000: 64_766,
    16_000: 55_843,
    32_000: 48_974,
}


def trace(data: Path, name: str, block_size: int = 512) -> Mooncake:
    return Mooncake(data / "mooncake" / f"{name}_trace.jsonl.xz", block_size)


# Exhaustive search


def exhaustive(chains: Sequence, schedule: Schedule, num_blocks: int) -> int | None:
    """The most hits of any policy: every choice of victims is tried. None if nothing fits."""
    best: dict[frozenset, int] = {frozenset(): 0}  # cached content -> most hits so far
    held: dict[int, tuple[frozenset, int]] = {}
    later = [frozenset()]  # what will be wanted after each moment
    for moment in reversed(schedule):
        keys = chains[moment.request]
        later.append(later[-1].union(keys[i] for i in range(moment.num_hittable or 0)))
    for moment in schedule:
        later.pop()
        keys = chains[moment.request]
        if moment.num_hittable is not None:
            wanted = [keys[i] for i in range(moment.num_hittable)]
            best = {cached: hits + prefix(wanted, cached) for cached, hits in best.items()}
        stored = frozenset(keys[i] for i in range(moment.num_stored))
        held[moment.request] = (stored, moment.num_blocks - moment.num_stored)
        pinned = frozenset().union(*(content for content, _ in held.values()))
        room = num_blocks - len(pinned) - sum(unhashed for _, unhashed in held.values())
        if room < 0:
            return None
        after: dict[frozenset, int] = {}
        for cached, hits in best.items():
            idle = sorted((cached - pinned) & later[-1])  # the rest may as well go
            for kept in combinations(idle, min(room, len(idle))):
                content = pinned.union(kept)
                after[content] = max(hits, after.get(content, 0))
        best = after
    return max(best.values())


def prefix(wanted: list, cached: frozenset) -> int:
    """How many of the first blocks are cached."""
    return next((i for i, key in enumerate(wanted) if key not in cached), len(wanted))


def conversations(
    rng: np.random.Generator, num_requests: int, longest_answer: int = 2
) -> list[Request]:
    """Short prompts, one letter a block: a few texts that branch, asked again and again.

    An answer may bring back what another text continues with.
    """
    texts = ["a"]
    while len(texts) < 12:
        base = texts[rng.integers(len(texts))]
        base = base[: rng.integers(len(base) + 1)]
        texts.append(base + str(rng.choice(list("abc"))))
    requests = []
    for i in range(num_requests):
        text = texts[rng.integers(len(texts))]
        num_outputs = 1 + int(rng.random() < 0.4) * int(rng.integers(1, longest_answer))
        answer = "".join(rng.choice(list("abc"), size=num_outputs))
        requests.append(Request(i, Letters(text + answer, 1), len(text), len(answer)))
    return requests


def concurrent(
    rng: np.random.Generator, requests: list[Request], whole_prompts: bool
) -> list[Moment]:
    """A random schedule of up to three running requests that decode, end or are preempted.

    With *whole_prompts* every admission stores all that it looked up, else in several moments.
    """
    schedule: list[Moment] = []
    running: dict[int, int] = {}  # request -> blocks stored
    arrivals = iter(range(len(requests)))
    arriving = next(arrivals, None)
    while running or arriving is not None:
        can_admit = arriving is not None and len(running) < 2
        if can_admit and (not running or rng.random() < 0.3):
            admit(rng, requests[arriving], arriving, running, schedule, whole_prompts)
            arriving = next(arrivals, None)
            continue
        number = int(rng.choice(list(running)))
        request = requests[number]
        longest = request.num_prompt_tokens + request.max_tokens - 1
        if running[number] < longest and rng.random() < 0.7:
            running[number] = int(rng.integers(running[number] + 1, longest + 1))
            unhashed = int(rng.random() < 0.3)
            schedule.append(Moment(number, running[number], running[number] + unhashed))
        else:
            del running[number]
            schedule.append(Moment(number, 0, 0))
            if rng.random() < 0.15:  # it was preempted and comes back
                admit(rng, request, number, running, schedule, whole_prompts)
    return schedule


def admit(
    rng: np.random.Generator,
    request: Request,
    number: int,
    running: dict[int, int],
    schedule: list[Moment],
    whole_prompts: bool,
) -> None:
    num_prompt = request.num_prompt_tokens
    num_hittable = num_prompt - int(rng.random() < 0.5)
    num_stored = num_prompt if whole_prompts else int(rng.integers(0, num_prompt + 1))
    running[number] = num_stored
    num_blocks = max(1, num_stored + int(rng.random() < 0.3))
    schedule.append(Moment(number, num_stored, num_blocks, num_hittable))


def compared(seed: int, whole_prompts: bool) -> list[tuple[int, int]]:
    """(MIN, exhaustive search) of one random schedule, in the three smallest pools that hold it."""
    rng = np.random.default_rng(seed)
    requests = conversations(rng, int(rng.integers(12, 25)))
    schedule = concurrent(rng, requests, whole_prompts)
    chains = [request.keys for request in requests]
    optimum = Optimum(chains, schedule)
    found = []
    for num_blocks in range(1, 12):
        best = exhaustive(chains, schedule, num_blocks)
        if best is not None:
            found.append((optimum.num_hits(num_blocks), best))
        if len(found) == 3:
            break
    return found


def test_min_is_optimal_on_a_given_schedule() -> None:
    """Overlapping requests, answers that others continue, preemptions: no difference.

    More than 2,000 instances; every admission stores what it looked up.
    """
    pairs = [pair for seed in range(700) for pair in compared(seed, True)]
    assert len(pairs) > 2_000
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


def test_min_is_a_bound_where_prompts_are_stored_in_parts() -> None:
    """With chunked prefill the number is never below the optimum (and mostly equal)."""
    pairs = [pair for seed in range(300) for pair in compared(seed, False)]
    assert all(bound >= best for bound, best in pairs)
    assert sum(bound == best for bound, best in pairs) > 0.5 * len(pairs)


def test_the_search_notices_a_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: where what is needed first goes first, hits are lost."""
    right = _Use.next_use

    def wrong(self: _Use, time: int) -> float:
        found = right(self, time)
        return found if found == inf else -found

    monkeypatch.setattr(_Use, "next_use", wrong)
    assert any(a < b for seed in range(100) for a, b in compared(seed, True))


def test_the_search_notices_a_needless_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: to keep what will be stored anew before it is hit costs hits."""
    monkeypatch.setattr(
        _Use, "next_use", lambda self, time: next((t for t in self.times if t > time), inf)
    )
    assert any(a < b for seed in range(400) for a, b in compared(seed, True))


# The policy


def served(
    make: type[VLLMBlockManager] | type[ReferenceBlockManager],
    policy: EvictionPolicy,
    requests: Sequence[Request],
    num_blocks: int,
    *,
    decode: bool = False,
) -> int:
    """Hit blocks of *requests*, replayed under *policy*."""
    block_size = requests[0].keys.block_size
    manager: BlockManager = make(num_blocks, block_size, eviction=policy, null_block=False)
    policy.prepare(requests)
    return replay(manager, requests, decode=decode).hit_blocks


@pytest.mark.parametrize("make", [VLLMBlockManager, ReferenceBlockManager])
def test_the_policy_is_optimal_in_a_replay(make) -> None:
    """By spans and block by block, with answers: what exhaustive search finds."""
    num_instances = 0
    for seed in range(250):
        rng = np.random.default_rng(seed)
        requests = conversations(rng, int(rng.integers(12, 25)))
        footprints = [with_answer(request) for request in requests]
        chains, schedule = [f.keys for f in footprints], list(one_at_a_time(footprints))
        longest = max(f.num_blocks for f in footprints)
        for num_blocks in range(longest, longest + 3):
            best = exhaustive(chains, schedule, num_blocks)
            assert served(make, Belady(), requests, num_blocks, decode=True) == best, seed
            num_instances += 1
    assert num_instances == 750


class ShallowFirst(Belady):
    """The wrong tie-break: among blocks needed equally late the shallower goes first."""

    def _place(self, span, rank):
        self._num_placed -= 2  # the base counts up
        super()._place(span, rank)


def test_a_reversed_tie_break_is_noticed() -> None:
    """To evict a parent before its child loses hits, and the comparison sees it."""
    num_worse = 0
    for seed in range(250):
        rng = np.random.default_rng(seed)
        requests = conversations(rng, 20)
        num_blocks = max(with_answer(request).num_blocks for request in requests) + 1
        worse, best = (
            served(ReferenceBlockManager, policy, requests, num_blocks, decode=True)
            for policy in (ShallowFirst(), Belady())
        )
        assert worse <= best
        num_worse += worse < best
    assert num_worse > 0


def test_a_block_that_an_answer_will_bring_back_is_not_kept() -> None:
    """One letter a block, pool of 3. ab | x, then c answers "ab"... by hand.

    Requests: "ab?" stores a, ab. "c?" follows. "a?" has the answer "b", which stores ab anew: until
    then ab is worth nothing, although "ab?" wants it afterwards. c is wanted before that: it is
    kept, ab goes. Hits: a (third), c (fourth), a and ab (fifth).
    """
    chains = [Letters(text, 1) for text in ("ab", "c", "ab", "c", "ab")]
    footprints = [
        Footprint(chains[0], 2, 2, 0, 2),
        Footprint(chains[1], 1, 1, 0, 1),
        Footprint(chains[2], 1, 2, 0, 1),  # prompt a, answer b
        Footprint(chains[3], 1, 1, 0, 1),
        Footprint(chains[4], 2, 2, 0, 2),
    ]
    uses = next_use.next_uses(footprints)
    assert uses[0] == ([0, 1, 2], [2, next_use.NEVER, next_use.NEVER])
    assert uses[2] == ([0, 2], [4, next_use.NEVER])
    optimum = Optimum(chains, one_at_a_time(footprints))
    assert [optimum.num_hits(size) for size in (2, 3, 4)] == [2, 4, 4]


@pytest.mark.parametrize(("victims", "spare"), [("block", 2), ("leaf", 2), ("leaf", 0)])
def test_both_managers_evict_the_same(victims: Victims, spare: int) -> None:
    """By spans or block by block MIN hits and evicts the same, in the same order."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        requests = conversations(rng, 25, longest_answer=4)
        num_blocks = max(with_answer(request).num_blocks for request in requests) + spare
        logs: list[list] = []
        for make in (VLLMBlockManager, ReferenceBlockManager):
            policy = Belady()
            manager = make(num_blocks, 1, eviction=policy, null_block=False, victims=victims)
            policy.prepare(requests)
            log: list = []
            manager.events = log.append
            log.append(replay(manager, requests, decode=True).hit_blocks)
            logs.append(
                [(e.block_hash, e.copies_left) if isinstance(e, BlockRemoved) else e for e in log]
            )
        removed = [[e for e in log if isinstance(e, tuple | int)] for log in logs]
        assert removed[0] == removed[1], seed


# Known counts


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_the_mooncake_traces(kvsim_data: Path, name: str) -> None:
    """MIN of both traces, full blocks, from the sweep and from the policy: equal to the block."""
    requests = list(trace(kvsim_data, name))
    optimum = replay_optimum(requests)
    assert {n: optimum.num_hits(n) for n in ENGINE_HITS[name]} == ENGINE_HITS[name]
    for num_blocks in (2_000, 5_859):
        hits = served(VLLMBlockManager, Belady(), requests, num_blocks)
        assert hits == ENGINE_HITS[name][num_blocks]


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_every_id_a_block(kvsim_data: Path, name: str) -> None:
    """MIN of both traces with their partial last blocks: equal to the block."""
    optimum = replay_optimum(list(trace(kvsim_data, name)), all_ids)
    assert {n: optimum.num_hits(n) for n in ALL_IDS_HITS[name]} == ALL_IDS_HITS[name]


def one_block_each(ids: Sequence[int]) -> Optimum:
    """An ordinary cache: every request is one block, a root of its own."""
    footprints = [Footprint(SegmentKeys([i], [1], 1), 1, 1, 0, 1) for i in ids]
    return Optimum([f.keys for f in footprints], one_at_a_time(footprints))


def test_mandatory_insertion_or_bypass(serving) -> None:
    """Case J1: one slot, 4 1 2 2 1 4 1 0 4 4: 2 hits if every miss is inserted, 3 with bypass.

    KV blocks of a running request must be inserted: the policy and the optimum insert. Without
    pins, the flat bound, a block need not be there for its own request: 3.
    """
    ids = [4, 1, 2, 2, 1, 4, 1, 0, 4, 4]
    optimum = one_block_each(ids)
    assert optimum.num_hits(1) == 2
    assert optimum.num_hits(1, pins=False) == 3
    policy = Belady()
    serve = serving(VLLMBlockManager(1, 1, eviction=policy, null_block=False))
    policy.prepare([Request(i, SegmentKeys([key], [2], 1), 2, 1) for i, key in enumerate(ids)])
    assert sum(serve.use_key(key) for key in ids) == 2


def tiny_belady(ids: Sequence[int], num_blocks: int, bypass: bool) -> int:
    """Belady's MIN as in a textbook."""
    cached: set[int] = set()
    hits = 0
    for now, key in enumerate(ids):

        def next_use(other: int, now: int = now) -> int:
            return next((t for t in range(now + 1, len(ids)) if ids[t] == other), len(ids))

        hits += key in cached
        if key not in cached and len(cached) == num_blocks:
            candidates = sorted(cached | {key}) if bypass else sorted(cached)
            victim = max(candidates, key=next_use)
            if victim == key:
                continue
            cached.remove(victim)
        cached.add(key)
    return hits


def test_single_blocks_are_an_ordinary_cache() -> None:
    """Zipf streams of single blocks: textbook Belady, with and without bypass."""
    for seed in range(40):
        ids = (np.random.default_rng(seed).zipf(1.3, 150) % 40).tolist()
        optimum = one_block_each(ids)
        for num_blocks in (1, 2, 5, 12):
            assert optimum.num_hits(num_blocks) == tiny_belady(ids, num_blocks, False)
            assert optimum.num_hits(num_blocks, pins=False) == tiny_belady(ids, num_blocks, True)


@pytest.mark.slow
def test_cloud_physics() -> None:
    """libCacheSim's bundled trace in objects of one size: the misses of its own Belady."""
    path = Path(os.environ.get("KVSIM_DATA", "")) / "libcachesim" / "cloudPhysicsIO.txt"
    if not path.is_file():
        pytest.skip(f"{path} is missing: data/cloudPhysicsIO.txt of the source of libcachesim 0.3")
    ids = [int(line) for line in path.read_text().split()]
    optimum = one_block_each(ids)
    misses = {size: len(ids) - optimum.num_hits(size) for size in CLOUD_PHYSICS_MISSES}
    assert misses == CLOUD_PHYSICS_MISSES


def test_oltp(kvsim_data: Path) -> None:
    """The first 20,000 accesses of OLTP: MIN lies between LRU and the limit, at every size."""
    path = kvsim_data / "object_cache" / "arc_OLTP.lis.xz"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    ids: list[int] = []
    with lzma.open(path, "rt") as lines:
        for line in lines:
            start, count, *_ = map(int, line.split())
            ids.extend(range(start, start + count))
            if len(ids) >= 20_000:
                break
    optimum = one_block_each(ids)
    requests = [Request(i, SegmentKeys([key], [1], 1), 1, 1) for i, key in enumerate(ids)]
    lru = lru_curve(requests, lambda request: Footprint(request.keys, 1, 1, 0, 1))
    assert lru.unbounded == len(ids) - len(set(ids))
    for size in (300, 1_000):
        assert lru.hit_blocks(size) < optimum.num_hits(size) <= lru.unbounded


# Against every other policy


def give_hints(requests: list[Request], needs: Iterable[str]) -> None:
    """Make up the hints that a policy needs: few different values."""
    for number, request in enumerate(requests):
        request.hints = dict.fromkeys(needs, number % 4)


def other_policies() -> list[str]:
    return [name for name in POLICIES if name not in ("belady", "noisy_oracle", "learned")]


@pytest.mark.parametrize("name", other_policies())
def test_no_policy_hits_more_one_at_a_time(name: str) -> None:
    """Unbounded >= flat >= MIN >= every policy >= uncached, replaying random conversations."""
    known = {"seed": 0, "num_blocks": 12, "block_size": 1}
    needs = build("policy", name, known=known).needs
    for seed in range(25):
        requests = conversations(np.random.default_rng(seed), 30)
        give_hints(requests, needs)
        num_blocks = max(with_answer(request).num_blocks for request in requests) + 3
        best = bounds(requests, num_blocks, with_answer)
        policy = build("policy", name, known=known | {"num_blocks": num_blocks})
        manager = VLLMBlockManager(num_blocks, 1, eviction=policy, null_block=False)
        policy.prepare(requests)
        hits = replay(manager, requests, decode=True).hit_blocks
        uncached = replay(UncachedBlockManager(num_blocks, 1), requests, decode=True).hit_blocks
        assert best.unbounded >= best.flat >= best.optimum >= hits >= uncached == 0
        assert best.optimum >= best.lru


@pytest.mark.parametrize("name", ["lru", "lfu", "s3fifo", "belady"])
def test_no_policy_hits_more_behind_the_warm_up(name: str) -> None:
    """Where the first 15 of 30 requests are not counted, MIN's rate is the most for the others."""
    num_equal = 0
    for seed in range(40):
        requests = conversations(np.random.default_rng(seed), 30)
        num_blocks = max(with_answer(request).num_blocks for request in requests) + 3
        known = {"seed": 0, "num_blocks": num_blocks, "block_size": 1}
        policy = build("policy", name, known=known)
        manager = VLLMBlockManager(num_blocks, 1, eviction=policy, null_block=False)
        policy.prepare(requests)
        hits: list[int] = []
        replay(manager, requests, decode=True, hits=hits)
        best = pool_bounds(requests, [num_blocks], decode=True, num_warmup=15)
        rates = [best[kind][str(num_blocks)] or 0.0 for kind in ("min", "unbounded")]
        num_tokens = sum(request.num_prompt_tokens for request in requests[15:])
        most, unbounded = (round(rate * num_tokens) for rate in rates)
        assert sum(hits[15:]) <= most <= unbounded
        num_equal += sum(hits[15:]) == most
    assert name != "belady" or num_equal > 30  # MIN for all requests is nearly always MIN for these


# In the engine


def busy_requests(seed: int, num_requests: int = 40) -> list[Request]:
    rng = np.random.default_rng(seed)
    requests = conversations(rng, num_requests, longest_answer=9)
    times = np.cumsum(rng.exponential(0.02, num_requests)).tolist()
    for request, time in zip(requests, times, strict=True):
        request.arrival_time = time
    return requests


@pytest.mark.parametrize("name", [*other_policies(), "belady"])
@pytest.mark.parametrize("macro_steps", [True, False])
def test_no_run_hits_more_than_min_on_its_own_schedule(name: str, macro_steps: bool) -> None:
    """Chunked prefill, preemptions, answers that are continued: the recorded schedule's MIN.

    All admissions count, those of requests that came back too.
    """
    num_hits = num_bound = num_preemptions = 0
    for seed in range(12):
        requests = busy_requests(seed)
        num_blocks = max(with_answer(request).num_blocks for request in requests) + 3
        known = {"seed": 0, "num_blocks": num_blocks, "block_size": 1}
        policy = build("policy", name, known=known)
        give_hints(requests, policy.needs)
        manager = (VLLMBlockManager, ReferenceBlockManager)[seed % 2](
            num_blocks, 1, eviction=policy, null_block=False
        )
        policy.prepare(requests)
        recording = Recording(manager)
        config = SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=4)
        record = Engine(manager, scheduler=config, macro_steps=macro_steps).run(requests)
        totals = record.totals
        assert recording.num_hits == totals["prefix_cache_hits"] + totals["preempted_hits"]
        bound = Optimum(recording.chains, recording.schedule).num_hits(num_blocks)
        assert bound >= recording.num_hits, seed
        num_hits += recording.num_hits
        num_bound += bound
        num_preemptions += int(totals["num_preemptions"])
    assert 0 < num_hits <= num_bound
    assert num_preemptions > 0


def test_flat_min_is_no_bound_with_chunked_prefill() -> None:
    """A prompt that is stored long after its admission: 4 hits, flat MIN says 3.

    Pool of 3. "z" is cached. "xyv" is admitted but stored only after "z" was hit again; then z may
    go. In the order of admission alone, x, y and v compete with z all the time.
    """
    chains = [Letters(text, 1) for text in ("z", "xyv", "w", "z", "xyv")]
    schedule = [
        Moment(0, 1, 1, 1),
        Moment(0, 0, 0),
        Moment(1, 0, 1, 3),  # admitted: one block, nothing stored yet
        Moment(2, 1, 1, 1),
        Moment(2, 0, 0),
        Moment(3, 1, 1, 1),
        Moment(3, 0, 0),
        Moment(1, 3, 3),  # stored
        Moment(1, 0, 0),
        Moment(4, 3, 3, 3),
        Moment(4, 0, 0),
    ]
    footprints = [Footprint(keys, len(keys), len(keys), 0, len(keys)) for keys in chains]
    assert exhaustive(chains, schedule, 3) == 4
    assert Optimum(chains, schedule).num_hits(3) == 4
    assert Optimum(chains, one_at_a_time(footprints)).num_hits(3, pins=False) == 3


def test_both_managers_evict_the_same_in_the_engine() -> None:
    """Preemptions, chunked prefill, second copies: the same evictions in the same order."""
    num_preemptions = 0
    for seed in range(60):
        requests = busy_requests(seed)
        num_blocks = max(with_answer(request).num_blocks for request in requests) + 3
        logs: list[list] = []
        for make in (VLLMBlockManager, ReferenceBlockManager):
            policy = Belady()
            manager = make(num_blocks, 1, eviction=policy, null_block=False)
            policy.prepare(requests)
            log: list = []
            manager.events = log.append
            config = SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=4)
            record = Engine(manager, scheduler=config, macro_steps=False).run(requests)
            num_preemptions += int(record.totals["num_preemptions"])
            logs.append([(e.block_hash, e.copies_left) for e in log if isinstance(e, BlockRemoved)])
        assert logs[0] == logs[1], seed
    assert num_preemptions > 50


def test_what_a_preempted_request_left_is_kept_for_it(serving) -> None:
    """4 blocks: z, a blank one and two of a preempted request. The next takes the blank one and z.

    z is wanted again, by the last request; but the preempted one comes back before that.
    """
    policy = Belady()
    serve = serving(VLLMBlockManager(4, 4, eviction=policy, null_block=False))
    z, preempted, other, z_again = (
        serve.prompt(range(start, start + size))
        for start, size in ((0, 5), (100, 8), (200, 5), (0, 5))
    )
    policy.prepare([z, preempted, other, z_again])
    serve.run(z)
    serve.admit(preempted)
    preempted.status = RequestStatus.RUNNING
    serve.manager.free(preempted)
    preempted.status = RequestStatus.PREEMPTED
    serve.run(other)
    assert serve.look_up(range(100, 109)) == 8
    assert serve.look_up(range(5)) == 0


def test_a_block_that_thousands_used_meanwhile(serving) -> None:
    """A request that outlives 3,000 others with the same prompt lets go of it in the end."""
    policy = Belady()
    serve = serving(VLLMBlockManager(20, 4, eviction=policy))
    requests = [serve.prompt(range(9)) for _ in range(3_000)]
    policy.prepare(requests)
    serve.admit(requests[0])
    for request in requests[1:]:
        assert serve.run(request) == 8
    serve.manager.free(requests[0])
    serve.manager.check()


def test_it_must_see_the_requests_first() -> None:
    """Without `prepare`, or with others' requests, one line that says what is missing."""
    requests = conversations(np.random.default_rng(0), 3)
    policy = Belady()
    manager = VLLMBlockManager(30, 1, eviction=policy)
    with pytest.raises(ConfigError, match=r"request 0 is unknown; .* give all requests to prepare"):
        replay(manager, requests)


def test_gap_closed() -> None:
    """0 is LRU, 1 is MIN, below 0 is worse than LRU; requests larger than the pool are left out."""
    requests = list(SharedPrefix(num_requests=300, num_prefixes=20))
    sizes = sorted(prompt(request).num_blocks for request in requests)
    found = bounds(requests, sizes[-5])
    assert found.refused == sum(size > sizes[-5] for size in sizes) > 0
    assert found.lru < found.optimum < found.flat < found.unbounded
    assert (found.gap_closed(found.lru), found.gap_closed(found.optimum)) == (0, 1)
    assert found.gap_closed(0) == -found.lru / (found.optimum - found.lru)
    assert found.hit_rate(found.lru) == found.lru * 16 / found.query_tokens
    generous = bounds(requests, 100_000)
    assert generous.gap_closed(generous.lru) is None
    assert generous.unbounded == generous.flat == generous.optimum == generous.lru
