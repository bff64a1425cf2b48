"""The public checks find what is broken, say which rule it breaks, and pass what is right."""

from __future__ import annotations

import random
import re
import textwrap
from contextlib import suppress
from time import process_time

import pytest

from policies import MANAGERS, POLICIES
from policies.belady import Belady
from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from policies.uncached import UncachedBlockManager
from policies.vllm import VLLMBlockManager
from sim.cache import NO_HIT, EvictionPolicy, Hit
from sim.checks.contract import NotPrepared
from sim.cli import main
from sim.errors import ConfigError
from sim.testing import ContractBroken, check_block_manager, check_eviction_policy


@pytest.fixture(autouse=True)
def _shadow() -> None:
    """Managers here are broken on purpose: only the public checks are to find that."""


HINTS = {"type": ("chat", "tool"), "tool": (None, "search"), "priority": (0, 50, 100)}


class Plain(EvictionPolicy):
    """LRU in a list, right in everything: the broken ones change one method each."""

    def bind(self, pool):
        super().bind(pool)
        self.spans = []

    def release(self, span, request, now):
        self.spans.append(span)

    def hit(self, span, request, now):
        if span.ref_cnt == 0:
            self.spans.remove(span)

    def split(self, upper, lower):
        if lower.ref_cnt == 0:
            self.spans.insert(self.spans.index(lower) + 1, upper)

    def victim(self, num_blocks):
        span = self.spans[0]
        return span, min(num_blocks, span.num_blocks)

    def evicted(self, span, num_blocks):
        if span.num_blocks == 0:
            self.spans.remove(span)

    def forget(self, span):
        self.spans.remove(span)


class OffersSpansInUse(Plain):
    def hit(self, span, request, now):
        pass

    def release(self, span, request, now):
        if span not in self.spans:
            self.spans.append(span)


class OffersNothing(Plain):
    def victim(self, num_blocks):
        return self.spans[0], 0


class OffersMoreThanAsked(Plain):
    def victim(self, num_blocks):
        return self.spans[0], self.spans[0].num_blocks


class ReturnsNone(Plain):
    def victim(self, num_blocks):
        return super().victim(num_blocks) if len(self.spans) < 5 else None


class ForgetsASplit(Plain):
    def split(self, upper, lower):
        pass


class LosesASpan(Plain):
    def release(self, span, request, now):
        if span.start != 1:
            self.spans.append(span)

    def evicted(self, span, num_blocks):
        if span.num_blocks == 0 and span in self.spans:
            self.spans.remove(span)

    hit = split = forget = lambda self, *_: None


class ListsTooFew(Plain):
    def __iter__(self):
        return iter(self.spans[:2])


class Raises(Plain):
    def victim(self, num_blocks):
        return {}["no such key"]


class LoopsForever(Plain):
    def victim(self, num_blocks):
        while len(self.spans) > 2:
            pass
        return super().victim(num_blocks)


class LoopsAndCatchesEverything(Plain):
    def release(self, span, request, now):
        while True:
            with suppress(Exception):
                self.spans.append(self.spans.pop())


class GlobalRandomness(Plain):
    def victim(self, num_blocks):
        span = random.choice(self.spans)
        return span, 1


class Picks(Plain):
    max_span = 1

    def victim(self, num_blocks):
        may_evict, leaf_only = self.pool.may_evict, self.pool.leaf_only
        return self.pick([s for s in self.spans if not leaf_only or may_evict(s)]), 1


class OrderOfASet(Picks):
    def pick(self, spans):
        return next(iter(set(spans)))


class OrderOfHashes(Picks):
    def pick(self, spans):
        return min(spans, key=lambda span: hash(span.key(0)))


class OrderOfAddresses(Picks):
    def pick(self, spans):
        return min(spans, key=id)


class ChangesRefCnt(Plain):
    def release(self, span, request, now):
        super().release(span, request, now)
        span.ref_cnt += 1


