from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.vllm import VLLMBlockManager
from sim.errors import ConfigError, TraceError
from sim.keys import ChunkKeys
from sim.replay import replay
from sim.request import Request
from workloads.session_ids import SessionIds
from workloads.weka import Weka

Write = Callable[..., Path]


@pytest.fixture
def trace(tmp_path: Path) -> Write:
    """Writes a trace: sessions, or lines of text, into one file."""

    def write(*sessions: dict[str, Any] | str) -> Path:
        path = tmp_path / "sessions.jsonl"
        path.write_text("".join(f"{s if type(s) is str else json.dumps(s)}\n" for s in sessions))
        return path

    return write


def session(*requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": requests} | fields


def entry(t: float, num_prompt: int, *ids: int, out: int = 5) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": num_prompt, "out": out, "hash_ids": list(ids)}


def ids(request: Request) -> list[int]:
    assert isinstance(request.keys, ChunkKeys)
    return list(request.keys.ids)


def refusal(path: Path, **arguments: Any) -> str:
    with pytest.raises(TraceError) as refused:
        Weka(path, **arguments)
    message = str(refused.value)
    assert message.startswith(f"{path}:")
    assert "\n" not in message
    return message.removeprefix(f"{path}:")


def test_a_session_becomes_requests(trace: Write) -> None:
    """Lengths, times and ids are those of the file; the session's name comes along."""
    path = trace(session(entry(0, 130, 1, 2), entry(2.5, 200, 1, 2, 3), id="trace_7"))
    workload = Weka(path)
    assert len(workload) == 2
    assert workload.block_size == 64
    assert workload.notes == ()
    first, second = workload
    assert (first.request_id, first.arrival_time, first.session) == (0, 0.0, "trace_7")
    assert (first.num_prompt_tokens, first.max_tokens) == (130, 5)
    assert (second.arrival_time, second.num_prompt_tokens) == (2.5, 200)
    assert ids(first) == [1, 2]
    assert ids(second) == [1, 2, 3]


def test_every_iteration_makes_fresh_requests(trace: Write) -> None:
    """A run's marks on the requests of one iteration are not seen by the next."""
    workload = Weka(trace(session(entry(0, 64, 1))))
    for request in workload:
        request.num_computed_tokens = 9
    assert [request.num_computed_tokens for request in workload] == [0]
    (request,) = workload
    assert type(request.request_id) is int
    assert type(request.arrival_time) is float


def test_ids_are_local_to_their_session(trace: Write) -> None:
    """The same ids in two sessions are different content: two sessions share nothing."""
    path = trace(session(entry(0, 128, 1, 2)), session(entry(0, 192, 1, 2, 3), id="b"))
    first, second = Weka(path)
    assert not set(ids(first)) & set(ids(second))
    manager = VLLMBlockManager(100, 64)
    assert replay(manager, Weka(path)).hit_blocks == 0


def test_large_ids_are_numbered(trace: Write) -> None:
    """Ids that do not count from 1 (hashes) mean the same as small ones, session by session."""
    big = 2**62
    small = trace(session(entry(0, 128, 1, 2), entry(1, 128, 1, 3)), session(entry(0, 64, 1)))
    expected = [ids(r) for r in Weka(small)]
    large = trace(
        session(entry(0, 128, big, big + 7), entry(1, 128, big, big + 9)),
        session(entry(0, 64, big)),
    )
    found = [ids(r) for r in Weka(large)]

    def shape(lists: list[list[int]]) -> list[int]:
        return np.unique(np.concatenate(lists), return_inverse=True)[1].tolist()

    assert shape(found) == shape(expected)


def test_a_sub_agent_counts_from_its_own_start(trace: Write) -> None:
    """Nested times are relative to the entry; nested ids are the session's, so they can be hit."""
    agent = {"t": 10.0, "type": "subagent", "requests": [entry(0, 128, 1, 7), entry(4, 64, 1)]}
    nested = {"t": 3.0, "type": "subagent", "requests": [entry(0.5, 64, 1)]}
    agent["requests"].append(nested)
    path = trace(session(entry(0, 128, 1, 2), agent, entry(12.0, 128, 1, 2)))
    workload = list(Weka(path))
    assert [r.arrival_time for r in workload] == [0.0, 10.0, 12.0, 13.5, 14.0]
    assert [r.request_id for r in workload] == [0, 1, 4, 3, 2]
    assert [ids(r) for r in workload] == [[1, 2], [1, 7], [1, 2], [1], [1]]


def test_ties_keep_the_order_of_the_file(trace: Write) -> None:
    """Of requests at one moment the one that stands first in the file comes first."""
    path = trace(*[session(entry(0, 64, 1), entry(5, 64, 1))] * 40)
    assert [r.request_id for r in Weka(path)] == [*range(0, 80, 2), *range(1, 80, 2)]


def test_session_gap_sets_the_starts(trace: Write) -> None:
    """Session i starts i gaps after the first one; without a gap all start together."""
    path = trace(session(entry(1, 64, 1)), session(entry(2, 64, 1)), session(entry(0, 64, 1)))
    assert [r.arrival_time for r in Weka(path)] == [0.0, 1.0, 2.0]
    assert [r.arrival_time for r in Weka(path, session_gap=600)] == [1.0, 602.0, 1200.0]


@pytest.mark.parametrize("block_size", [16, 64, 128])
def test_the_tail_without_an_id_is_never_shared(trace: Write, block_size: int) -> None:
    """Of 250 tokens only the first 192 have ids: a repeated prompt hits no block beyond them."""
    path = trace(session(entry(0, 250, 1, 2, 3), entry(1, 250, 1, 2, 3)))
    manager = VLLMBlockManager(100, block_size)
    result = replay(manager, Weka(path, block_size))
    assert result.query_tokens == 500
    assert result.hit_tokens == 192 // block_size * block_size


def test_an_empty_answer_is_one_token(trace: Write) -> None:
    """An engine samples at least one token; how many requests that concerns is noted."""
    workload = Weka(trace(session(entry(0, 64, 1, out=0), entry(1, 64, 1, out=3))))
    assert [r.max_tokens for r in workload] == [1, 3]
    assert workload.notes == ("1 of 2 requests have out 0; 1 token is sampled for them",)


def test_limit_reads_the_first_sessions(trace: Write) -> None:
    """A bad line behind the limit is not seen."""
    path = trace(session(entry(0, 64, 1)), "{")
    assert len(Weka(path, limit=1)) == 1
    assert refusal(path).startswith("2: not JSON")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "the line is []; it must be a JSON object"),
        (session(entry(0, 64, 1), block_size=0), "block_size is 0"),
        (session(entry(0, 64, 1), block_size=32), "block_size is 32; it must be 64 as in line 1"),
        (session(entry(0, 64, 1), hash_id_scope="global"), "hash_id_scope is 'global'"),
        ({"block_size": 64}, "requests is missing"),
        (session() | {"requests": [1]}, "requests is [1]; it must list JSON objects"),
        (session(entry(-1, 64, 1)), "t is -1"),
        (session(entry(0, 0)), "in is 0"),
        (session(entry(0, 64, 1, out=-1)), "out is -1"),
        (session(entry(0, 128, 1)), "hash_ids has 1 ids; 128 tokens of in need 2"),
        (session(entry(0, 65, 1, 2)), "hash_ids has 2 ids; 65 tokens of in need 1"),
        (session(entry(0, 64, True)), "hash_ids is [True]"),
        (session(entry(0, 64, -1)), "hash_ids holds -1"),
        (session(entry(0, 64, 2**63)), "hash_ids holds an id outside"),
        (session(entry(0, 2**31)), "in + out is 2147483653"),
        (session(entry(0, 128, 1, 2), entry(1, 128, 2, 1)), "block id 2 stands in request 2"),
        (session(entry(0, 128, 1, 2), entry(1, 128, 3, 2)), "block id 2 stands in request 2"),
    ],
)
def test_a_bad_session_is_refused(trace: Write, line: Any, message: str) -> None:
    """One line: file, line number, value and rule."""
    path = trace(session(entry(0, 64, 1)), line)
    assert refusal(path).startswith(f"2: {message}")


