"""The radix manager: SGLang's tree, its books and its strategies."""

from __future__ import annotations

import heapq
from itertools import count

import numpy as np
import pytest

from policies.lru import LRU
from policies.radix import RadixBlockManager
from policies.vllm import VLLMBlockManager
from sim.checks.letters import Letters
from sim.engine import Engine
from sim.errors import ConfigError
from sim.events import AllBlocksCleared, BlockRemoved, BlockStored
from sim.keys import SegmentKeys, TokenKeys
from sim.latency import Constant
from sim.replay import replay
from sim.request import Request, RequestStatus
from sim.scheduler_config import SchedulerConfig

STRATEGIES = ("lru", "lfu", "fifo", "mru", "filo", "slru", "priority")


class Literal:
    """SGLang's radix cache written down from its rules, page by page, without any index.

    Content is text; a node is a dict. Every eviction looks at all leaves anew.
    """

    def __init__(self, num_pages, page_size, strategy, whole):
        self.page, self.strategy, self.whole = page_size, strategy, whole
        self.clock = count(1)
        self.root = self.node("", None, 0)
        self.root["lock"] = 1
        self.free = num_pages
        self.num_evicted = 0

    def node(self, text, parent, priority):
        now = next(self.clock)
        node = {"text": text, "parent": parent, "priority": priority, "children": []}
        return node | {"lock": 0, "hits": 0, "created": now, "last": now}

    def rank(self, node):
        protected = node["hits"] >= 2
        return {
            "lru": (node["last"],),
            "lfu": (node["hits"], node["last"]),
            "fifo": (node["created"],),
            "mru": (-node["last"],),
            "filo": (-node["created"],),
            "slru": (protected, node["last"]),
            "priority": (node["priority"], node["last"]),
        }[self.strategy]

    def pages(self, node):
        return len(node["text"]) // self.page

    def common(self, one, other):
        size = 0
        while one[size : size + self.page] == other[size : size + self.page] != "":
            size += self.page
        return min(size, len(one) // self.page * self.page, len(other) // self.page * self.page)

    def step_down(self, node, text):
        """The child that starts like *text*, and how much of it is equal; None if there is none."""
        for child in node["children"]:
            if equal := self.common(child["text"], text):
                return child, equal
        return None

    def split(self, node, size):
        parent = node["parent"]
        upper = self.node(node["text"][:size], parent, node["priority"])
        upper["lock"], upper["hits"], upper["children"] = node["lock"], node["hits"], [node]
        parent["children"] = [upper if child is node else child for child in parent["children"]]
        node["text"], node["parent"] = node["text"][size:], upper
        return upper

    def look_up(self, text):
        """How much of *text* is cached; changes nothing."""
        node, found = self.root, 0
        while step := self.step_down(node, text[found:]):
            node, equal = step
            found += equal
            if equal < len(node["text"]):
                break
        return found

    def match(self, text):
        """Stamp and split down to the end of *text*, all of which is cached."""
        node, now = self.root, next(self.clock)
        while text:
            child, equal = self.step_down(node, text)
            child["last"] = now
            node = self.split(child, equal) if equal < len(child["text"]) else child
            text = text[equal:]
        return node

    def insert(self, text, priority, counts):
        """Add *text*; how much of it was there already."""
        node, now, known = self.root, next(self.clock), 0
        while step := self.step_down(node, text[known:]):
            node, equal = step
            node["last"] = now
            known += equal
            if equal < len(node["text"]):
                node = self.split(node, equal)
            node["priority"] = max(node["priority"], priority)
            node["hits"] += counts
        if len(text) - known >= self.page:
            leaf = self.node(text[known:], node, priority)
            leaf["hits"] += counts
            node["children"].append(leaf)
        return known

    def lock(self, node, by):
        while node is not self.root:
            node["lock"] += by
            node = node["parent"]

    def nodes(self):
        stack, found = list(self.root["children"]), []
        while stack:
            found.append(stack.pop())
            stack += found[-1]["children"]
        return found

    def evictable(self):
        return sum(self.pages(node) for node in self.nodes() if not node["lock"])

    def make_room(self, num_pages):
        leaves = [n for n in self.nodes() if not n["lock"] and not n["children"]]
        heap = [(self.rank(leaf), id(leaf), leaf) for leaf in leaves]
        heapq.heapify(heap)
        while self.free < num_pages:
            _, _, leaf = heapq.heappop(heap)
            size = self.pages(leaf) if self.whole else min(self.pages(leaf), num_pages - self.free)
            leaf["text"] = leaf["text"][: len(leaf["text"]) - size * self.page]
            self.free += size
            self.num_evicted += size
            if leaf["text"]:
                continue
            parent = leaf["parent"]
            parent["children"].remove(leaf)
            if not parent["children"] and not parent["lock"]:
                heapq.heappush(heap, (self.rank(parent), id(parent), parent))


class Pair:
    """A random engine's calls to the manager, followed by the literal cache."""

    def __init__(self, seed, strategy, whole):
        rng = self.rng = np.random.default_rng(seed)
        self.page, num_pages = int(rng.integers(1, 4)), int(rng.integers(4, 16))
        self.manager = RadixBlockManager(
            num_pages, self.page, strategy=strategy, evict_whole_nodes=whole
        )
        self.literal = Literal(num_pages, self.page, strategy, whole)
        self.running = {}  # request -> [node, protected, pages of its own, computed at last count]
        self.texts = [""]
        self.ids = count()

    def cut(self, text):
        return text[: len(text) // self.page * self.page]

    def arrive(self):
        rng = self.rng
        base = self.texts[rng.integers(len(self.texts))]
        base = base[: rng.integers(len(base) + 1)]
        text = base + "".join(rng.choice(list("ab"), size=int(rng.integers(1, 4 * self.page))))
        self.texts = [*self.texts[-8:], text]
        keys = Letters(text, self.page)
        request = Request(next(self.ids), keys, len(text), 99, priority=int(rng.integers(-2, 3)))
        hit = self.manager.get_computed_blocks(request)
        assert hit.num_tokens == self.literal.look_up(self.cut(text[:-1]))
        self.allocate(request, int(rng.integers(1, len(text) - hit.num_tokens + 1)), hit)

    def allocate(self, request, num_tokens, hit=None):
        literal, arguments = self.literal, (hit,) if hit else ()
        state = self.running.get(request)
        num_hit = hit.num_tokens if hit else 0
        computed = request.num_computed_tokens + num_hit + num_tokens
        owned = state[1] + state[2] if state else num_hit // self.page
        need = max(0, -(-computed // self.page) - owned)
        given = self.manager.allocate_slots(request, num_tokens, *arguments)
        if not state:
            before = literal.evictable()
            node = literal.root
            if num_hit and given:
                node = literal.match(request.keys.text[:num_hit])
                literal.lock(node, 1)
            if given is None:
                idle = self.idle_hits(request.keys.text[:num_hit])
                assert need + idle > literal.free + before
                return
            state = self.running[request] = [node, num_hit // self.page, 0, 0]
        assert (given is None) == (need > literal.free + literal.evictable())
        if given is None:
            return
        assert given.num_new_blocks == need
        literal.make_room(need)
        literal.free -= need
        state[2] += need
        request.num_computed_tokens = computed

    def idle_hits(self, text):
        node, idle = self.literal.root, 0
        while text:
            node, equal = self.literal.step_down(node, text)
            idle += 0 if node["lock"] else equal // self.page
            text = text[equal:]
        return idle

    def computed(self, request):
        """A prefill chunk is done: the unfinished request is inserted."""
        literal, state = self.literal, self.running[request]
        done = request.num_computed_tokens
        self.manager.cache_blocks(request, done)
        counts = done == request.num_tokens
        text = self.cut(request.keys.text[:done])
        known = literal.insert(text, -request.priority, counts) // self.page
        literal.free += known - state[1]  # the duplicates
        state[2] -= len(text) // self.page - state[1]
        node = literal.match(text)
        literal.lock(state[0], -1)
        literal.lock(node, 1)
        state[:2] = node, len(text) // self.page
        state[3] = done if counts else state[3]

    def finish(self, request):
        literal, state = self.literal, self.running.pop(request)
        self.manager.free(request)
        done = request.num_computed_tokens
        text = self.cut(request.keys.text[:done])
        known = literal.insert(text, -request.priority, done > state[3]) // self.page
        kept = len(text) // self.page - known
        literal.free += state[2] - kept
        literal.lock(state[0], -1)

    def act(self):
        requests = list(self.running)
        if not requests or (len(requests) < 4 and self.rng.random() < 0.4):
            return self.arrive()
        request = requests[self.rng.integers(len(requests))]
        missing = request.num_tokens - request.num_computed_tokens
        if missing > 0 and self.rng.random() < 0.8:
            num_before = request.num_computed_tokens
            self.allocate(request, int(self.rng.integers(1, missing + 1)))
            if request.num_computed_tokens > num_before and request.num_output_tokens == 0:
                self.computed(request)
        elif missing == 0 and self.rng.random() < 0.6:
            request.num_output_tokens += 1
            request.keys.text += str(self.rng.choice(list("ab")))
            self.texts.append(request.keys.text)
        else:
            self.finish(request)
        return None

    def compare(self):
        manager, literal = self.manager, self.literal
        manager.check()
        assert manager.num_cached_blocks == literal.evictable()
        assert manager.num_free_blocks == literal.free + literal.evictable()
        assert manager.num_evicted_blocks == literal.num_evicted
        contents = sorted(b.key for b in manager.free_blocks() if b.key is not None)
        assert contents == sorted(self.evictable_contents())

    def evictable_contents(self):
        stack = [("", node) for node in self.literal.root["children"]]
        while stack:
            before, node = stack.pop()
            text = before + node["text"]
            if not node["lock"]:
                yield from (
                    text[:end] for end in range(len(before) + self.page, len(text) + 1, self.page)
                )
            stack += [(text, child) for child in node["children"]]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_same_as_the_rules_written_down(strategy, whole):
    """Hits, refusals, evictions and content equal SGLang's rules in 60 random programs each."""
    num_evicted = num_hit = 0
    for seed in range(60):
        pair = Pair(seed, strategy, whole)
        for _ in range(60):
            pair.act()
            pair.compare()
        num_evicted += pair.literal.num_evicted
        num_hit += sum(state[1] for state in pair.running.values())
    assert num_evicted > 200
    assert num_hit > 30


def test_books_of_a_shared_tree(serving):
    """Case C8: shared pages count once; free + evictable + protected = pool, idle and held."""
    manager = RadixBlockManager(3, 4)
    serve = serving(manager)
    serve.run(serve.prompt(range(8)))
    serve.run(serve.prompt([0, 1, 2, 3, 9, 9, 9, 9]))
    assert (manager.num_cached_blocks, manager.num_free_blocks) == (3, 3)  # 12, 0 protected
    holder = serve.prompt([*range(8), 7])
    hit = manager.get_computed_blocks(holder)
    assert hit.num_tokens == 8
    assert manager.allocate_slots(holder, 0, hit) is not None
    assert (manager.num_cached_blocks, manager.num_free_blocks) == (1, 1)  # 4 evictable, 8 held
    manager.free(holder)
    assert (manager.num_cached_blocks, manager.num_free_blocks, manager.usage) == (3, 3, 0)


def test_nothing_is_hit_before_it_is_computed(serving):
    """Content is inserted when it is reported as computed, not when it is scheduled."""
    manager = RadixBlockManager(20, 2)
    serve = serving(manager)
    first = serve.prompt([1, 2, 3, 4, 5])
    serve.admit(first)
    assert serve.look_up([1, 2, 3, 4, 9]) == 0
    manager.cache_blocks(first, 3)
    assert serve.look_up([1, 2, 3, 4, 9]) == 2
    manager.cache_blocks(first, 5)
    assert serve.look_up([1, 2, 3, 4, 9]) == 4


def test_duplicates_are_given_back(serving):
    """Two requests that compute the same at the same time end up with one copy, both using it."""
    manager = RadixBlockManager(20, 2)
    serve = serving(manager)
    one, other = serve.prompt([1, 2, 3, 4, 5]), serve.prompt([1, 2, 3, 4, 5])
    serve.admit(one)
    serve.admit(other)
    assert manager.num_free_blocks == 14
    manager.cache_blocks(one, 5)
    manager.cache_blocks(other, 5)
    assert manager.num_free_blocks == 16
    assert [block.ref_cnt for block in manager.table(other.request_id)] == [2, 2, 1]
    manager.free(one)
    manager.free(other)
    assert (manager.num_cached_blocks, manager.num_free_blocks) == (2, 20)


def test_whole_leaves_are_evicted(serving):
    """One block short: SGLang gives up the whole leaf of 3, the exact mode its last block."""
    for whole, left in ((True, 0), (False, 4)):
        manager = RadixBlockManager(4, 2, evict_whole_nodes=whole)
        serve = serving(manager)
        serve.run(serve.prompt([1, 2, 3, 4, 5, 6]))
        serve.admit(serve.prompt([7, 7, 7]))
        assert serve.look_up([1, 2, 3, 4, 5, 6, 7]) == left
        assert manager.num_evicted_blocks == (3 if whole else 1)


def test_a_parent_goes_after_its_children(serving):
    """The older parent stays as long as the newer leaf hangs on it, whatever the strategy."""
    for strategy in STRATEGIES:
        manager = RadixBlockManager(4, 2, strategy=strategy)
        serve = serving(manager)
        serve.run(serve.prompt([1, 2]))
        serve.run(serve.prompt([1, 2, 3, 4]))
        serve.admit(serve.prompt([7, 7, 7, 7, 7, 7]))  # 3 blocks; 2 are blank
        assert serve.look_up([1, 2, 3, 4, 5]) == 2, strategy


def used(serving, strategy, *prompts):
    """What is left of one-block prompts after one of them had to go."""
    manager = RadixBlockManager(3, 1, strategy=strategy)
    serve = serving(manager)
    for letter, priority in prompts:
        request = serve.prompt([ord(letter)])
        request.priority = priority
        serve.run(request)
    serve.admit(serve.prompt([0]))
    return "".join(a for a in "abc" if serve.look_up([ord(a), 0]))


@pytest.mark.parametrize(
    ("strategy", "left"),
    [
        ("lru", "ac"),  # b was used longest ago
        ("mru", "ab"),  # c was used last
        ("fifo", "bc"),  # a was created first
        ("filo", "ab"),  # c was created last
        ("lfu", "ab"),  # a was inserted 3 times, b twice, c once
        ("slru", "ab"),  # a and b are protected, c is not
        ("priority", "ac"),  # b is the least important
    ],
)
def test_strategies_by_hand(serving, strategy, left):
    """Pool of 3 pages: a b a b a c, where b has the largest priority number; then one goes."""
    uses = [("a", 0), ("b", 5), ("a", 0), ("b", 5), ("a", 0), ("c", 0)]
    assert used(serving, strategy, *uses) == left


def test_insertions_are_counted_as_in_sglang(serving):
    """hit_count: 1 for a prompt in two chunks, 2 once it has decoded, 1 if it ended at once."""
    manager = RadixBlockManager(20, 2)
    serve = serving(manager)

    def hit_counts():
        return [node.hit_count for node in manager._tree]

    request = serve.prompt([1, 2, 3, 4], num_outputs=3)
    serve.admit(request, 2)
    manager.cache_blocks(request, 2)
    assert hit_counts() == [0]  # a chunk of an unfinished prompt
    manager.allocate_slots(request, 2)
    request.num_computed_tokens = 4
    manager.cache_blocks(request, 4)
    assert hit_counts() == [1, 1]
    serve.decode(request)
    manager.free(request)
    assert hit_counts() == [2, 2]
    serve.run(serve.prompt([5, 6]))
    assert sorted(hit_counts()) == [1, 2, 2]


def test_events(serving):
    """Stored once per content with its parent, removed deepest first, cleared by a reset."""
    events = []
    manager = RadixBlockManager(3, 2, events=events.append)
    serve = serving(manager)
    first = serve.prompt([1, 2, 3, 4])
    serve.run(first)
    serve.run(serve.prompt([1, 2, 3, 4]))  # computes its last block again: nothing new
    assert events == [
        BlockStored((first.keys[0], first.keys[1]), None, (1, 2, 3, 4), 2, (None,) * 2)
    ]
    serve.run(serve.prompt([9, 9, 9, 9, 9, 9]))
    assert [e.block_hash for e in events[1:3] if isinstance(e, BlockRemoved)] == [
        first.keys[1],
        first.keys[0],
    ]
    assert manager.reset_prefix_cache()
    assert isinstance(events[-1], AllBlocksCleared)


def test_reset_waits_for_running_requests(serving):
    """Case C10: refused while a request holds a block; then everything is gone."""
    manager = RadixBlockManager(8, 4)
    serve = serving(manager)
    serve.run(serve.prompt(range(9)))
    running = serve.prompt(range(20, 29), num_outputs=5)
    serve.admit(running)
    assert not manager.reset_prefix_cache()
    assert serve.look_up(range(9)) == 8
    manager.free(running)
    assert manager.reset_prefix_cache()
    assert (serve.look_up(range(9)), manager.num_free_blocks, manager.num_cached_blocks) == (
        0,
        8,
        0,
    )


def test_a_refused_request_changes_nothing(serving):
    """Case C5: hits that are free now count as needed; the refusal leaves the tree as it was."""
    manager = RadixBlockManager(5, 4)
    serve = serving(manager)
    serve.run(serve.prompt(range(9)))
    holder = serve.prompt(range(50, 58))
    serve.admit(holder)
    nodes = [(n.start, n.num_blocks, n.last_access) for n in manager._tree]
    assert serve.admit(serve.prompt([*range(8), *range(80, 88)])) is None
    assert [(n.start, n.num_blocks, n.last_access) for n in manager._tree] == nodes
    assert (manager.num_free_blocks, manager.num_cached_blocks) == (3, 2)
    manager.free(holder)
    assert serve.admit(serve.prompt([*range(8), *range(80, 88)])) == 8


def test_usage_returns_to_zero(serving):
    """Case C3: 50 random requests of 9 tokens; after each nothing is in use."""
    manager = RadixBlockManager(8, 4)
    serve = serving(manager)
    rng = np.random.default_rng(0)
    for _ in range(50):
        serve.run(serve.prompt(rng.integers(0, 2, 9).tolist()))
        assert (manager.usage, manager.num_free_blocks) == (0.0, 8)
        manager.check()


def conversations(seed):
    rng = np.random.default_rng(seed)
    requests = []
    for session in range(8):
        ids, ends, now = [int(rng.integers(3))], [int(rng.integers(1, 9))], float(rng.random() * 9)
        for turn in range(4):
            number = 10 + 100 * session + 2 * turn
            prompt = ends[-1] + int(rng.integers(1, 15))
            answer = int(rng.integers(1, 20))
            ids, ends = [*ids, number, number + 1], [*ends, prompt, prompt + answer]
            keys = SegmentKeys(ids, ends, 3)
            requests.append(Request(f"{session}-{turn}", keys, prompt, answer, now))
            now += float(rng.random() * 20)
    return sorted(requests, key=lambda request: request.arrival_time)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_macro_steps_change_nothing(strategy):
    """The engine serves everyone, with equal results with and without macro steps."""
    for seed in range(12):
        requests = conversations(seed)
        records = []
        for macro_steps in (False, True):
            manager = RadixBlockManager(60, 3, strategy=strategy, evict_whole_nodes=seed % 2 == 0)
            scheduler = SchedulerConfig(
                max_num_batched_tokens=(8, 32)[seed % 2],
                scheduler_reserve_full_isl=seed % 4 < 2,
            )
            engine = Engine(
                manager, latency=Constant(0.25), scheduler=scheduler, macro_steps=macro_steps
            )
            records.append(engine.run(requests))
            assert manager.usage == 0
        plain, macro = records
        assert plain.totals == macro.totals
        assert plain.requests == macro.requests
        assert set(plain.requests["status"]) == {"finished"}
        assert plain.totals["prefix_cache_hits"] > 0


def test_replay_inserts_the_answer_too(serving):
    """A replayed request leaves its prompt, and with decode its answer but the last token."""
    keys = SegmentKeys([1, 2], [8, 13], 4)
    again = Request("b", SegmentKeys([1, 2, 3], [8, 13, 20], 4), 17, 3)
    for decode, hit in ((False, 8), (True, 12)):
        manager = RadixBlockManager(10, 4)
        replay(manager, [Request("a", keys, 8, 5)], decode=decode)
        assert replay(manager, [again], decode=decode).hit_tokens == hit


@pytest.mark.parametrize(("num_blocks", "hit_blocks"), [(2000, 15_942), (5859, 40_640)])
def test_lru_block_by_block_hits_what_vllm_hits(kvsim_data, num_blocks, hit_blocks):
    """Mooncake, prompts only: with one copy of everything the tree hits what vLLM 0.33 does."""
    from workloads.mooncake import Mooncake

    path = kvsim_data / "mooncake" / "conversation_trace.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    workload = Mooncake(str(path), block_size=512)
    manager = RadixBlockManager(num_blocks, 512, eviction=LRU(), evict_whole_nodes=False)
    assert replay(manager, workload).hit_blocks == hit_blocks


def test_any_policy_of_the_project_can_order_the_leaves(serving):
    """`eviction`: with LRU, block by block, it decides as vLLM does where nothing is duplicated.

    Prompts of odd length and blocks of 2: a hit is never cut short, so no block is computed twice.
    """
    for seed in range(40):
        rng = np.random.default_rng(seed)
        prompts = [rng.integers(0, 2, 2 * rng.integers(1, 8) - 1).tolist() for _ in range(40)]
        radix = RadixBlockManager(8, 2, eviction=LRU(), evict_whole_nodes=False)
        vllm = VLLMBlockManager(8, 2, null_block=False, free_order="unhashed_first")
        hits = [[s.run(s.prompt(p)) for p in prompts] for s in map(serving, (radix, vllm))]
        assert hits[0] == hits[1]
        assert radix.num_evicted_blocks == vllm.num_evicted_blocks > 0


def test_wrong_options_are_refused():
    """An unknown strategy, or one beside an eviction policy, is a ConfigError."""
    with pytest.raises(ConfigError, match="strategy is 'arc'; it must be one of lru, lfu"):
        RadixBlockManager(8, strategy="arc")
    with pytest.raises(ConfigError, match="strategy is 'lru' although eviction is given"):
        RadixBlockManager(8, strategy="lru", eviction=LRU())


def test_what_a_preempted_request_computed_is_not_inserted():
    """As in SGLang, which gives the memory of a retracted request back: only full chunks stay."""
    for status, num_hit in ((RequestStatus.PREEMPTED, 4), (RequestStatus.FINISHED, 6)):
        manager = RadixBlockManager(20, 2)
        request = Request(1, TokenKeys(range(9), 2), 6, 3)
        assert manager.allocate_slots(request, 4)
        request.num_computed_tokens = 4
        manager.cache_blocks(request, 4)  # a chunk of the prompt
        assert manager.allocate_slots(request, 2)
        request.num_computed_tokens = 6
        request.status = status
        manager.free(request)
        again = Request(2, TokenKeys(range(9), 2), 9, 1)
        assert manager.get_computed_blocks(again).num_tokens == num_hit
