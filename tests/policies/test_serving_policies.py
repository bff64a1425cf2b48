"""Rules of serving systems, worked by hand: who goes first among a few idle spans."""

from __future__ import annotations

import math

import pytest

from policies.continuum import Continuum
from policies.freq_cost import FreqCost
from policies.gdsf import GDSF
from policies.kvflow import KVFlow
from policies.noisy_oracle import NoisyOracle
from policies.pgdsf import PGDSF
from policies.priority import Priority
from policies.queue_lookahead import QueueLookahead
from policies.rlt import RLT
from policies.tlru import TLRU
from policies.ttl import TTL
from policies.workload_aware import WorkloadAware
from sim.cache import Pool, Span
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.request import Request


class Blocks(Pool):
    """A pool without a manager: 100 blocks of one token."""

    num_blocks = 100
    block_size = 1

    def cut(self, span, num_blocks):
        raise NotImplementedError


class Named(Span):
    """A span with a name; its key is its prompt's."""

    __slots__ = ("keys", "name")

    def __init__(self, name, keys, num_blocks, start):
        super().__init__(num_blocks, start)
        self.name = name
        self.keys = keys

    def key(self, i):
        return self.keys[self.start + i]


class Bench:
    """One policy, fed by hand."""

    def __init__(self, policy):
        self.policy = policy
        policy.bind(Blocks())
        self.num_requests = 0

    def request(self, name, length=1, *, session=None, arrival=0.0, outputs=1, **hints):
        self.num_requests += 1
        keys = SegmentKeys([ord(name[0])], [length + outputs], 1)
        number = self.num_requests
        return Request(number, keys, length, outputs, arrival, session=session, hints=hints)

    def end(self, name, now=0.0, *, length=1, start=0, request=None, **about):
        """A request ends that computed *length* blocks from *start* on; its span."""
        request = request or self.request(name, start + length, **about)
        span = Named(name, request.keys, length, start)
        self.policy.release(span, request, now)
        return span

    def reuse(self, span, now, **about):
        """Another request adopts *span* and ends at once."""
        request = self.request(span.name, span.start + span.num_blocks, arrival=now, **about)
        self.policy.hit(span, request, now)
        self.policy.release(span, request, now)

    def tick(self, now):
        """Time passes: a span of no importance is released and forgotten."""
        span = self.end("-", now, **{"priority": 100, "tool": None, "type": "-", "turn": 0})
        self.policy.forget(span)

    def evict(self, num_blocks=1):
        """The name of the victim and how many blocks it loses, at most *num_blocks*."""
        span, num_evicted = self.policy.victim(num_blocks)
        span.num_blocks -= num_evicted
        self.policy.evicted(span, num_evicted)
        return span.name if num_evicted == 1 else f"{span.name}{num_evicted}"

    def order(self, num):
        return "".join(self.evict() for _ in range(num))


def test_priority_goes_by_level_then_lru():
    """TensorRT-LLM: the lowest level first; 80 with a duration of 10 s is 35 after that."""
    bench = Bench(Priority())
    bench.end("a", 0, priority=80, duration_s=10)
    bench.end("b", 1, priority=35)
    bench.end("c", 2, priority=10)
    bench.end("d", 3, priority=35)
    assert bench.evict() == "c"
    bench.end("e", 12, priority=35)  # at 10 s a moved to the tail of level 35: behind d
    assert bench.order(4) == "bdae"


def test_the_latest_request_sets_the_priority():
    """A block of level 80 that a request of level 0 adopts has level 0."""
    bench = Bench(Priority())
    span = bench.end("a", 0, priority=80)
    bench.end("b", 1, priority=35)
    bench.reuse(span, 2, priority=0)
    assert bench.order(2) == "ab"


def test_a_level_out_of_range_is_refused():
    """101 levels: 0 to 100; the request is named."""
    with pytest.raises(ConfigError, match=r"request 1: priority is 101; it must be .* 0 to 100"):
        Bench(Priority()).end("a", priority=101)
    with pytest.raises(ConfigError, match="default_priority is -1"):
        Priority(-1)


def test_ttl_pins_until_nothing_else_is_left():
    """a is pinned to 300 s, b to 11 s, c to 32 s. At 40 s b and c are not: LRU; then a."""
    bench = Bench(TTL(300))
    bench.end("a", 0)
    bench.end("b", 1, ttl_s=10)
    bench.end("c", 2, ttl_s=30)
    assert bench.evict() == "b"  # all pinned at 2 s: the pin that ends soonest
    bench.end("b", 3, ttl_s=10)
    bench.tick(40)
    assert bench.order(3) == "cba"  # c was used before b


def test_one_ttl_for_all_is_lru():
    """Equal pins end in the order of last use."""
    bench = Bench(TTL(5))
    for now, name in enumerate("abcdefgh"):
        bench.end(name, now)
    assert bench.order(8) == "abcdefgh"
    with pytest.raises(ConfigError, match=r"ttl_s is -1 s"):
        TTL(-1)


