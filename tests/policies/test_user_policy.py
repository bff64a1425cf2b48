"""A policy of one's own: a small file anywhere, named by its import path."""

from __future__ import annotations

import sys

import pytest

from policies.ranked import Ranked
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim import run
from sim.checks.twins import Twins
from sim.cli import main
from sim.testing import check_eviction_policy

MODULE = '''
"""System prompts stay: of what is left the least used goes first."""

from policies.ranked import Ranked


class SystemPrompts(Ranked):
    """Evict by uses, but the first *num_system_blocks* blocks of every prompt last."""

    max_span = 1

    def __init__(self, num_system_blocks: int = 4):
        self.num_system_blocks = num_system_blocks

    def touch(self, span, request, now):
        span.note = (span.note or 1) + 1

    def rank(self, span, request, now):
        return span.start < self.num_system_blocks, span.note or 1
'''

CONFIG = """
name: mine
cache: {num_blocks: 60, block_size: 16}
workload: {use: shared_prefix, rate: 8, num_requests: 60, prefix_tokens: 100}
policies:
  lru: vllm
  spans: {use: vllm, eviction: "my_lab_policies:SystemPrompts"}
  blocks: {use: reference, eviction: {use: "my_lab_policies:SystemPrompts", num_system_blocks: 6}}
  tree: {use: radix, eviction: {use: "my_lab_policies:SystemPrompts", num_system_blocks: 6}}
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder outside the project with a policy and a configuration that uses it."""
    (tmp_path / "my_lab_policies.py").write_text(MODULE)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_lab_policies", None)


def test_the_policy_is_short():
    """The whole module, imports and docstrings included, has fewer than 20 lines of text."""
    assert sum(bool(line.strip()) for line in MODULE.splitlines()) < 20


def test_the_command_runs_it(lab, capsys):
    """`kvsim run mine.yaml` finds the module beside the configuration; parameters reach it."""
    assert main(["run", str(lab / "mine.yaml"), "--out", str(lab / "results")]) == 0
    text = (lab / "results" / "config.yaml").read_text()
    assert "my_lab_policies:SystemPrompts" in text
    assert "num_system_blocks: 4" in text
    assert "num_system_blocks: 6" in text


def test_a_wrong_parameter_is_told(lab, capsys):
    """The error names the policy's own parameter."""
    config = lab / "mine.yaml"
    config.write_text(CONFIG.replace("num_system_blocks", "num_system_block"))
    assert main(["run", str(config), "--out", str(lab / "results")]) == 2
    assert "num_system_blocks" in capsys.readouterr().err


def test_it_runs_from_python():
    """A class, or an object ready for use, stands where YAML has a name."""

    class Newest(Ranked):
        def rank(self, span, request, now):
            return -now

    config = {
        "cache": {"num_blocks": 60, "block_size": 16},
        "workload": {"use": "shared_prefix", "rate": 8, "num_requests": 60, "prefix_tokens": 100},
        "policies": {
            "class": {"use": "vllm", "eviction": Newest},
            "object": {"use": "reference", "eviction": Newest()},
        },
    }
    summary = run(config).summary
    assert summary["hit_rate"].nunique() == 1
    check_eviction_policy(Newest, seconds=2)


def test_it_decides_the_same_under_both_managers():
    """Three lines are enough to be exact by spans and by blocks."""

    class MostUsed(Ranked):
        def touch(self, span, request, now):
            span.note = (span.note or 0) + 1

        def rank(self, span, request, now):
            return -(span.note or 0)

    for seed in range(20):
        Twins(
            lambda n, size: ReferenceBlockManager(n, size, eviction=MostUsed()),
            lambda n, size: VLLMBlockManager(n, size, eviction=MostUsed()),
            seed,
        ).run(60)
