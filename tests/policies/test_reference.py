"""The reference manager's hits and the order of its free queue, worked out by hand."""

from __future__ import annotations

import pytest

from policies.reference import ReferenceBlockManager

BOTH_ORDERS = pytest.mark.parametrize("free_order", ["tail", "unhashed_first"])


def usable(num_blocks, block_size=4, **options):
    """A manager without a null block: all its blocks can be used, counted from 0."""
    return ReferenceBlockManager(num_blocks, block_size, null_block=False, **options)


@pytest.mark.parametrize(
    ("num_tokens", "hit"), [(3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8)]
)
@BOTH_ORDERS
def test_a_whole_prompt_in_the_cache_recomputes_its_last_block(
    serving, free_order, num_tokens, hit
):
    """Case A1: the second time a prompt of P tokens hits 4 * floor((P - 1) / 4)."""
    server = serving(usable(20, free_order=free_order))
    assert server.run(server.prompt(range(num_tokens))) == 0
    assert server.run(server.prompt(range(num_tokens))) == hit


def test_hits_are_tokens(serving):
    """Case A5: 9 tokens, then their first 8 and 7 new ones: 8 of 15 hit, 8 of 24 in all."""
    server = serving(usable(20))
    requests = [server.prompt(range(9)), server.prompt([*range(8), *range(50, 57)])]
    hits = [server.run(request) for request in requests]
    assert hits == [0, 8]
    assert hits[1] / requests[1].num_prompt_tokens == 8 / 15
    assert sum(hits) / sum(r.num_prompt_tokens for r in requests) == pytest.approx(1 / 3)


@BOTH_ORDERS
def test_an_endless_cache_misses_each_key_once(serving, free_order):
    """Case A9: of a b a c b a d a the accesses 3, 5, 6 and 8 hit; nothing is evicted."""
    server = serving(usable(9, free_order=free_order))
    assert server.hits("abacbada") == [3, 5, 6, 8]
    assert server.manager.num_evicted_blocks == 0
    assert server.holds("abcd") == "abcd"


@pytest.mark.parametrize(
    ("num_prompt", "num_outputs", "hit"),
    [(6, 1, 4), (6, 2, 4), (6, 3, 8), (6, 6, 8), (6, 7, 12), (8, 1, 8), (7, 1, 4), (7, 2, 8)],
)
def test_the_last_output_token_has_no_kv(serving, num_prompt, num_outputs, hit):
    """Case H4: the next turn, prompt + O outputs + 1 token, hits 4 * floor((P + O - 1) / 4)."""
    server = serving(usable(20))
    answer = range(900, 900 + num_outputs)
    server.run(server.prompt(range(num_prompt), answer=answer))
    assert server.run(server.prompt([*range(num_prompt), *answer, 77])) == hit


def test_the_limit_of_a_hit_counts_outputs(serving):
    """Easy mistake 3: a preempted 8-token prompt with one output may hit 8, a new one only 4."""
    server = serving(usable(20))
    request = server.prompt(range(8), num_outputs=4)
    server.admit(request)
    server.decode(request)
    server.manager.free(request)
    request.num_computed_tokens = 0
    assert request.num_tokens == 9
    assert server.manager.get_computed_blocks(request).num_tokens == 8
    assert server.look_up(range(8)) == 4


def test_an_empty_prompt_hits_nothing(serving):
    """Case G3, the manager's part: num_tokens - 1 is -1 and must not look anything up."""
    server = serving(usable(4))
    server.run(server.prompt(range(9)))
    assert server.look_up([]) == 0


def test_a_drafting_model_drops_the_last_hit_block(serving):
    """Fact sheet 3: with EAGLE, 12 cached tokens at block size 4 give one block, 3 tokens none."""
    server = serving(usable(20, use_eagle=True))
    server.run(server.prompt(range(12)))
    assert server.look_up(range(12)) == 4
    assert server.look_up(range(8)) == 0
    assert server.look_up(range(3)) == 0


def test_who_may_not_read_still_writes(serving):
    """Fact sheet 3: a prompt_logprobs request looks nothing up; its blocks are cached."""
    server = serving(usable(20))
    request = server.prompt(range(9))
    request.skip_reading_prefix_cache = True
    server.run(server.prompt(range(5)))
    assert server.run(request) == 0
    assert server.look_up(range(9)) == 8


def test_without_caching_nothing_is_found(serving):
    """Caching off: no hit and no hash; all blocks of a request count as unhashed when freed."""
    server = serving(usable(6, free_order="unhashed_first", enable_caching=False))
    for queue in ([2, 1, 0, 3, 4, 5], [0, 1, 2, 3, 4, 5]):
        assert server.run(server.prompt(range(9))) == 0
        assert server.queue() == queue
        assert server.manager.num_cached_blocks == 0


