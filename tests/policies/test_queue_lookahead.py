"""Queue look-ahead decides as its rule says, written down without any bookkeeping."""

from __future__ import annotations

from collections import deque

import pytest

from policies import queue_lookahead, ranked
from policies.queue_lookahead import QueueLookahead, Wanted
from policies.radix import RadixBlockManager
from policies.ranked import Ranked
from policies.vllm import VLLMBlockManager
from sim.cache import Span
from sim.checks.twins import Letters, Twins
from sim.keys import SegmentKeys
from sim.request import Request

WINDOW = 4


class Plain(Ranked):
    """Evict what no waiting request wants, LRU; each time, all spans against all requests."""

    lists_in_order = False

    def rank(self, span, request, now):
        return 0

    def victim(self, num_blocks):
        spans = [span for span in self if not self.pool.leaf_only or self.pool.may_evict(span)]
        for span in spans:
            queue = list(self.waiting)[:WINDOW]
            num_wanted = max((self.num_wanted(span, request) for request in queue), default=0)
            if num_wanted < span.num_blocks:
                return span, min(num_blocks, span.num_blocks - num_wanted)
        return spans[0], min(num_blocks, spans[0].num_blocks)

    def num_wanted(self, span, request):
        stop = min((request.num_tokens - 1) // self.pool.block_size, span.start + span.num_blocks)
        return sum(request.keys[i] == span.key(i - span.start) for i in range(span.start, stop))


class Queued(Twins):
    """Others wait too: they come and go at random, between and among the program's own requests."""

    others = ()

    def _do(self, operation):
        if self.rng.random() < 0.4:
            others = list(self.others)
            if others and self.rng.random() < 0.5:
                others.pop(self.rng.integers(len(others)))
            else:
                text = self.texts[self.rng.integers(len(self.texts))]
                keys = Letters(text, self.block_size)
                request = Request(f"other {self.now}", keys, max(1, len(text)), 1)
                others.insert(self.rng.integers(len(others) + 1), request)
            self.others = others[:6]
        waiting = [r for r in self.requests if not r.num_computed_tokens]
        waiting[1:1] = self.others
        for manager in self.managers:
            manager.policy.waiting = waiting
        super()._do(operation)


def manager(mode):
    if mode == "radix":
        return lambda policy: lambda n, size: RadixBlockManager(n, size, eviction=policy())
    victims = {"victims": "leaf"} if mode == "leaf" else {}
    return lambda policy: lambda n, size: VLLMBlockManager(n, size, eviction=policy(), **victims)


@pytest.mark.parametrize("mode", ["block", "leaf", "radix"])
@pytest.mark.parametrize("is_small", [True, False])
def test_equal_to_the_rule_written_down(mode, is_small, monkeypatch):
    """40 random programs each; heaps rebuilt and positions forgotten all the time, or never."""
    if is_small:
        monkeypatch.setattr(ranked, "SPARE_ENTRIES", 0)
        monkeypatch.setattr(queue_lookahead, "SPARE_ENTRIES", 0)
        monkeypatch.setattr(queue_lookahead, "MOST_POSITIONS", 2)
    make = manager(mode)
    for seed in range(40):
        Queued(make(Plain), make(lambda: QueueLookahead(WINDOW)), seed).run(80)


class Prompt(Span):
    """The first blocks of a prompt of one letter."""

    __slots__ = ("letter",)

    def __init__(self, letter, num_blocks):
        super().__init__(num_blocks)
        self.letter = letter

    def key(self, i):
        return self.letter * (i + 1)


def request(letter, num_blocks):
    return Request(letter, Letters(letter * 9, 1), num_blocks + 1, 1)


def test_a_preempted_request_that_grew_wants_more():
    """It was admitted, computed and is back before anyone needed memory: the queue looks alike."""
    policy, span, one = QueueLookahead(), Prompt("a", 4), request("a", 2)
    policy.bind(VLLMBlockManager(10, 1))
    policy.release(span, one, 0.0)
    policy.waiting = [one]
    assert policy.victim(9) == (span, 2)
    one.num_output_tokens = 1
    assert policy.victim(9) == (span, 1)


def test_the_last_to_want_it_answers_for_what_is_spared():
    """Of three who want a the third leaves last in a queue: until then nothing is looked at."""
    policy, spans = QueueLookahead(), [Prompt("a", 2), Prompt("b", 2)]
    policy.bind(VLLMBlockManager(10, 1))
    policy.waiting = [request("a", 2) for _ in range(3)]
    for span in spans:
        policy.release(span, request("-", 1), 0.0)
    assert policy.victim(9) == (spans[1], 2)
    assert policy._spared == {spans[0]: policy.waiting[2]}


def test_known_positions_are_bounded(monkeypatch):
    """A span of 9 blocks of which 8 are wanted is bisected; two positions are kept."""
    monkeypatch.setattr(queue_lookahead, "MOST_POSITIONS", 2)
    wanted = Wanted()
    wanted.join(request("a", 8))
    assert wanted.num_blocks(Prompt("a", 9)) == 8
    assert len(wanted._at) <= 2


class Counted(SegmentKeys):
    """Counts how often a key is asked for, in all."""

    num_asked = 0

    def __getitem__(self, i, /):
        Counted.num_asked += 1
        return super().__getitem__(i)


def test_a_victim_costs_what_changed():
    """100 prefixes are cached and wanted; scans go by, and each time one leaves and one comes."""
    policy = QueueLookahead()
    pool = VLLMBlockManager(700, 1, eviction=policy, null_block=False)

    def prompt(prefix, i):
        return Request(i, Counted([prefix, 1000 + i], [5, 8], 1), 7, 1)

    def serve(request):
        hit = pool.get_computed_blocks(request)
        assert pool.allocate_slots(request, 7 - hit.num_tokens, hit) is not None
        request.num_computed_tokens = 7
        pool.free(request)

    for i in range(100):
        serve(prompt(i, i))
    policy.waiting = deque(prompt(i, 1000 + i) for i in range(100))
    for i in range(100):
        serve(prompt(100 + i, 2000 + i))
    Counted.num_asked = 0
    for i in range(300):
        serve(prompt(1000 + i, 3000 + i))
        serve(policy.waiting.popleft())
        policy.waiting.append(prompt(i % 100, 4000 + i))
    assert len(policy._spared) > 50
    assert Counted.num_asked < 300 * 40
    assert len(policy._spared_heap) <= 2 * 100 + ranked.SPARE_ENTRIES + 1
    policy.waiting.clear()
    serve(prompt(5000, 5000))
    assert not policy._spared
    assert not policy._accounts
