from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.vllm import VLLMBlockManager
from sim.errors import ConfigError
from sim.replay import replay
from sim.spec.build import build
from sim.traffic import Turns
from workloads import PROMPTS
from workloads.agents import Agents
from workloads.chat import Chat
from workloads.length_models import Empirical, Geometric, Lognormal
from workloads.library import Library
from workloads.profile import profile
from workloads.retrieval import Documents, FewShot, Images, Rag
from workloads.search import ParallelSampling, TreeSearch
from workloads.shared_prompts import SharedPrompts
from workloads.streams import seed_of, stream
from workloads.synthetic import Synthetic

MODELS: list[Any] = [
    SharedPrompts(),
    Chat(),
    Chat(max_context=2000, when_full="truncate"),
    Chat(max_context=2000, when_full="compact", summary_tokens=100),
    Agents(),
    Agents(branching=0.3),
    Rag(200),
    Rag(200, order="popular"),
    Rag(200, order="sorted"),
    FewShot(),
    FewShot(shuffled=True),
    Images(),
    Documents(),
    ParallelSampling(3),
    TreeSearch(2, 3, 4),
]


def turns_of(model: Any, num: int = 60, seed: int = 5) -> Turns:
    turns: Turns = model.turns(num, seed_of(seed, "prompts"))
    return turns


def contexts(turns: Turns) -> list[tuple[list[int], list[int]]]:
    """Ids and ends of every request."""
    return [
        (turns.ids[start:stop].tolist(), turns.ends[start:stop].tolist())
        for start, stop in zip(turns.starts, turns.stops, strict=True)
    ]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_ids_name_everything_before_them(model: Any) -> None:
    """An id always begins at one token, behind one id; ends rise; the answer comes last."""
    turns = turns_of(model)
    places: dict[int, tuple[int, int]] = {}
    for i, (ids, ends) in enumerate(contexts(turns)):
        assert ends == sorted(set(ends))
        assert ends[-1] == turns.prompts[i] + turns.outputs[i]
        assert ends[-2] == turns.prompts[i]
        for one, start, parent in zip(ids, [0, *ends], [-1, *ids], strict=False):
            assert places.setdefault(one, (start, parent)) == (start, parent)
    answers = Counter(ids[-1] for ids, _ in contexts(turns))
    assert set(answers.values()) == {1}


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_who_follows_stands_behind_in_the_same_session(model: Any) -> None:
    turns = turns_of(model)
    assert (np.diff(turns.sessions) >= 0).all()
    assert set(turns.sessions.tolist()) == set(range(60))
    assert set(turns.hints) == model.hints
    assert all(len(values) == len(turns.sessions) for values in turns.hints.values())
    for i, before in enumerate(turns.follows or []):
        assert all(j < i and turns.sessions[j] == turns.sessions[i] for j in before)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_more_sessions_begin_with_the_same_ones(model: Any) -> None:
    """The first 20 sessions of 60 are the 20: the same lengths, pauses and shared contents."""
    few, many = turns_of(model, 20), turns_of(model, 60)
    num = len(few.sessions)
    assert few.prompts.tolist() == many.prompts[:num].tolist()
    assert few.outputs.tolist() == many.outputs[:num].tolist()
    assert few.pauses.tolist() == many.pauses[:num].tolist()
    assert [ids[0] for ids, _ in contexts(few)] == [ids[0] for ids, _ in contexts(many)[:num]]


@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_every_model_has_defaults_and_runs(name: str) -> None:
    workload = build("workload", {"use": "synthetic", "num_sessions": 5, "prompts": name})
    assert replay(VLLMBlockManager(2**20, 16), workload).refused == 0


