from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.vllm import VLLMBlockManager
from sim.engine import Engine
from sim.errors import ConfigError
from sim.keys import SegmentKeys, TokenKeys
from sim.replay import replay
from sim.request import Request
from sim.spec.build import build
from sim.workload import Workload
from workloads.chat import Chat
from workloads.close_loop import CloseLoop
from workloads.link_answers import LinkAnswers
from workloads.mooncake import Mooncake
from workloads.own import Own
from workloads.own_rows import row_of, write
from workloads.shared_prompts import SharedPrompts
from workloads.synthetic import Synthetic
from workloads.transforms import (
    BlockSize,
    Merge,
    Poissonise,
    SampleSessions,
    Scale,
    Tenants,
    Window,
)
from workloads.weka import Weka

DATA = Path(__file__).parents[1] / "data"
SAMPLE = DATA / "mooncake_sample.jsonl"
CHAT = Synthetic(20, prompts=Chat(num_turns=3), closed_loop=True)


class Listed(Workload):
    hints = frozenset({"parent"})

    def __init__(self, requests: Sequence[Request], block_size: int = 4) -> None:
        self.requests, self.block_size = requests, block_size

    def __iter__(self) -> Iterator[Request]:
        return (request.fresh() for request in self.requests)

    def __len__(self) -> int:
        return len(self.requests)


