from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from policies.vllm import VLLMBlockManager
from sim.engine import Engine
from sim.errors import ConfigError
from sim.latency import Linear
from sim.needs import check_needs
from sim.replay import replay
from sim.spec.build import build
from workloads.agents import Agents
from workloads.arrivals import Gamma, Poisson, Users
from workloads.chat import Chat
from workloads.own_rows import row_of
from workloads.search import ParallelSampling
from workloads.shared_prompts import SharedPrompts
from workloads.synthetic import Synthetic

CHAT = Chat(num_turns=3, question_tokens=40, answer_tokens=20, prompt_tokens=200, think_s=4)

PROMPTS_OF_SEED_0 = [296, 189, 326, 247, 416]
ANSWERS_OF_SEED_0 = [47, 77, 119, 64, 147]
ARRIVALS_OF_SEED_0 = [0.767977, 0.793888, 3.082547, 3.128865, 3.762689]

DIGEST = """
import hashlib, sys, numpy, random
numpy.random.seed(1); random.seed(1)
from workloads.synthetic import Synthetic
from workloads.chat import Chat
from workloads.own_rows import row_of
digest = hashlib.sha256()
for request in Synthetic(40, prompts=Chat(), num_tenants=3, seed=int(sys.argv[1])):
    digest.update(repr(row_of(request)).encode())
print(digest.hexdigest())
"""


def rows(workload: Synthetic) -> list[dict[str, Any]]:
    return [row_of(request) for request in workload]


def test_equal_seeds_give_equal_requests_in_every_process() -> None:
    """Cases N6, M6: whatever the hash seed and the global generators; another seed differs."""

    def digest(seed: int, hash_seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", DIGEST, str(seed)],
            capture_output=True, text=True, check=True, timeout=60,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
        ).stdout.strip()  # fmt: skip

    found = hashlib.sha256()
    state = np.random.get_state()[1].tolist()  # type: ignore[union-attr, index]
    for request in Synthetic(40, prompts=Chat(), num_tenants=3, seed=7):
        found.update(repr(row_of(request)).encode())
    assert np.random.get_state()[1].tolist() == state  # type: ignore[union-attr, index]
    assert digest(7, "1") == digest(7, "2") == found.hexdigest()
    assert digest(8, "1") != found.hexdigest()


def test_the_stream_of_a_seed_never_changes() -> None:
    """Prompts, answers and arrivals of seed 0, as they were when this was written."""
    requests = list(Synthetic(5, prompts=SharedPrompts(10, prompt_tokens=100)))
    assert [r.num_prompt_tokens for r in requests] == PROMPTS_OF_SEED_0
    assert [r.max_tokens for r in requests] == ANSWERS_OF_SEED_0
    assert [round(r.arrival_time, 6) for r in requests] == ARRIVALS_OF_SEED_0


def test_components_draw_from_their_own_streams() -> None:
    """Other arrivals leave the prompts; tenants and priorities leave both."""

    def content(workload: Synthetic) -> list[Any]:
        found = sorted(workload, key=lambda r: r.request_id)
        return [(r.num_prompt_tokens, r.max_tokens, r.session) for r in found]

    plain = Synthetic(50, prompts=Chat())
    assert content(plain) == content(Synthetic(50, prompts=Chat(), arrivals=Gamma(9, 4)))
    owned = Synthetic(50, prompts=Chat(), num_tenants=4, num_adapters=3, priorities={0: 1, 5: 1})
    assert content(plain) == content(owned)
    assert [r.arrival_time for r in plain] == [r.arrival_time for r in owned]


def test_every_iteration_is_the_same() -> None:
    workload = Synthetic(20, prompts=Agents(num_steps=3, branching=0.5), closed_loop=True)
    assert rows(workload) == rows(workload)
    assert len(rows(workload)) == len(workload)


def test_turns_come_as_guessed_in_an_open_loop() -> None:
    """Answers of 20 tokens take 1 + 0.1 x 20 = 3 s, users think 4 s: a turn every 7 s."""
    workload = Synthetic(1, prompts=CHAT, guess_ttft_s=1.0, guess_tpot_s=0.1)
    times = [request.arrival_time for request in workload]
    np.testing.assert_allclose(np.diff(times), [7, 7])
    assert all(not request.follows for request in workload)


def arrivals_of(workload: Synthetic, latency: Linear, num_blocks: int = 4096) -> list[float]:
    record = Engine(VLLMBlockManager(num_blocks, 16), latency=latency).run(workload)
    assert set(record.requests["status"]) == {"finished"}
    return list(record.requests["arrival_time"])


def test_in_a_closed_loop_a_slower_server_is_asked_later() -> None:
    """The same sessions: open, a slow server gets the same arrivals; closed, later ones."""
    fast, slow = Linear(decode_ms=1), Linear(decode_ms=200)
    opened = Synthetic(10, prompts=CHAT)
    closed = Synthetic(10, prompts=CHAT, closed_loop=True)
    assert arrivals_of(opened, fast) == arrivals_of(opened, slow)
    a, b = arrivals_of(closed, fast), arrivals_of(closed, slow)
    assert all(x <= y for x, y in zip(a, b, strict=True))
    assert max(b) > max(a) + 5


def test_turns_follow_the_answer_and_the_pause() -> None:
    """Each turn arrives 4 s after the answer before it was finished, to the microsecond."""
    workload = Synthetic(8, prompts=CHAT, closed_loop=True, arrivals=Poisson(2))
    record = Engine(VLLMBlockManager(4096, 16)).run(workload).requests
    finish = dict(zip(record["request_id"], record["finish_time"], strict=True))
    arrival = dict(zip(record["request_id"], record["arrival_time"], strict=True))
    followers = [request for request in workload if request.follows]
    assert len(followers) == 16
    for request in followers:
        (before,) = request.follows
        assert arrival[request.request_id] == pytest.approx(finish[before] + 4, abs=1e-6)


