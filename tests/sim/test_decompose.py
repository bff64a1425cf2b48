from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policies.vllm import VLLMBlockManager
from sim.analysis.decompose import decompose
from sim.cli import main
from sim.latency import Roofline
from workloads.mooncake import Mooncake
from workloads.shared_prefix import SharedPrefix

LEVELS = {  # measured with those tools on the conversation trace, 10,000 blocks of 512 tokens
    "every id is a block": 0.2112,  # libCacheSim 0.3.5
    "only full blocks": 0.2242,  # the same on full blocks
    "only a prefix can hit": 0.224224,  # kvlint 0.1.1
    "counted in tokens": 0.21922,  # LMCache's simulator 0.5.6, and kvlint in tokens
    "the deepest blocks go first": 0.21925,  # prefixlens 0.1.0
    "+ last token, partial blocks": 0.219239,  # vLLM after its change 42656, one at a time
    "  the same, freed to the tail": 0.215597,  # vLLM before
}


def make(order: str) -> VLLMBlockManager:
    return VLLMBlockManager(10_000, 512, free_order=order, null_block=False)  # type: ignore[arg-type]


def test_the_numbers_of_six_tools(kvsim_data: Path) -> None:
    """Each rule gives the number that a tool with just those rules measured, to its last digit."""
    workload = Mooncake(kvsim_data / "mooncake" / "conversation_trace.jsonl.xz")
    found = {
        level.rule: level.hit_rate
        for level in decompose(workload, 10_000, make, {"latency": Roofline()})
    }
    for rule, measured in LEVELS.items():
        digits = len(str(measured).partition(".")[2])
        assert round(found[rule], digits) == pytest.approx(measured, abs=1e-9), rule
    assert found["+ answers take blocks"] < found["  the same, freed to the tail"]
    assert list(found)[-1] == "+ a clock: concurrency, pins"


def test_rules_that_change_nothing_change_nothing() -> None:
    """In a pool that holds everything, order and partial blocks cost nothing."""
    workload = SharedPrefix(num_requests=200)

    def large(order: str) -> VLLMBlockManager:
        return VLLMBlockManager(10**6, free_order=order)  # type: ignore[arg-type]

    levels = list(decompose(workload, 10**6, large))
    assert levels[0].rule == "only full blocks"  # its contents have no ids
    assert len({level.num_hits for level in levels if level.unit == "blocks"}) == 1
    in_tokens = [level.num_hits for level in levels if level.unit == "tokens"]
    assert len(set(in_tokens[2:5])) == 1
    assert in_tokens[2] <= in_tokens[1]


def test_the_command_prints_every_level(
    kvsim_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line per rule, with the tool that counts so."""
    trace = kvsim_data / "mooncake" / "synthetic_trace.jsonl.xz"
    assert main(["decompose", str(trace), "--num-blocks", "5000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0].split() == ["rule", "hit", "rate", "of", "as", "counted", "by"]
    assert lines[3].startswith("only a prefix can hit")
    assert lines[3].endswith("kvlint")


@pytest.fixture
def large_and_small(tmp_path: Path) -> Path:
    """Prompts of 5,120 tokens, and two of 1,024, of which one has a long answer."""
    rows: list[dict[str, Any]] = []
    for i in range(7):
        num_ids, answer = (2, 10_000 if i == 4 else 3) if i in (2, 4) else (10, 3)
        ids = [100 * (i % 2) + n for n in range(num_ids)]
        rows.append(
            {"timestamp": i, "input_length": 512 * num_ids, "output_length": answer}
            | {"hash_ids": ids}
        )
    path = tmp_path / "sizes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_rule_counts_the_same_requests(
    large_and_small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What does not fit with its answer is left out of all rules, and the user is told."""

    def small(order: str) -> VLLMBlockManager:
        return VLLMBlockManager(12, 512, free_order=order, null_block=False)  # type: ignore[arg-type]

    levels = list(decompose(Mooncake(large_and_small), 12, small))
    assert {level.num_queries for level in levels if level.unit == "blocks"} == {52}
    assert {level.num_queries for level in levels if level.unit == "tokens"} == {52 * 512}
    assert main(["decompose", str(large_and_small), "--num-blocks", "13"]) == 0
    said = capsys.readouterr()
    assert said.err == "note: 1 of 7 requests do not fit in the pool and are left out\n"
    assert main(["decompose", str(large_and_small), "--num-blocks", "2"]) == 2
    assert "none of the 7 requests fits in the pool" in capsys.readouterr().err
