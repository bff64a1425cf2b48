"""The learned policy: it learns, sees nothing of what it is judged by, and says when it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policies.learned import Learned
from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from policies.reuse_examples import Examples
from policies.vllm import VLLMBlockManager
from sim import run
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.replay import replay
from sim.request import Request
from sim.testing import check_eviction_policy
from workloads.mooncake import Mooncake

pytest.importorskip("torch", reason="the extra `torch` is not installed")


def traffic(num_requests=600, seed=0):
    """Every fourth request continues one of 8 chats, the others are scans that never return."""
    rng = np.random.default_rng(seed)
    chats = [[] for _ in range(8)]
    requests = []
    for i in range(num_requests):
        if i % 4 == 0:
            chat = chats[rng.integers(8)]
            chat.append(10_000 + i)
            ids = list(chat)
            ends = [16 * (n + 1) for n in range(len(ids))]
        else:
            ids, ends = [i], [320]
        keys = SegmentKeys([*ids, -1 - i], [*ends, ends[-1] + 1], 4)
        requests.append(Request(i, keys, ends[-1], 1, float(i)))
    return requests


def hits_behind(policy, requests, num_first, kind=VLLMBlockManager, num_blocks=400):
    manager = kind(num_blocks, 4, eviction=policy, null_block=False)
    if policy.is_offline:
        policy.prepare(requests)
    hits = []
    replay(manager, requests, hits=hits)
    return sum(hits[num_first:])


def test_it_learns_what_returns():
    """Chats return, scans do not: LRU cannot tell, and loses chats to scans."""
    requests = traffic()
    assert hits_behind(Learned(), requests, 180) > 1.3 * hits_behind(LRU(), requests, 180)


def test_the_same_by_blocks_and_by_spans():
    requests = traffic()
    found = [
        hits_behind(Learned(horizon=60), requests, 0, kind)
        for kind in (ReferenceBlockManager, VLLMBlockManager)
    ]
    assert found[0] == found[1] > 0


def test_it_sees_only_the_first_part():
    """Whatever comes behind the first 30 %: the network and the horizon are the same."""
    requests = traffic()
    learned = []
    for rest in (requests[180:], requests[:420]):
        policy = Learned(training=0.3)
        VLLMBlockManager(400, 4, eviction=policy)
        policy.prepare(requests[:180] + rest)
        learned.append((policy._horizon, [np.asarray(part).tolist() for part in policy._network]))
    assert learned[0] == learned[1]


def test_examples_by_hand():
    """Three requests at 0, 1 and 5 s: A B, A C and A B again, blocks of 4 tokens, 2 per letter."""
    prompts = [("AB", 0.0), ("AC", 1.0), ("AB", 5.0)]
    requests = []
    for i, (letters, now) in enumerate(prompts):
        ids, ends = [ord(letters[0]), ord(letters[1]), -1 - i], [8, 16, 17]
        requests.append(Request(i, SegmentKeys(ids, ends, 4), 17, 1, now))
    examples = Examples(requests, 4)
    rows = sorted(zip(examples.when, examples.reused, examples.num_blocks, strict=True))
    never = np.inf
    assert rows == [
        (0.0, 1.0, 2),  # A, cut from AB when AC came
        (0.0, 5.0, 2),  # B
        (1.0, 5.0, 2),  # A
        (1.0, never, 2),  # C
        (5.0, never, 2),
        (5.0, never, 2),
    ]
    assert examples.turnover(12) == 12 * 5 / 6  # 6 new blocks in 5 s
    _, labels, weights = examples.labelled(horizon=4.0)  # of what was released at 1 s or before
    assert sorted(zip(labels, weights, strict=True)) == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_it_forgets_a_request_that_had_nothing_of_its_own():
    """Each hits what another request holds, and ends without a full block of its own."""
    policy = Learned(horizon=60)
    manager = VLLMBlockManager(400, 4, eviction=policy, null_block=False)
    policy.prepare(traffic())

    def admit(i):
        request = Request(i, SegmentKeys([7, -1 - i], [16, 18], 4), 17, 1)
        hit = manager.get_computed_blocks(request)
        manager.allocate_slots(request, 17 - hit.num_tokens, hit)
        request.num_computed_tokens = 17
        return request

    admit(0)  # and stays
    for i in range(1, 10):
        manager.free(admit(i))
    assert not policy._num_hit


def test_too_little_to_learn_from():
    requests = traffic(40)
    policy = Learned()
    VLLMBlockManager(400, 4, eviction=policy)
    with pytest.raises(ConfigError, match=r"examples to learn from, 100 is the least"):
        policy.prepare(requests)
    with pytest.raises(ConfigError, match="no new blocks over time; give horizon"):
        policy.prepare(requests[:1])


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"training": 1.0}, "training is 1.0; it must be a share"),
        ({"horizon": 0.0}, "horizon is 0.0 s; it must be more than 0"),
        ({"min_examples": -1}, "min_examples is -1; it must be at least 0"),
    ],
)
def test_wrong_parameters(arguments, rule):
    with pytest.raises(ConfigError, match=rule):
        Learned(**arguments)


def test_it_keeps_the_contract():
    """With so few requests that most networks know nothing."""
    arguments = {"training": 0.9, "horizon": 5.0, "min_examples": 0}
    check_eviction_policy({"use": "learned", **arguments}, seconds=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "num_blocks", "gain"),
    [
        ("conversation", 2_000, 1.5),
        ("conversation", 5_859, 1.08),
        ("conversation", 20_000, 1.0),
        ("synthetic", 2_000, 0.65),  # its traffic changes: what was learned is wrong later
    ],
)
def test_on_mooncake(trace, num_blocks, gain, kvsim_data):
    """Hits behind the first 30 %, over those of LRU: at least the *gain*."""
    requests = list(Mooncake(kvsim_data / "mooncake" / f"{trace}_trace.jsonl.xz", 512))
    num_first = int(0.3 * len(requests))
    found = {}
    for policy in (LRU(), Learned()):
        manager = VLLMBlockManager(num_blocks, 512, eviction=policy, null_block=False)
        if policy.is_offline:
            policy.prepare(requests)
        hits = []
        replay(manager, requests, hits=hits)
        found[type(policy)] = sum(hit for hit in hits[num_first:] if hit > 0)
    assert found[Learned] >= gain * found[LRU]


@pytest.mark.slow
def test_its_question_is_answered(kvsim_data, monkeypatch):
    """configs/questions/learned.yaml at one size: LRU < S3-FIFO < learned < MIN, by the rest."""
    monkeypatch.setenv("KVSIM_DATA", str(kvsim_data))
    config = Path(__file__).parents[2] / "configs" / "questions" / "learned.yaml"
    table = run(config, overrides=["sweep.cache.num_blocks=[2000]"]).summary.set_index("policy")
    rates = [table.loc[name, "hit_rate"] for name in ("lru", "s3fifo", "learned", "MIN")]
    assert rates == sorted(rates)
    assert table.loc["learned", "hit_rate"] > 1.4 * table.loc["lru", "hit_rate"]
    assert (table["num_requests"] == 12_031 - 3_609).all()