def test_zero_is_a_key_a_token_a_block_and_a_request(serving):
    """Case J19: keys 0 0 1 0 hit at 2 and 4; nine zeros hit 0, then 8; block 0 is in the table."""
    server = serving(usable(20))
    assert [server.use_key(key) for key in (0, 0, 1, 0)] == [False, True, False, True]

    server = serving(usable(20))
    first = server.prompt([0] * 9)
    assert first.request_id == 0
    assert server.admit(first) == 0
    assert server.table(first) == [0, 1, 2]
    server.manager.free(first)
    assert server.run(server.prompt([0] * 9)) == 8


@BOTH_ORDERS
def test_a_chain_goes_tail_first(serving, free_order):
    """Case B1: of [1, 2, 3] at block size 1 the block of 3 goes first, so 2 tokens still hit."""
    server = serving(usable(3, 1, free_order=free_order))
    server.run(server.prompt([1, 2, 3]))
    assert server.queue() == [2, 1, 0]
    other = server.prompt([9])
    server.admit(other)
    assert server.table(other) == [2]
    server.manager.free(other)
    assert server.look_up([1, 2, 3, 4]) == 2


@pytest.mark.parametrize(
    ("free_order", "hits"), [("unhashed_first", [4, 4, 4]), ("tail", [0, 4, 4])]
)
def test_where_partial_blocks_enter_the_queue(serving, free_order, hits):
    """Case B3: three 5-token prompts in 4 blocks: at the front a partial block costs no content."""
    server = serving(usable(4, free_order=free_order))
    prompts = [range(n, n + 5) for n in (10, 20, 30)]
    for tokens in prompts:
        server.run(server.prompt(tokens))
    assert [server.look_up(tokens) for tokens in prompts] == hits


def test_unhashed_blocks_go_before_older_unhashed_ones(serving):
    """Easy mistake 2: table 1..5 with 1..3 hashed gives 5 4, the old queue, 3 2 1."""
    server = serving(ReferenceBlockManager(9, 4, free_order="unhashed_first"))
    request = server.prompt(range(13))
    server.admit(request, num_lookahead_tokens=4)
    assert server.table(request) == [1, 2, 3, 4, 5]
    server.manager.free(request)
    assert server.queue() == [5, 4, 6, 7, 8, 3, 2, 1]
    server.run(server.prompt(range(50, 53)))  # takes 5, gives it back unhashed
    assert server.queue() == [5, 4, 6, 7, 8, 3, 2, 1]


def test_a_new_entry_is_used_at_its_insertion(serving):
    """Case B5: capacity 3, put a, b, get a, put c, d: d evicts b."""
    server = serving(usable(3))
    assert server.hits("abacd") == [3]
    assert server.holds("abcd") == "acd"


@pytest.mark.parametrize(
    ("case", "capacity", "trace", "hits", "left"),
    [
        ("B7", 2, "ABACA", [3, 5], "AC"),
        ("J17", 3, "AABACBDE", [2, 4, 6], "BDE"),
        ("J18", 2, "1231", [], "13"),
    ],
)
@BOTH_ORDERS
def test_least_recently_used(serving, free_order, case, capacity, trace, hits, left):
    """Cases B7, J17, J18: a hit moves a key to the end; the capacity is a hard limit."""
    server = serving(usable(capacity, free_order=free_order))
    assert server.hits(trace) == hits, case
    assert server.holds("".join(sorted(set(trace)))) == left
    assert server.manager.num_cached_blocks == capacity


@pytest.mark.parametrize(
    ("free_order", "queue"),
    [("tail", [4, 5, 6, 7, 1, 2, 3, 0]), ("unhashed_first", [3, 2, 4, 5, 6, 7, 1, 0])],
)
def test_the_last_user_decides_a_blocks_place(serving, free_order, queue):
    """Easy mistake 1: a lookup moves nothing; a shared block is placed when its last user ends.

    Block 0 is shared by two requests that end after each other; 1 is older in the queue.
    """
    server = serving(usable(8, free_order=free_order))
    for start in (0, 20):
        server.run(server.prompt(range(start, start + 4)))
    before = [2, 3, 4, 5, 6, 7, 0, 1]
    assert server.queue() == before
    assert server.look_up(range(5)) == 4
    assert server.queue() == before

    one, two = server.prompt([*range(4), 50]), server.prompt([*range(4), 60])
    server.admit(one)
    server.admit(two)
    assert (server.table(one), server.table(two)) == ([0, 2], [0, 3])
    assert server.queue() == [4, 5, 6, 7, 1]
    server.manager.free(one)
    assert 0 not in server.queue()
    server.manager.free(two)
    assert server.queue() == queue


def test_a_look_up_that_misses_changes_nothing(serving):
    """Case J21: put a, b; ten look-ups of absent keys; put c: all three stay, none evicted."""
    server = serving(usable(3))
    server.hits("ab")
    before = server.state()
    for n in range(10):
        assert server.look_up([n] * 5) == 0
    assert server.state() == before
    server.hits("c")
    assert server.holds("abc") == "abc"
    assert server.manager.num_evicted_blocks == 0