def test_tlru_gives_up_safe_blocks_first():
    """L = 10, Q = 2, budget 5: the first 7 tokens must stay; the other 3 blocks go first."""
    bench = Bench(TLRU(threshold=5, next_prompt_estimate=2))
    bench.end("a", 0, length=2)  # 3 tokens long: nothing of it must stay
    bench.end("b", 1, length=9)  # 10 tokens long: of its 9 blocks 2 are safe
    bench.end("c", 2, length=9)
    seen = [bench.evict(9) for _ in range(5)]
    assert seen == ["a2", "b2", "c2", "b7", "c7"]


def test_tlru_without_a_budget_is_lru():
    """SGLang's defaults make nothing safe."""
    bench = Bench(TLRU())
    bench.end("a", 0, length=2)
    bench.end("b", 1, length=2)
    assert [bench.evict(9), bench.evict(9)] == ["a2", "b2"]


def test_workload_aware_learns_how_soon_a_category_is_reused():
    """Chats come back after 10 s, API calls after 1,000 s: an idle API block goes before a chat.

    At 100 s: the API block, idle for 50 s, is worth exp(-.05) - exp(-.35) = 0.247; the chat
    block, idle for 1 s, exp(-.1) - exp(-30.1) = 0.905; another, idle for 60 s, exp(-6) = 0.002.
    """
    bench = Bench(WorkloadAware(life_s=300))
    chat = bench.end("x", -10, type="chat", turn=1)
    bench.reuse(chat, 0, type="chat", turn=1)
    api = bench.end("y", -1000, type="api", turn=1)
    bench.reuse(api, 0, type="api", turn=1)
    for span in (chat, api):
        bench.policy.forget(span)
    bench.end("a", 40, type="chat", turn=1)
    bench.end("b", 50, type="api", turn=1)
    bench.end("c", 99, type="chat", turn=1)
    bench.tick(100)
    assert bench.order(3) == "abc"
    bench.end("b", 150, type="api", turn=1)
    bench.end("a", 190, type="chat", turn=1)
    bench.tick(200)  # API at 50 s: 0.247; chat at 10 s: exp(-1) = 0.368
    assert bench.order(2) == "ba"


def test_turns_beyond_the_last_are_one_category():
    """Turn 9 and turn 20 share what they learn if last_turn is 8."""
    policy = WorkloadAware(last_turn=8)
    bench = Bench(policy)
    bench.end("a", 0, type="chat", turn=9)
    bench.end("b", 0, type="chat", turn=20)
    bench.end("c", 0, type="chat", turn=3)
    assert list(policy._categories) == [("chat", 8), ("chat", 3)]


def test_continuum_pins_for_the_time_that_pays():
    """Tool x returned after 1, 2 and 30 s; a hit saves 5 s.

    Waiting 1 s gains 5/3 - 1 = 0.67, 2 s 10/3 - 2 = 1.33, 30 s 5 - 30 < 0: pinned for 2 s.
    """
    bench = Bench(Continuum(queueing_s=5.0, prefill_tokens_per_s=math.inf, min_samples=3))
    for program, duration in enumerate((1, 2, 30)):
        call = bench.end("t", 0, session=program, tool="x")
        bench.reuse(call, duration, session=program, tool=None)
        bench.policy.forget(call)
    bench.end("a", 100, session="a", tool="x", arrival=50)
    bench.end("b", 101, session="b", tool="x", arrival=60)
    bench.end("c", 101, session="c", tool=None)
    assert bench.evict() == "c"  # the only one that waits for nothing
    assert bench.evict() == "b"  # of the pinned the newest program
    bench.end("c", 101.5, session="c", tool=None)
    bench.tick(102)  # the pin of a has ended: plain LRU
    assert bench.order(2) == "ac"


def test_continuum_starts_with_an_exponential_guess():
    """Without samples P(t) = 1 - exp(-t): to save 5 s, ln 5 = 1.61 s is the best time."""
    bench = Bench(Continuum(queueing_s=5.0, prefill_tokens_per_s=math.inf))
    bench.end("a", 0, session="a", tool="x")
    bench.end("b", 1.6, session="b", tool=None)
    bench.tick(1.6)
    assert bench.evict() == "b"
    bench.end("b", 1.61, session="b", tool=None)
    assert bench.order(2) == "ab"


def test_kvflow_keeps_what_runs_next():
    """Dynamic parts go first, then the fixed prompt of the agent with the most steps to go."""
    bench = Bench(KVFlow())
    bench.end("a", 0, length=4, session="a", steps_to_execution=1, fixed_tokens=3)
    bench.end("b", 1, length=4, session="b", steps_to_execution=5, fixed_tokens=2)
    assert [bench.evict(9) for _ in range(4)] == ["a", "b2", "b2", "a3"]


def test_kvflow_keeps_a_shared_prefix_for_the_nearest_agent():
    """A prefix used by an agent 1 step and one 5 steps away counts as 1 step away."""
    bench = Bench(KVFlow())
    shared = bench.end("s", 0, session="a", steps_to_execution=1)
    bench.end("x", 0, session="c", steps_to_execution=3)
    bench.reuse(shared, 1, session="b", steps_to_execution=5)
    assert bench.order(2) == "xs"