class ChangesLengths(Plain):
    def release(self, span, request, now):
        super().release(span, request, now)
        span.num_blocks = 5


class IgnoresLeafMode(Plain):
    """MRU: of one prompt the first block was released last, so it goes first."""

    max_span = 1

    def victim(self, num_blocks):
        return self.spans[-1], 1


class LargestFirst(Plain):
    def victim(self, num_blocks):
        return max(self.spans, key=lambda span: span.num_blocks), 1


class KeepsNoPool(Plain):
    def bind(self, pool):
        self.spans = []


BROKEN_POLICIES = [
    (OffersSpansInUse, "a span in use is never offered", "which 1 requests use"),
    (OffersNothing, "offers 1 to num_blocks blocks", "offered 0 blocks"),
    (OffersMoreThanAsked, "offers 1 to num_blocks blocks", r"victim\(1\) offered [2-9] blocks"),
    (ReturnsNone, "victim\\(\\) returns a span and a number", "it returned None"),
    (ForgetsASplit, "raises nothing", r"victim\(\)|evicted\(\)|hit\(\)"),
    (LosesASpan, "raises nothing|returns a span", "IndexError"),
    (ListsTooFew, "lists each span that it holds once", "lost: blocks"),
    (Raises, r"victim\(\) raises nothing", "KeyError: 'no such key'"),
    (LoopsForever, "every call returns, and soon", r"victim\(\) did not return"),
    (LoopsAndCatchesEverything, "every call returns", r"release\(\) did not return"),
    (GlobalRandomness, "two managers with the same policy decide the same", "differ"),
    (OrderOfASet, "decide the same|in every process", "once|differ"),
    (OrderOfHashes, "the same decisions in every process", "once"),
    (OrderOfAddresses, "decide the same|in every process", "once|differ"),
    (ChangesRefCnt, "ref_cnt belongs to the manager", "from 0 to 1"),
    (ChangesLengths, "num_blocks belongs to the manager", "changed the length"),
    (IgnoresLeafMode, "in leaf mode", "longer cached content hangs on"),
    (LargestFirst, "the decisions for spans are those for single blocks", "differ"),
    (KeepsNoPool, r"bind\(\) keeps the pool", "not the pool"),
]


@pytest.mark.parametrize(("policy", "rule", "seen"), BROKEN_POLICIES)
def test_a_broken_policy_is_named_for_what_it_does(policy, rule, seen):
    """Each kind of bug is reported by the rule it breaks, with what was seen and a program."""
    with pytest.raises(ContractBroken) as broken:
        check_eviction_policy(policy, seconds=2.5)
    assert re.search(rule, broken.value.rule), str(broken.value)
    assert re.search(seen, f"{broken.value.seen} {broken.value.rule}"), str(broken.value)
    assert broken.value.claim in str(broken.value)


def test_a_right_policy_passes():
    """The list that the broken ones derive from keeps every rule, without `__iter__` too."""
    claims = []
    check_eviction_policy(Plain, seconds=2, report=claims.append)
    assert len(claims) == 5


def test_a_hanging_policy_takes_no_longer_than_it_may():
    """The report comes within the time of the check and one second of patience."""
    start = process_time()
    with pytest.raises(ContractBroken, match="did not return"):
        check_eviction_policy(LoopsForever, seconds=1)
    assert process_time() - start < 4


def test_programs_are_short():
    """What is reported for a policy that always fails needs a few operations, not dozens."""
    with pytest.raises(ContractBroken) as broken:
        check_eviction_policy(Raises, seconds=3)
    assert 2 <= len(broken.value.program) <= 12
    assert broken.value.program[0].startswith("block_size ")
    assert "allocate_slots(request" in broken.value.program[-1]


class LookupTouches(ReferenceBlockManager):
    def get_computed_blocks(self, request):
        self.num_evicted_blocks += 1
        return super().get_computed_blocks(request)