TRANSFORMS = {
    "window": {"stop_s": 1000},
    "scale": {"time_scale": 2},
    "poissonise": {},
    "sample_sessions": {"share": 0.7},
    "block_size": {"block_size": 64},
    "tenants": {"num_tenants": 3},
    "merge": {"other": {"use": "mooncake", "path": str(SAMPLE), "block_size": 16}},
    "link_answers": {},
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_transform_is_a_workload(name: str, tmp_path: Path) -> None:
    """From YAML; in order of arrival, the same every time; it can be exported and read back."""
    of = {"use": "mooncake", "path": str(SAMPLE), "block_size": 16}
    workload = build("workload", {"use": name, "of": of} | TRANSFORMS[name])
    requests = list(workload)
    arrivals = [request.arrival_time for request in requests]
    assert arrivals == sorted(arrivals)
    assert len(requests) == len(workload) > 0
    assert [row_of(request) for request in workload] == [row_of(request) for request in requests]
    assert all(request.keys.block_size == workload.block_size for request in requests)
    write(workload, tmp_path / "t.jsonl")
    for read, request in zip(Own(tmp_path / "t.jsonl"), requests, strict=True):
        assert row_of(read).keys() == row_of(request).keys()
    runs = [replay(VLLMBlockManager(9999, workload.block_size), w, decode=True).hit_tokens
            for w in (workload, Own(tmp_path / "t.jsonl"))]  # fmt: skip
    assert runs[0] == runs[1]


def test_a_window_is_half_open_and_begins_at_0() -> None:
    """Arrivals 0, 1, ... 9: from 3 to 6 there are three, at 0, 1 and 2."""
    requests = [Request(i, SegmentKeys((i,), (9,), 4), 8, 1, float(i)) for i in range(10)]
    window = Window(Listed(requests), 3, 6)
    assert [(r.request_id, r.arrival_time) for r in window] == [(3, 0), (4, 1), (5, 2)]
    assert window.notes == ("3 of 10 requests are in the window",)
    with pytest.raises(ConfigError, match="no request arrives from"):
        Window(Listed(requests), 100)


def test_who_follows_someone_outside_comes_by_itself() -> None:
    """A window through closed loops, and a sample of users' sessions, still run."""
    half = Window(CHAT, 15)
    assert any(not request.follows for request in half if (request.hints or {})["turn"] > 1)
    users = Synthetic(40, prompts=Chat(num_turns=2), arrivals=build("arrivals", "users"))
    for workload in (half, SampleSessions(users, 0.5)):
        record = Engine(VLLMBlockManager(4096, 16)).run(workload)
        assert set(record.requests["status"]) == {"finished"}


def test_poissonised_arrivals_have_the_rate_and_no_bursts() -> None:
    plain = Synthetic(3000, arrivals=build("arrivals", {"use": "gamma", "rate": 5, "cv": 4}))
    smooth = Poissonise(plain, seed=1)
    gaps = np.diff([request.arrival_time for request in smooth])
    assert 1 / gaps.mean() == pytest.approx(smooth.rate, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.06)
    assert [r.request_id for r in smooth] == [r.request_id for r in plain]
    assert Poissonise(plain, rate=50.0).rate == 50.0


def test_a_sample_keeps_whole_sessions() -> None:
    """Half of the sessions with all of their three turns; a quarter is part of the half."""
    whole = Synthetic(400, prompts=Chat(num_turns=3))
    half, quarter = SampleSessions(whole, 0.5), SampleSessions(whole, 0.25)
    counts: dict[Any, int] = {}
    for request in half:
        counts[request.session] = counts.get(request.session, 0) + 1
    assert set(counts.values()) == {3}
    assert len(counts) == pytest.approx(200, abs=30)
    assert {r.session for r in quarter} < set(counts)
    with pytest.raises(ConfigError, match="keeps no session"):
        SampleSessions(CHAT, 1e-9)


def test_merged_workloads_share_nothing_unless_told() -> None:
    """The same ten requests twice: the second of each is a stranger, or hits the first."""
    one = Synthetic(10, prompts=SharedPrompts(10, prompt_tokens=160))
    alone = replay(VLLMBlockManager(9999, 16), one).hit_tokens
    apart, shared = Merge(one, one), Merge(one, one, shared=True)
    assert replay(VLLMBlockManager(9999, 16), apart).hit_tokens == 2 * alone
    assert replay(VLLMBlockManager(9999, 16), shared).hit_tokens > 2 * alone + 10 * 160
    assert {r.request_id for r in apart} == {f"{n}:{i}" for n in (0, 1) for i in range(10)}
    with pytest.raises(ConfigError, match="block_size is 16 of one and 8"):
        Merge(one, Synthetic(1, block_size=8))


def test_tenants_are_strangers() -> None:
    """One system prompt of 160 tokens: every tenant computes it once."""
    same = SharedPrompts(1, prompt_tokens=160, question_tokens=16, answer_tokens=1)
    workload = Tenants(Synthetic(300, prompts=same), 5)
    assert replay(VLLMBlockManager(2**16, 16), workload).hit_tokens == (300 - 5) * 160
    assert {(r.hints or {})["tenant"] for r in workload} == set(range(5))


def test_content_is_divided_anew() -> None:
    """Chunks, segments and tokens at another block size are what a reader would give."""
    coarse = [row_of(r) for r in BlockSize(Mooncake(SAMPLE, block_size=16), 512)]
    assert coarse == [row_of(r) for r in Mooncake(SAMPLE, block_size=512)]
    tokens = Request(0, TokenKeys(range(10), 4, salt="s"), 9, 1)
    (divided,) = BlockSize(Listed([tokens]), 2)
    assert [divided.keys[i] for i in range(5)] == [
        TokenKeys(range(10), 2, salt="s")[i] for i in range(5)
    ]
    nested = BlockSize(Tenants(Synthetic(5), 2), 64)
    assert all(request.keys.block_size == 64 for request in nested)


def test_scale_stretches_arrivals_and_aborts() -> None:
    request = Request(0, SegmentKeys((1,), (9,), 4), 8, 1, 3.0, abort_time=5.0)
    (scaled,) = Scale(Listed([request]), 2.0)
    assert (scaled.arrival_time, scaled.abort_time) == (6.0, 10.0)


# Links


def chunks(
    name: int, arrival: float, num_prompt: int, num_output: int, *ids: int, **fields: Any
) -> Request:
    from sim.keys import ChunkKeys

    keys = ChunkKeys(ids, 4, 4, num_prompt, num_prompt + num_output, -1 - name)
    return Request(name, keys, num_prompt, num_output, arrival, **fields)


def test_a_linked_answer_is_hit() -> None:
    """Prompt 6, answer 7; the next prompt of 16 tokens contains both: 13 tokens, 3 chunks of 4.

    Unlinked only the first chunk is hit. Linked, the chunks 2 and 3 are too, which decoding filled.
    The last token of the answer is never stored, but it stands in chunk 4.
    """
    plain = Listed([chunks(0, 0, 6, 7, 1, 2), chunks(1, 9, 16, 1, 1, 3, 4, 5)])
    linked = LinkAnswers(plain)
    assert (linked.num_declared, linked.num_inferred) == (0, 1)
    assert (
        "1 of 2 answers are linked to a later prompt: 0 as declared, 1 as inferred" in linked.notes
    )
    hits = [replay(VLLMBlockManager(99, 4), w, decode=True).hit_tokens for w in (plain, linked)]
    assert hits == [4, 12]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (chunks(1, 9, 12, 1, 1, 3, 4), "too short for prompt and answer"),
        (chunks(1, 9, 16, 1, 9, 3, 4, 5), "another prompt"),
    ],
)
def test_what_cannot_be_its_continuation_is_not(second: Request, why: str) -> None:
    linked = LinkAnswers(Listed([chunks(0, 0, 6, 7, 1, 2), second]))
    assert linked.num_inferred == 0, why


def test_common_beginnings_are_no_continuations() -> None:
    """A chunk that others had before (a system prompt) tells nothing; one's own does."""
    linked = LinkAnswers(
        Listed([
            chunks(0, 0, 5, 7, 1, 2),  # new: may be continued
            chunks(1, 1, 5, 7, 1, 3),  # chunk 1 was there before
            chunks(2, 2, 16, 1, 1, 4, 5, 6),  # continues only the first
        ])
    )  # fmt: skip
    assert linked.num_inferred == 1
    first, second, _ = (list(r.keys.ids) for r in linked)  # type: ignore[attr-defined]
    assert (first, second) == ([1, 4, 5], [1, 3])


def test_a_compacted_history_continues_nothing() -> None:
    """The next turn of a session whose prompt begins differently does not contain the answer."""
    requests = [
        chunks(0, 0, 6, 7, 1, 2, session="s"),
        chunks(1, 5, 16, 1, 9, 3, 4, 5, session="s"),
    ]
    assert LinkAnswers(Listed(requests), "declared").num_declared == 0


