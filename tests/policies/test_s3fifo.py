"""S3-FIFO by hand."""

from __future__ import annotations

import pytest

from policies.reference import ReferenceBlockManager
from policies.s3fifo import S3FIFO
from policies.vllm import VLLMBlockManager
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.request import Request


def server_of(serving, capacity, **arguments):
    policy = S3FIFO(**arguments)
    manager = ReferenceBlockManager(capacity, 1, eviction=policy, null_block=False)
    return serving(manager)


def victims(server, trace):
    """The keys evicted, in order, and the positions of the hits."""
    seen = []
    server.manager.events = lambda event: seen.append(getattr(event, "block_hash", None))
    hits = server.hits(trace)
    return "".join(chr(key >> 24) for key in seen if key is not None), hits


@pytest.mark.parametrize("threshold", [1, 2])
def test_a_ghost_hit_enters_the_main_queue(serving, threshold):
    """Case J6: capacity 4, small 1, main 3, 3 ghosts; A B C D E A F G H I A.

    As in the paper, all enter the small queue: E evicts A; A comes back into the main queue and
    evicts B; F to I evict C to F. So A is there at 11. A ghost list that forgets to promote hits 0.
    """
    ratios = {"small_ratio": 0.25, "ghost_ratio": 0.75, "move_to_main_threshold": threshold}
    server = server_of(serving, 4, **ratios, fill_main=False)
    assert victims(server, "ABCDEAFGHIA") == ("ABCDEF", [11])


def test_the_main_queue_is_filled_first(serving):
    """The same with libCacheSim's rule: B, C and D enter the main queue, since small is full.

    E evicts A; A returns to main and evicts E. Main has 4, one too many: F evicts B; G, H and I
    evict F, G and H from the small queue. A is there at 11 again.
    """
    server = server_of(serving, 4, small_ratio=0.25, ghost_ratio=0.75)
    assert victims(server, "ABCDEAFGHIA") == ("AEBFGH", [11])


@pytest.mark.parametrize("fill_main", [True, False])
@pytest.mark.parametrize("threshold", [1, 2])
def test_everything_promoted_and_still_one_victim(serving, threshold, fill_main):
    """Case J8: A A A B B B C C C D D D E with 4: 8 hits, and E evicts exactly one of the others."""
    ratios = {"small_ratio": 0.25, "ghost_ratio": 0.75, "move_to_main_threshold": threshold}
    server = server_of(serving, 4, **ratios, fill_main=fill_main)
    gone, hits = victims(server, "AAABBBCCCDDDE")
    assert len(hits) == 8
    assert len(gone) == 1
    assert server.holds("ABCDE") == "ABCDE".replace(gone, "")


def test_the_threshold_decides_who_moves_to_the_main_queue(serving):
    """Capacity 4, small 1, A used twice, then B C D E: A has one hit when it comes to the front.

    Threshold 1 (AIBrix): it moves to the main queue and B goes. Threshold 2: A goes.
    """
    for threshold, gone in ((1, "B"), (2, "A")):
        server = server_of(
            serving, 4, small_ratio=0.3, move_to_main_threshold=threshold, fill_main=False
        )
        assert victims(server, "AABCDE") == (gone, [2])


def test_only_a_part_of_a_prompt_comes_back():
    """Spans: 10 blocks, small 1. A prompt of 6 blocks is evicted to its half, then asked again.

    P fills the small queue with 6. Q (7 blocks, unrelated) takes 4 free blocks and 3 of P, the
    deepest. P again: it hits 3 and computes 3, which are ghosts: they enter the main queue, as one
    piece cut from the new span P4 to P7 if P is one block longer this time.
    """
    policy = S3FIFO(small_ratio=0.1, fill_main=False)
    manager = VLLMBlockManager(10, 1, eviction=policy, null_block=False)

    def serve(n, key, num_blocks):
        request = Request(n, SegmentKeys([key], [num_blocks], 1), num_blocks, 1)
        return manager.serve(request, num_blocks)

    assert serve(0, 1, 6) == 0
    assert serve(1, 2, 7) == 0
    assert serve(2, 1, 7) == 3
    main = [(span.start, span.num_blocks) for span in policy._main]
    assert main == [(3, 3)]
    manager.check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"small_ratio": 1.0}, "small_ratio is 1.0; it must be between 0 and 1"),
        ({"ghost_ratio": -0.1}, "ghost_ratio is -0.1; it must be at least 0"),
        ({"move_to_main_threshold": 0}, "move_to_main_threshold is 0; it must be at least 1"),
    ],
)
def test_arguments_are_checked(arguments, message):
    """One line with the value and the rule."""
    with pytest.raises(ConfigError, match=message):
        S3FIFO(**arguments)
