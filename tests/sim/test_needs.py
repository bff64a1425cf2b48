"""Policies that need hints or the future say so before a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.kvflow import KVFlow
from policies.lru import LRU
from policies.queue_lookahead import QueueLookahead
from policies.vllm import VLLMBlockManager
from policies.workload_aware import WorkloadAware
from sim import run
from sim.cli import main
from sim.errors import ConfigError
from sim.needs import check_needs, prepare
from sim.scheduler import Scheduler
from sim.studies.study import Study
from sim.workload import Workload

SAMPLE = Path(__file__).parent.parent / "data" / "mooncake_sample.jsonl"
CONFIG = {
    "cache": {"num_blocks": 60, "block_size": 16},
    "workload": {"use": "shared_prefix", "rate": 8, "num_requests": 30, "prefix_tokens": 100},
}


class Told(Workload):
    """An empty workload that promises hints."""

    block_size = 16

    def __init__(self, *hints):
        self.hints = frozenset(hints)

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0


def manager(policy):
    return VLLMBlockManager(60, eviction=policy)


def test_a_missing_hint_is_one_line():
    """It says who needs what, what there is, and what to do."""
    with pytest.raises(ConfigError) as error:
        check_needs(manager(WorkloadAware()), Told("turn", "language"))
    assert str(error.value) == (
        "WorkloadAware needs the hint type; Told gives language, turn; "
        "take another policy, or a workload that gives them"
    )
    check_needs(manager(WorkloadAware()), Told("turn", "type"))
    check_needs(manager(LRU()), Told())


def test_an_experiment_fails_before_it_runs_anything(tmp_path):
    """The second policy lacks a hint: the first one is not run either."""
    policies = {"lru": "vllm", "wa": {"use": "vllm", "eviction": "workload_aware"}}
    started = []
    config = {**CONFIG, "policies": policies}
    with pytest.raises(ConfigError, match=r"^policies\.wa: WorkloadAware needs the hints turn, ty"):
        Study.load(config).run(lambda label, *_: started.append(label))
    assert started == []


def test_replay_fails_before_it_runs_anything(capsys):
    """`kvsim replay` says the same, with exit code 2."""
    command = ["replay", str(SAMPLE), "--num-blocks", "100", "--manager", "vllm"]
    assert main([*command, "--policy", "kvflow"]) == 2
    error = capsys.readouterr().err
    assert "KVFlow needs the hint steps_to_execution; Mooncake gives none" in error
    assert error.count("\n") == 1


def test_offline_policies_see_the_requests(capsys):
    """`prepare` is called by experiments and by `kvsim replay`, for every policy of its own."""
    command = ["replay", str(SAMPLE), "--num-blocks", "100", "--manager", "vllm"]
    assert main([*command, "--policy", "{use: noisy_oracle, accuracy: 1.0}"]) == 0
    policies = {
        "oracle": {"use": "vllm", "eviction": {"use": "noisy_oracle", "accuracy": 1.0}},
        "again": {"use": "reference", "eviction": {"use": "noisy_oracle", "accuracy": 1.0}},
    }
    summary = run({**CONFIG, "policies": policies}).summary
    assert summary["hit_rate"].nunique() == 1


def test_only_offline_policies_are_prepared():
    """An online policy is never shown the future."""

    class Proud(LRU):
        def prepare(self, requests):
            raise AssertionError

    prepare(manager(Proud()), Told())


def test_policies_see_the_waiting_queue():
    """The scheduler gives its policy the queue itself, not a copy."""
    policy = QueueLookahead()
    scheduler = Scheduler(manager(policy))
    assert policy.waiting is scheduler.waiting
    assert list(policy.waiting) == []


def test_a_manager_without_a_policy_needs_nothing():
    """Managers are free to have none."""

    class Bare(VLLMBlockManager):
        policy = None

        def __init__(self):
            pass

    check_needs(Bare(), Told())
    with pytest.raises(ConfigError, match="KVFlow needs"):
        prepare(manager(KVFlow()), Told())