def test_queue_lookahead_spares_what_waits():
    """a is wanted by a waiting request, of b the first 2 of 3 blocks are; LRU in the end."""
    bench = Bench(QueueLookahead())
    bench.end("a", 0)
    bench.end("b", 1, length=3)
    bench.end("c", 2)
    bench.policy.waiting = [bench.request("a", 3), bench.request("b", 3)]
    assert [bench.evict(9), bench.evict(9)] == ["b", "c"]
    assert [bench.evict(9), bench.evict(9)] == ["a", "b2"]  # all is wanted
    bench.end("a", 3)
    bench.end("c", 4)
    assert bench.evict() == "c"
    bench.policy.waiting = []  # nobody waits any more
    bench.end("c", 5)
    assert bench.order(2) == "ac"


def test_rlt_takes_leaves_with_equal_probability():
    """A long prompt and a short one are one leaf each: 2,000 draws, 1,000 each within 5 sigma."""
    bench = Bench(RLT(seed=1))
    bench.end("a", 0, length=1500)
    bench.end("b", 0, length=1500)
    order = bench.order(2000)
    assert abs(order.count("a") - 1000) < 5 * math.sqrt(500)
    twin = Bench(RLT(seed=1))
    twin.end("a", 0, length=1500)
    twin.end("b", 0, length=1500)
    assert twin.order(2000) == order  # the seed decides


def test_rlt_never_takes_what_is_continued():
    """The first part of a prompt is a leaf only when what follows is gone."""
    bench = Bench(RLT())
    request = bench.request("p", 4)
    bench.end("deep", 0, start=2, length=2, request=request)
    bench.end("root", 0, length=2, request=request)
    assert bench.order(4) == "deepdeeprootroot"


def test_gdsf_weighs_recomputing():
    """Block 300 of 100 tokens costs 1 + 1 = 2 at a crossover of 30,000 tokens: 1 use beats 1."""
    policy = GDSF()
    bench = Bench(policy)
    policy.pool.block_size = 100
    bench.end("a", 0, start=300, length=1)
    bench.end("b", 1)
    bench.end("c", 2)
    assert bench.order(3) == "bca"
    assert policy.clock == pytest.approx(2 + 1 / 600)
    with pytest.raises(ConfigError, match="crossover_tokens is 0"):
        GDSF(0)


def test_pgdsf_pays_per_miss_what_the_request_paid():
    """Two requests of 10 tokens: the one that hit 8 paid 1 + 18/2/10 = 1.9 a token, not 1.5."""
    policy = PGDSF(crossover_tokens=10)
    bench = Bench(policy)
    bench.end("a", 0, length=10)
    prefix = bench.end("b", 0, length=8)
    request = bench.request("b", 10)
    policy.hit(prefix, request, 1)
    prefix.ref_cnt = 1
    tail = bench.end("t", 2, start=8, length=2, request=request)
    assert policy.rank_of(tail) == pytest.approx(1.9)
    prefix.ref_cnt = 0
    policy.release(prefix, request, 2)
    assert policy.rank_of(prefix) == pytest.approx(2 * 1.4)  # computed by the first of them


def test_pgdsf_forgets_a_request_that_had_nothing_of_its_own():
    """A prefix that another request holds is hit; that request ends and releases no new span."""
    policy = PGDSF()
    bench = Bench(policy)
    prefix = bench.end("b", 0, length=8)
    prefix.ref_cnt = 1
    for now in range(10):
        policy.hit(prefix, bench.request("b", 10), now)
    assert not policy._num_hit


def test_freq_cost_is_uses_per_second_times_cost():
    """At 10 s: a 2 uses in 10 s at depth 1, b 1 use in 2 s at depth 1, c 1 in 10 s at depth 2."""
    bench = Bench(FreqCost())
    span = bench.end("a", 0)
    bench.end("c", 0, start=1)
    bench.end("b", 8)
    bench.reuse(span, 10)
    bench.policy._num_left = 0  # refresh
    assert bench.order(3) == "acb"  # 0.2, 0.4, 0.5


def oracle(accuracy, **options):
    policy = NoisyOracle(accuracy, **options)
    bench = Bench(policy)
    requests = [bench.request(name, 2) for name in "abcab"]
    policy.prepare(requests)
    for now, request in enumerate(requests[:3]):
        bench.end("abc"[now], now, request=request)
    return bench


def test_an_exact_oracle_knows_the_next_use():
    """After a b c the future is a b: c goes first, then b."""
    assert oracle(1.0).order(3) == "cba"


def test_a_wrong_oracle_guesses():
    """With accuracy 0 the order depends on the seed alone, and differs between seeds."""
    orders = [oracle(0.0, seed=seed).order(3) for seed in range(20)]
    assert len(set(orders)) > 2
    assert orders == [oracle(0.0, seed=seed).order(3) for seed in range(20)]


def test_an_oracle_without_a_future_says_so():
    """Forgetting prepare() is an error of one line."""
    with pytest.raises(ConfigError, match="give all requests to prepare"):
        Bench(NoisyOracle()).end("a")