def test_users_never_ask_twice_at_once() -> None:
    """Three users, 30 sessions: at no moment are more than three requests under way."""
    workload = Synthetic(30, prompts=CHAT, arrivals=Users(3, pause_s=1.0))
    record = Engine(VLLMBlockManager(4096, 16)).run(workload).requests
    events = [(t, 1) for t in record["arrival_time"]] + [(t, -1) for t in record["finish_time"]]
    under_way = np.cumsum([change for _, change in sorted(events)])
    assert under_way.max() <= 3
    assert len(record["arrival_time"]) == 90
    assert sum(not request.follows for request in workload) == 3


def test_tenants_and_adapters_share_nothing() -> None:
    """One system prompt, ten requests each: the first of every owner computes it."""
    alone = SharedPrompts(1, prompt_tokens=160, question_tokens=16, answer_tokens=1)
    one = replay(VLLMBlockManager(2**16, 16), Synthetic(400, prompts=alone))
    assert one.hit_tokens == 399 * 160
    workload = Synthetic(400, prompts=alone, num_tenants=4, num_adapters=2, tenant_zipf=0.0)
    many = replay(VLLMBlockManager(2**16, 16), workload)
    assert many.hit_tokens == (400 - 8) * 160
    owners = {((r.hints or {})["tenant"], (r.hints or {})["adapter"]) for r in workload}
    assert len(owners) == 8
    assert workload.hints == {"tenant", "adapter"}


def test_priorities_have_their_shares() -> None:
    workload = Synthetic(5000, priorities={-1: 0.2, 3: 0.8})
    levels = np.array([request.priority for request in workload])
    assert (levels == -1).mean() == pytest.approx(0.2, abs=0.02)
    assert set(levels.tolist()) == {-1, 3}


def test_hints_are_what_policies_need() -> None:
    """Chats serve the workload-aware policy, agents Continuum; sampling serves neither."""
    for use, prompts in (("workload_aware", Chat()), ("continuum", Agents(num_steps=3))):
        workload = Synthetic(10, prompts=prompts)
        manager = build("manager", {"use": "vllm", "num_blocks": 4096, "eviction": use})
        check_needs(manager, workload)
        assert Engine(manager).run(workload).totals["num_steps"] > 0
        with pytest.raises(ConfigError, match="needs the hint"):
            check_needs(manager, Synthetic(1, prompts=ParallelSampling()))


def test_yaml_nests_objects_and_numbers() -> None:
    """An object where one is asked for, a number where a number will do."""
    spec = {
        "use": "synthetic",
        "num_sessions": 20,
        "arrivals": {"use": "gamma", "rate": 3, "cv": 1.5},
        "prompts": {
            "use": "chat",
            "num_turns": 2,
            "answer_tokens": {"use": "lognormal", "mean": 9},
        },
        "priorities": {0: 0.5, 1: 0.5},
    }
    workload = build("workload", spec)
    assert len(workload) == 40
    assert {request.priority for request in workload} == {0, 1}
    with pytest.raises(ConfigError, match="no length distribution is called 'two'"):
        build("workload", spec | {"prompts": {"use": "chat", "num_turns": "two"}})
    with pytest.raises(ConfigError, match="no arrival process is called 'gama'; did you mean"):
        build("workload", spec | {"arrivals": "gama"})


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"num_sessions": 0}, "num_sessions"),
        ({"num_sessions": 10**12}, "num_sessions"),
        ({"num_tenants": 0}, "num_tenants"),
        ({"priorities": {0: 0.0}}, "priorities"),
        ({"priorities": {0: -1.0}}, "a share"),
        ({"guess_tpot_s": -1}, "guess_tpot_s"),
        ({"seed": -1}, "seed"),
        ({"tenant_zipf": -1}, "tenant_zipf"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Synthetic(**arguments)


def test_files_that_a_component_reads_are_inputs(tmp_path: Any) -> None:
    """Lengths drawn from a trace deep inside a prompt model are part of what a run was made of."""
    from pathlib import Path

    from workloads.length_models import Empirical

    sample = Path(__file__).parents[1] / "data" / "mooncake_sample.jsonl"
    chat = Chat(prompt_tokens=Empirical(sample), answer_tokens=Empirical(sample, "answer"))
    assert Synthetic(3, prompts=chat).inputs == (sample,)
    assert Synthetic(3).inputs == ()


def test_simple_models_are_fast() -> None:
    """At least 200,000 requests a second of CPU time, made and handed out."""
    from time import process_time

    started = process_time()
    num = sum(1 for _ in Synthetic(100_000))
    assert num / (process_time() - started) > 200_000


@pytest.mark.parametrize(
    "prompts",
    [
        {"use": "chat", "num_turns": 1e9},
        {"use": "documents", "num_questions": 1e9},
        {"use": "agents", "num_steps": 1e9},
        {"use": "chat", "answer_tokens": {"use": "lognormal", "mean": 9, "cv": 1e300}},
        {"use": "shared_prompts", "prompt_tokens": 1e300},
    ],
)
def test_nothing_asks_for_more_than_can_be_made(prompts: dict[str, Any]) -> None:
    """An error names the argument or the limit, before memory is full."""
    with pytest.raises(ConfigError, match=r"num_|cv is|can be counted"):
        build("workload", {"use": "synthetic", "num_sessions": 50, "prompts": prompts})