def test_a_chat_sends_its_whole_history() -> None:
    """Turn k + 1 begins with turn k and its answer: with the answers stored, all of it is hit."""
    chat = Chat(num_turns=4, question_tokens=48, answer_tokens=32, prompt_tokens=160, think_s=5)
    workload = Synthetic(3, prompts=chat)
    previous: dict[Any, Any] = {}
    for request in workload:
        before = previous.get(request.session)
        if before is not None:
            assert request.num_prompt_tokens == before.num_prompt_tokens + 32 + 48
            assert request.keys.common(before.keys, 0, len(before.keys)) == len(before.keys)
        previous[request.session] = request
    assert [(r.hints or {})["turn"] for r in sorted(workload, key=lambda r: r.request_id)] == [
        1, 2, 3, 4
    ] * 3  # fmt: skip
    # 12 prompts; per session 10 + 16 + 21 + 26 blocks are known before, less what is cut off.
    result = replay(VLLMBlockManager(2**20, 16), Synthetic(1, prompts=chat), decode=True)
    assert result.hit_tokens == sum((208 + 80 * k + 32 - 1) // 16 * 16 for k in range(3))


@pytest.mark.parametrize(("when_full", "num_turns"), [("end", 4), ("truncate", 9), ("compact", 9)])
def test_a_full_context_ends_or_is_shortened(when_full: Any, num_turns: int) -> None:
    """100 + k x 200 tokens exceed 900 in turn 5; behind the system prompt all is new then."""
    chat = Chat(
        1, prompt_tokens=100, num_turns=9, question_tokens=100, answer_tokens=100,
        max_context=900, when_full=when_full, summary_tokens=150,
    )  # fmt: skip
    turns = turns_of(chat, 1)
    assert len(turns.prompts) == num_turns
    assert (turns.prompts + turns.outputs).max() <= 900
    assert turns.prompts[:4].tolist() == [200, 400, 600, 800]
    if when_full == "end":
        return
    ids = [ids for ids, _ in contexts(turns)]
    assert turns.prompts[4] == {"truncate": 100 + 300 + 100, "compact": 100 + 150 + 100}[when_full]
    assert ids[4][0] == ids[3][0]
    assert not set(ids[4][1:]) & set(ids[3][1:])
    assert ids[5][: len(ids[4])] == ids[4]


def test_sub_agents_are_waited_for() -> None:
    """Every step starts two sub-agents of 3 steps; the next follows the last steps of both."""
    agents = Agents(num_steps=2, branching=1.0, num_subagents=2, subagent_steps=3)
    turns = turns_of(agents, 1)
    assert turns.follows is not None
    assert turns.hints["type"] == ["agent", *["subagent"] * 6, "agent"]
    assert turns.hints["tool"][0] == "subagent"
    assert turns.hints["tool"][-1] is None
    assert turns.follows == [(), (0,), (1,), (2,), (0,), (4,), (5,), (3, 6)]
    first, last = contexts(turns)[0][0], contexts(turns)[7][0]
    assert last[: len(first)] == first


def test_the_order_of_passages_decides() -> None:
    """Equal contents in one order share more than in the order of a retriever."""

    def rate(order: Any) -> float:
        rag = Rag(30, num_retrieved=3, order=order)
        sharing = profile(Synthetic(400, prompts=rag)).sharing
        assert sharing is not None
        return sharing.token_hit_rate

    assert rate("retrieved") < rate("sorted")
    assert rate("retrieved") < rate("popular")


def test_shuffled_examples_share_less() -> None:
    """In a fixed order a task is shared as a whole, shuffled hardly more than its instruction."""
    fixed, shuffled = (
        profile(Synthetic(300, prompts=FewShot(5, shuffled=how))).sharing for how in (False, True)
    )
    assert fixed is not None
    assert shuffled is not None
    assert shuffled.token_hit_rate < 0.7 * fixed.token_hit_rate


def test_images_are_shared_and_not_always_there() -> None:
    turns = turns_of(Images(3, share=0.5, image_tokens=100, system_tokens=50), 2000)
    num_segments = turns.stops - turns.starts
    assert (num_segments == 4).mean() == pytest.approx(0.5, abs=0.03)
    assert len({ids[1] for ids, _ in contexts(turns) if len(ids) == 4}) == 3


def test_samples_share_the_prompt_and_nothing_else() -> None:
    """Three answers to a prompt of 160: two of them hit all but its last block."""
    workload = Synthetic(1, prompts=ParallelSampling(3, prompt_tokens=160, answer_tokens=64))
    assert {request.arrival_time for request in workload} == {next(iter(workload)).arrival_time}
    result = replay(VLLMBlockManager(2**20, 16), workload, decode=True)
    assert result.hit_tokens == 2 * 144


def test_a_tree_grows_from_what_was_kept() -> None:
    """2 beams x 3 branches x 4 levels: 24 requests; each level begins with 2 of the one before."""
    turns = turns_of(TreeSearch(2, 3, 4, prompt_tokens=100, step_tokens=10), 1)
    ids = [tuple(ids) for ids, _ in contexts(turns)]
    assert turns.prompts.tolist() == [100] * 6 + [110] * 6 + [120] * 6 + [130] * 6
    for level in range(1, 4):
        parents = {one[:-1] for one in ids[6 * level : 6 * level + 6]}
        assert len(parents) == 2
        assert parents <= set(ids[6 * level - 6 : 6 * level])
    assert turns.follows is not None
    assert turns.follows[6:12] == [tuple(range(6))] * 6


def test_documents_are_asked_about_one_question_at_a_time() -> None:
    turns = turns_of(Documents(1, document_tokens=500, num_questions=3), 2)
    assert [ids[0] for ids, _ in contexts(turns)] == [0] * 6
    assert turns.hints["turn"] == [1, 2, 3] * 2
    assert turns.follows == [(), (0,), (1,), (), (3,), (4,)]


def test_popularity_follows_zipf() -> None:
    """Weights 1, 1/2, 1/3, 1/4; and sets never hold a content twice."""
    library = Library("Test", "thing", 4, 1.0, 10)
    counts = np.bincount(library.choose(100_000, seed_of(1, "x")))
    np.testing.assert_allclose(counts / counts[0], [1, 1 / 2, 1 / 3, 1 / 4], rtol=0.03)
    sets = library.choose_sets(20_000, 3, seed_of(1, "x"))
    assert all(len(set(row)) == 3 for row in sets.tolist())
    np.testing.assert_allclose(
        np.bincount(sets[:, 0]) / 20_000, np.array([12, 6, 4, 3]) / 25, atol=0.01
    )


def test_lengths_have_the_mean_asked_for() -> None:
    for lengths, mean in ((Lognormal(300, 0.7), 300), (Geometric(4), 4)):
        assert lengths.draw(200_000, stream(0, "t")).mean() == pytest.approx(mean, rel=0.02)
    assert Lognormal(300, 2.0, most=500).draw(10_000, stream(0, "t")).max() == 500


def test_recorded_lengths_can_be_drawn(kvsim_data: Path) -> None:
    """Quantiles of 50,000 drawn prompt lengths are those of the Mooncake trace."""
    path = kvsim_data / "mooncake" / "conversation_trace.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    drawn = Empirical(path).draw(50_000, stream(0, "t"))
    assert np.median(drawn) == pytest.approx(6909, rel=0.03)
    assert np.quantile(drawn, 0.99) == pytest.approx(85_400, rel=0.05)


def test_agents_are_near_the_mini_swe_log(kvsim_data: Path) -> None:
    """20 steps a task, and as much of the prompts known before: .94 of the tokens there."""
    found = profile(Synthetic(100, prompts=Agents()))
    assert found.requests / found.sessions == pytest.approx(402 / 20, rel=0.2)
    assert found.sharing is not None
    assert found.sharing.token_hit_rate == pytest.approx(0.936, abs=0.03)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"use": "chat", "when_full": "forget"}, "when_full"),
        ({"use": "tree_search", "depth": 10**9}, "depth"),
        ({"use": "rag", "order": "any"}, "order"),
        ({"use": "chat", "num_turns": 0}, "num_turns"),
        ({"use": "chat", "num_turns": {"use": "geometric", "mean": 0.5}}, "mean"),
        ({"use": "chat", "think_s": "long"}, "think_s"),
        ({"use": "shared_prompts", "num_prompts": 0}, "num_prompts"),
        ({"use": "shared_prompts", "prompt_tokens": -5}, "prompt_tokens"),
    ],
)
def test_arguments_out_of_range_are_named(spec: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        build("prompts", spec)