class RefusalLeaks(UncachedBlockManager):
    def allocate_slots(self, request, num_new_tokens, hit=NO_HIT, **options):
        given = super().allocate_slots(request, num_new_tokens, hit, **options)
        if given is None:
            self._num_free -= self._num_free > 0
        return given


class FreesTooLittle(UncachedBlockManager):
    def free(self, request, *, now=0.0):
        self._num_free += max(0, self._tables.pop(request.request_id, 0) - 1)


class HitsTheLastToken(UncachedBlockManager):
    enable_caching = True

    def get_computed_blocks(self, request):
        return Hit(request.num_tokens // self.block_size * self.block_size, ())


class HitsWhatNobodyComputed(UncachedBlockManager):
    enable_caching = True

    def get_computed_blocks(self, request):
        return Hit((request.num_tokens - 1) // self.block_size * self.block_size, ())


class TakesFromTheRunning(ReferenceBlockManager):
    """Takes a block in use rather than evict one that is not."""

    def _pop_free_block(self):
        for table in self.tables.values():
            if len(table) > 2:
                table[-1].ref_cnt += 1
                return table[-1]
        return super()._pop_free_block()


class ResetsWhileRunning(VLLMBlockManager):
    def reset_prefix_cache(self):
        super().reset_prefix_cache()
        return True


class RefusesWhatFits(UncachedBlockManager):
    def allocate_slots(self, request, num_new_tokens, hit=NO_HIT, **options):
        if self._num_free < self.num_blocks:
            return None
        return super().allocate_slots(request, num_new_tokens, hit, **options)


class GrowsOtherwise(UncachedBlockManager):
    def grow(self, requests, *, now=0.0):
        for request in requests:
            self._tables[request.request_id] += 2
            self._num_free -= 2


class DecidesByHash(VLLMBlockManager):
    def get_computed_blocks(self, request):
        hit = super().get_computed_blocks(request)
        return NO_HIT if hash(request.keys[0]) % 2 else hit


class HangsOnFree(UncachedBlockManager):
    def free(self, request, *, now=0.0):
        while request.num_tokens > 5:
            pass
        super().free(request, now=now)


BROKEN_MANAGERS = [
    (LookupTouches, "a lookup changes nothing", r"evicted was \d+, is"),
    (RefusalLeaks, "a refused allocation changes nothing", r"free was \d+, is"),
    (FreesTooLittle, "used \\+ free = num_blocks", "in use"),
    (HitsTheLastToken, "at most num_tokens - 1 tokens|that some request has computed", "."),
    (HitsWhatNobodyComputed, "that some request has computed", "never computed"),
    (TakesFromTheRunning, "a block in use keeps its content|used \\+ free|check\\(\\) passes", "."),
    (ResetsWhileRunning, "reset_prefix_cache\\(\\) is refused while", "it returned True"),
    (RefusesWhatFits, "is served|is not refused|without an error", "."),
    (GrowsOtherwise, "usage returns to 0|with and without macro|without an error", "macro_steps"),
    (DecidesByHash, "in every process", "once"),
    (HangsOnFree, "every call returns", r"free\(request \w+\) did not return"),
]


@pytest.mark.parametrize(("manager", "rule", "seen"), BROKEN_MANAGERS)
def test_a_broken_manager_is_named_for_what_it_does(manager, rule, seen):
    """Each kind of bug is reported by the rule it breaks, with what was seen and a program."""
    with pytest.raises(ContractBroken) as broken:
        # To be told apart, processes must be started, which takes a while on a busy machine.
        check_block_manager(manager, seconds=20 if manager is DecidesByHash else 2)
    assert re.search(rule, broken.value.rule), str(broken.value)
    assert re.search(seen, broken.value.seen), str(broken.value)


@pytest.mark.parametrize("name", MANAGERS)
def test_every_manager_keeps_its_contract(name):
    """All managers that have a short name pass."""
    check_block_manager(name, seconds=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "learned"])
def test_every_policy_keeps_its_contract(name):
    """All policies that have a short name pass (`learned` in its own tests: it needs torch)."""
    check_eviction_policy(name, seconds=2, hints=HINTS)


class Picky(Belady):
    def prepare(self, requests):
        raise ConfigError("Picky: needs 10,000 requests to learn from")


def test_a_policy_that_refuses_to_learn_from_so_little_was_not_checked():
    """That is no broken contract, nor a passed check: an error that says what to do."""
    with pytest.raises(NotPrepared, match=r"refuses the small.*10,000 requests.*give arguments"):
        check_eviction_policy(Picky, seconds=2)


def test_other_ways_to_name_what_is_checked():
    """A mapping as in YAML, an object, a function that makes one, and constructor arguments."""
    check_eviction_policy({"use": "lru"}, seconds=0.2)
    check_eviction_policy(LRU(), seconds=0.2)
    check_eviction_policy(lambda: LRU(), seconds=0.2)
    check_block_manager("radix", seconds=0.2, strategy="slru")
    check_block_manager({"use": "vllm", "victims": "leaf"}, seconds=0.2)
    check_block_manager(VLLMBlockManager, seconds=0.2, eviction=LRU(), null_block=False)


class NeedsAlpha(Plain):
    def __init__(self, alpha):
        self.alpha = alpha


class RaisesAtOnce(Plain):
    def __init__(self):
        raise RuntimeError("no licence")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (EvictionPolicy, r"cannot be built \(TypeError: Can't instantiate abstract class"),
        (NeedsAlpha, "NeedsAlpha needs alpha; it takes: alpha"),
        (RaisesAtOnce, "RaisesAtOnce raised RuntimeError: no licence"),
        (lambda: 7, "returned 7, which is not an eviction policy"),
        (VLLMBlockManager, "num_blocks|is not an eviction policy"),
        ("lrru", "no eviction policy is called 'lrru'; did you mean 'lru'"),
    ],
)
def test_what_cannot_be_built_is_explained(policy, message):
    """A ConfigError in one line, not a broken rule."""
    with pytest.raises(ConfigError, match=message) as error:
        check_eviction_policy(policy, seconds=1)
    assert "\n" not in str(error.value)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own in the current folder."""
    source = """
        from policies.lru import LRU

        class Mine(LRU):
            pass

        class Zero(LRU):
            def victim(self, num_blocks):
                return super().victim(num_blocks)[0], 0

        class Fussy(LRU):
            def __init__(self, alpha):
                self.alpha = alpha
    """
    (tmp_path / "own_check.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)


def test_command(own, capsys):
    """`kvsim check` prints what held; 1 with the broken rule in words, 2 for usage errors."""
    assert main(["check", "own_check:Mine", "--seconds", "1"]) == 0
    out = capsys.readouterr().out
    assert "ok      offers only what it may, block by block\n" in out
    assert main(["check", "own_check:Zero", "--seconds", "1"]) == 1
    out = capsys.readouterr().out
    assert (
        "FAILED  offers only what it may, block by block\nrule: victim(num_blocks) offers 1" in out
    )
    assert "program:\n  block_size" in out
    assert main(["check", "uncached", "--seconds", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["own_check:Fussy"], "own_check:Fussy needs alpha"),
        (["own_check:Nobody"], "own_check has no Nobody"),
        (["no_such_module:X"], "cannot import no_such_module"),
        (["lrru"], "'lrru' is no policy or manager; did you mean 'lru'?"),
        (["sim.cache:Span"], "is neither an eviction policy nor a block manager"),
        (["lru", "--seconds", "0"], "--seconds is 0.0; it must be greater than 0"),
    ],
)
def test_command_with_errors(own, capsys, arguments, message):
    """One line on stderr, and exit code 2."""
    assert main(["check", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