def test_a_trace_without_requests_is_refused(trace: Write) -> None:
    """Sessions that hold no request are no trace."""
    assert refusal(trace(session())).startswith("1: no session has a request")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block_size": 0}, "Weka: block_size is 0"),
        ({"session_gap": -1}, "Weka: session_gap is -1"),
        ({"limit": 0}, "Weka: limit is 0"),
    ],
)
def test_a_bad_argument_is_refused(trace: Write, arguments: Any, message: str) -> None:
    """The message names the argument, its value and the rule."""
    with pytest.raises(ConfigError, match=message):
        Weka(trace(session(entry(0, 64, 1))), **arguments)


def test_four_bytes_are_enough_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that no longer fit in four bytes are an error, not a wrong number."""
    monkeypatch.setattr("workloads.session_ids.NUM_IDS", 5)
    column = SessionIds()
    column.add([[0, 1, 2]])
    column.add([[0, 1]])
    with pytest.raises(ValueError, match="more than 5"):
        column.add([[0]])
    assert column.values.itemsize == 4


# The published file


PATH = Path("weka_claude_code", "sessions_496.jsonl.xz")


def published(folder: Path, **arguments: Any) -> Weka:
    path = folder / PATH
    if not path.is_file():
        pytest.skip(f"no {PATH} in {folder}")
    return Weka(path, **arguments)


def spans_hit(workload: Iterable[Request], num_blocks: int) -> int:
    """Hits of the span manager on full blocks alone: no partial block, no last-token rule.

    One token is known behind the prompt, so its last full block may be hit as well.
    """
    manager = VLLMBlockManager(num_blocks, 64, null_block=False)
    num_hits = 0
    for request in workload:
        request.num_prompt_tokens -= request.num_prompt_tokens % 64
        request.num_output_tokens = 1
        if request.num_prompt_tokens:
            hit = manager.get_computed_blocks(request)
            num_new = request.num_prompt_tokens - hit.num_tokens
            assert manager.allocate_slots(request, num_new, hit) is not None
            manager.free(request)
            num_hits += hit.num_tokens // 64
    manager.check()
    return num_hits


def flat_hits(workload: Iterable[Request], num_blocks: int, *, head_first: bool) -> int:
    """Blocks of cached prefixes in an LRU over single blocks, touched head or tail first."""
    cache: OrderedDict[int, None] = OrderedDict()
    touch, num_hits = cache.move_to_end, 0
    for request in workload:
        blocks = ids(request)
        num_hits += next((i for i, b in enumerate(blocks) if b not in cache), len(blocks))
        for block in blocks:
            if block in cache:
                touch(block)
            else:
                if len(cache) >= num_blocks:
                    cache.popitem(last=False)
                cache[block] = None
        if not head_first:
            for block in reversed(blocks):
                touch(block)
    return num_hits


@pytest.mark.slow
def test_a_part_of_the_published_file_by_spans_and_by_blocks(kvsim_data: Path) -> None:
    """On 25 sessions the span manager hits exactly what an LRU over single blocks hits."""
    workload = published(kvsim_data, limit=25)
    for num_blocks in (20_000, 60_000):
        expected = flat_hits(workload, num_blocks, head_first=False)
        assert spans_hit(workload, num_blocks) == expected


@pytest.mark.slow
def test_the_published_file(kvsim_data: Path) -> None:
    """Counts and hits of the whole file, both arrival models, as published with the trace.

    The published hits touch blocks head first. A block manager frees the tail first, which keeps
    more of each prefix; where hardly anything useful is evicted both agree to the block, and so
    they do without any limit (67,413,185 - 2,453,991 blocks). The simulator's own rules (the
    partial block takes memory, the last token is computed anew) change nothing there.
    """
    workload = published(kvsim_data)
    assert len(workload) == 34_034
    assert len(workload.session_ids) == 496
    assert workload.notes == ("17 of 34034 requests have out 0; 1 token is sampled for them",)
    ample = VLLMBlockManager(2**30, 64)
    result = replay(ample, workload)
    assert result.query_blocks == 67_413_185
    assert result.hit_blocks == 67_413_185 - 2_453_991

    # All sessions at once: .1807 at 30,000 blocks head first.
    assert flat_hits(workload, 30_000, head_first=True) == 12_179_706
    assert spans_hit(workload, 30_000) == 12_655_090
    apart = published(kvsim_data, session_gap=600)
    for num_blocks, num_hits in ((100_000, 64_874_571), (300_000, 64_951_861)):
        assert spans_hit(apart, num_blocks) == num_hits
        assert replay(VLLMBlockManager(num_blocks, 64), apart).hit_blocks == num_hits