def test_declared_links_go_before_inferred_ones() -> None:
    """The hint says that request 2, not 1, continues request 0; `inferred` ignores it."""
    requests = [
        chunks(0, 0, 6, 7, 1, 2, hints={"parent": None}),
        chunks(1, 5, 16, 1, 1, 7, 8, 9, hints={"parent": None}),
        chunks(2, 9, 16, 1, 1, 3, 4, 5, hints={"parent": 0}),
    ]
    declared, inferred = (LinkAnswers(Listed(requests), how) for how in ("declared", "inferred"))
    assert (declared.num_declared, inferred.num_inferred) == (1, 1)
    ids = [list(next(iter(w)).keys.ids) for w in (declared, inferred)]  # type: ignore[attr-defined]
    assert ids == [[1, 3, 4], [1, 7, 8]]


def test_turns_of_a_session_are_declared() -> None:
    requests = [chunks(0, 0, 6, 7, 1, 2, session="s"), chunks(1, 5, 16, 1, 1, 3, 4, 5, session="s")]
    assert LinkAnswers(Listed(requests), "declared").num_declared == 1


def test_links_need_chunks() -> None:
    with pytest.raises(ConfigError, match="is not named by equal chunks"):
        LinkAnswers(CHAT)


def test_links_recover_what_a_trace_has_lost(tmp_path: Path) -> None:
    """Chats written as a trace of prompts in chunks of 4: links restore the hits of answers.

    The prompts are chained in chunks as a tracing server would, answers without names. With links,
    all that decoding stored is hit again but what ends within a chunk.
    """
    chat = Chat(1, num_turns=4, prompt_tokens=64, question_tokens=32, answer_tokens=32)
    true = Synthetic(6, prompts=chat, block_size=4)
    numbers: dict[Any, int] = {}
    rows = []
    for request in true:
        num = request.num_prompt_tokens // 4
        ids = [numbers.setdefault(request.keys[i], len(numbers)) for i in range(num)]
        rows.append(
            chunks(request.request_id, request.arrival_time, request.num_prompt_tokens,  # type: ignore[arg-type]
                   request.max_tokens, *ids, session=request.session)
        )  # fmt: skip
    bare = Listed(rows)
    hits = [
        replay(VLLMBlockManager(9999, 4), w, decode=True).hit_tokens
        for w in (bare, LinkAnswers(bare), LinkAnswers(bare, "declared"), true)
    ]
    assert hits[0] < hits[1] == hits[2] == hits[3]


# Closed loops


def test_a_recorded_session_waits_for_its_answers() -> None:
    """api_time 2 s from t = 0, next turn at 12.5 s: 10.5 s of thinking; the sub-agent starts at 5.

    The sub-agent's branch follows the session, and the session waits for its end at 6 s.
    """
    workload = CloseLoop(Weka(DATA / "samples" / "weka.jsonl"))
    by_id = {request.request_id: request for request in workload}
    assert [(r.follows, r.think_time) for _, r in sorted(by_id.items())] == [
        ((), 0.0),
        ((0,), 3.0),
        ((0, 1), 6.5),
        ((), 0.0),
    ]
    assert workload.notes[-1] == "2 of 4 requests wait for an answer"
    record = Engine(VLLMBlockManager(4096, 64)).run(workload).requests
    assert set(record["status"]) == {"finished"}


def test_without_recorded_times_answers_are_guessed() -> None:
    requests = [
        chunks(0, 0, 6, 7, 1, 2, session="s"),
        chunks(1, 5, 16, 1, 1, 3, 4, 5, session="s"),
    ]
    _, second = CloseLoop(Listed(requests), guess_ttft_s=1.0, guess_tpot_s=0.5)
    assert second.think_time == pytest.approx(5 - 4.5)
    with pytest.raises(ConfigError, match="no session has a second request"):
        CloseLoop(Mooncake(SAMPLE))


def test_a_published_session_file_closes(kvsim_data: Path) -> None:
    """Ten recorded sessions: in a fast server later turns come earlier than in a slow one."""
    path = kvsim_data / "weka_claude_code" / "sessions_496.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    workload = CloseLoop(Weka(path, limit=10))
    waiting = sum(bool(request.follows) for request in workload)
    assert waiting >= len(workload) - 10
    assert all(request.think_time >= 0 for request in workload)


@pytest.mark.slow
def test_the_published_chats_are_linked(kvsim_data: Path) -> None:
    """Mooncake's conversations: how many answers continue is inferred, and more is hit."""
    path = kvsim_data / "mooncake" / "conversation_trace.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    plain = Mooncake(path)
    linked = LinkAnswers(plain)
    assert linked.num_declared == 0
    assert 0 < linked.num_inferred < len(plain)
    hits = [
        replay(VLLMBlockManager(2**20, 512), w, decode=True).hit_tokens for w in (plain, linked)
    ]
    print(linked.notes, hits)
    assert hits[0] < hits[1]
