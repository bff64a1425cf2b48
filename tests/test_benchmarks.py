"""The benchmarks run, and say what they measured. Nothing here judges a time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import engines, growth, inputs, measure, peers, replays, report, targets
from benchmarks.measure import Outcome, Row
from benchmarks.user_policy import OrderedDictLRU, RankedLRU
from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.cache import EvictionPolicy
from sim.replay import replay
from sim.testing import check_eviction_policy

ROOT = Path(__file__).parent.parent
TOY = inputs.Settings(data=None, quick=True, repetitions=1, peers_python=sys.executable)


def printed(*arguments: str) -> str:
    """What the command prints, run without any trace."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "KVSIM_DATA": "/nonexistent"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def row(name: str, seconds: float, num_requests: int = 12_000, peak_mib: float = 50.0) -> Row:
    return Row(name, "", Outcome(num_requests, 100, [seconds], "work"), peak_mib, 40.0, 60.0)


@pytest.mark.slow
def test_quick_growth_is_a_table() -> None:
    """--quick measures toys without a trace and prints one Markdown row per measurement."""
    text = printed("--quick", "--only", "growth", "--markdown")
    assert "toy sizes" in text.splitlines()[0]
    rows = [line for line in text.splitlines() if line.startswith("| replay of")]
    assert [line.split("|")[1].split()[2] for line in rows] == ["100", "1,000", "10,000"]
    assert text.count("| engine run of") == 2
    assert "Targets" not in text


@pytest.mark.slow
def test_quick_measures_every_section() -> None:
    """Every section has rows; peers that are not installed say so."""
    text = printed("--quick", "--peers-python", sys.executable)
    for title in (replays.TITLE, "Engine", "Growth", "WEKA", peers.TITLE):
        assert title in text
    assert "macro steps, 512-token blocks, decode-bound" in text
    assert "every step, blocks (reference), 16-token blocks, saturated" in text
    assert text.count("kvsim, replay") == 2
    for peer in ("libcachesim", "kvcache_simulator", "dynamo"):
        lines = [line for line in text.splitlines() if line.startswith(peer)]
        assert all(line.endswith("not installed") for line in lines)


def test_every_variant_does_the_same_work() -> None:
    """Equal work is what makes times comparable: it is printed, and it is equal."""
    managers = [VLLMBlockManager, ReferenceBlockManager]
    replayed = [replays.conversation(TOY, 16, manager, LRU, 2) for manager in managers]
    assert len(replayed[0].seconds) == 2
    assert replayed[0].num_requests == 300
    assert " blocks hit in " in replayed[0].work
    assert replayed[0].work == replayed[1].work
    spans = engines.Job(16, "decode-bound", VLLMBlockManager, True, 1)
    variants = [spans, spans._replace(macro_steps=False)]
    ran = [engines.conversation(TOY, job) for job in variants]
    assert "decoded in" in ran[0].work
    assert ran[0].work == ran[1].work


def test_a_missing_trace_is_said() -> None:
    """Without the trace a section prints what it needs and where to put it."""
    text = printed("--only", "replay,weka")
    assert "conversation_trace.jsonl.xz" in text
    assert text.count("not found; set KVSIM_DATA") == 2


def test_an_unknown_section_is_refused() -> None:
    """The message names the section and those there are."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "speed"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert (
        "no section speed; there are replay, policies, engine, growth, weka, peers" in done.stderr
    )


@pytest.mark.parametrize("policy", [OrderedDictLRU, RankedLRU])
def test_a_users_lru_is_lru(policy: Callable[[], EvictionPolicy]) -> None:
    """The two policies in plain Python keep the contract and decide as the built-in LRU does."""
    check_eviction_policy(policy, seconds=2)
    workload = TOY.conversation(16)
    num_blocks = inputs.tenth(workload)
    built_in = replay(VLLMBlockManager(num_blocks, 16), workload)
    own = replay(VLLMBlockManager(num_blocks, 16, eviction=policy()), workload)
    assert built_in.evicted_blocks > 0
    assert own == built_in


def test_the_footprint_is_the_number_of_different_full_blocks() -> None:
    """Counted one by one: the keys of all full blocks of all prompts."""
    workload = TOY.conversation(16)
    keys = {r.keys[i] for r in workload for i in range(r.num_prompt_tokens // 16)}
    assert inputs.footprint(workload) == len(keys)
    assert inputs.tenth(workload) == -(-len(keys) // 10) + 1


def test_peers_get_the_full_blocks_of_all_prompts(tmp_path: Path) -> None:
    """Both stream formats hold the same ids in the same order, and lengths to match."""
    job = peers.write_streams(TOY, 16, tmp_path)
    requests = list(TOY.conversation(16))
    assert job == {
        "num_requests": len(requests),
        "num_blocks": inputs.tenth(TOY.conversation(16)) - 1,
    }
    expected = [[r.keys[i] for i in range(r.num_prompt_tokens // 16)] for r in requests]
    lines = (tmp_path / "16.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [r["hash_ids"] for r in rows] == expected
    assert all(r["input_length"] == 16 * len(r["hash_ids"]) for r in rows)
    accesses = np.fromfile(tmp_path / "16.bin", peers.ACCESS)
    assert accesses.itemsize == 24
    assert accesses["id"].tolist() == [key for keys in expected for key in keys]


def test_the_timed_peer_gets_every_request(tmp_path: Path) -> None:
    """Times in milliseconds, both lengths, and one id per started block."""
    path = tmp_path / "trace.jsonl"
    chunk = peers.write_trace(TOY, path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    requests = list(TOY.conversation(16))
    assert [r["timestamp"] for r in rows] == [r.arrival_time * 1000.0 for r in requests]
    assert [r["output_length"] for r in rows] == [r.max_tokens for r in requests]
    assert all(len(r["hash_ids"]) == -(-r["input_length"] // chunk) for r in rows)


def test_repetitions_must_agree() -> None:
    """Times of different work are not put into one row."""
    assert measure.repeated(lambda: (1.5, "same"), 3) == ([1.5, 1.5, 1.5], "same")
    counter = iter(range(3))
    with pytest.raises(AssertionError, match="different work"):
        measure.repeated(lambda: (1.0, next(counter)), 3)


def test_peak_memory_is_the_process_s_own() -> None:
    """A process that fills 64 MiB reports at least 64 MiB more than one that does not."""
    idle = measure.in_fresh_process("idle", "", _fill, 0)
    full = measure.in_fresh_process("full", "", _fill, 64)
    assert full.peak_mib - idle.peak_mib == pytest.approx(64, abs=8)


def _fill(num_mib: int) -> Outcome:
    memory = b"x" * (num_mib * 2**20)
    return Outcome(1, None, [1.0], str(len(memory)))


def test_targets_are_judged_by_the_median() -> None:
    """12,000 requests in 1 s are below 120,000 per second, in 0.1 s they are not."""
    fine, coarse = replays.name("spans", 16), replays.name("spans", 512)
    (missed, ratio) = targets.judged({fine: row(fine, 1.0), coarse: row(coarse, 0.4)})
    assert (missed.measured, missed.is_met) == (12_000, False)
    assert (ratio.measured, ratio.is_met) == (pytest.approx(0.4), False)
    (met, ratio) = targets.judged({fine: row(fine, 0.1), coarse: row(coarse, 0.1)})
    assert met.is_met
    assert ratio.is_met
    text = report.promises([missed, met], markdown=True)
    assert "at least 120,000 requests/s" in text
    assert text.count("MISSED") == text.count("| met") == 1


def test_growth_is_judged_per_request() -> None:
    """10 times the requests in 10 times the time is flat; 20 times the time is not."""
    names = [growth.name("replay", size) for size in growth.SIZES]
    for last, is_met in ((14.0, True), (28.0, False)):
        seconds = (0.1, 1.0, last)
        rows = {n: row(n, s, size) for n, s, size in zip(names, seconds, growth.SIZES, strict=True)}
        limit, flat = targets.judged(rows)
        assert limit.is_met == is_met
        assert flat.is_met == is_met
        assert flat.measured == pytest.approx(last / 10)


def test_results_are_put_between_the_marks(tmp_path: Path) -> None:
    """What stands around the results stays as it is; a file without marks is refused."""
    path = tmp_path / "page.md"
    path.write_text(f"top\n{report.BEGIN}\nold\n{report.END}\nbottom\n")
    report.put_into(path, "new\n")
    assert path.read_text() == f"top\n{report.BEGIN}\n\nnew\n\n{report.END}\nbottom\n"
    path.write_text("top\n")
    with pytest.raises(SystemExit, match="no <!-- results -->"):
        report.put_into(path, "new")
    assert path.read_text() == "top\n"


def test_nothing_is_judged_that_was_not_measured() -> None:
    """Sections that were left out make no targets."""
    assert targets.judged({}) == []


def test_the_readme_has_the_numbers_of_the_page() -> None:
    """README's table repeats rows of docs/performance.md, to two or three digits."""
    row = re.compile(r"^\| ([^|]+?) +\| +([\d,]+) \|", re.M)
    _, _, section = (ROOT / "README.md").read_text("utf-8").partition("## How fast is it?")
    shown = row.findall(section.partition("\n## ")[0])
    measured = dict(row.findall((ROOT / "docs" / "performance.md").read_text("utf-8")))
    assert len(shown) == 5
    for name, number in shown:
        speed = int(measured[name].replace(",", ""))
        digits = 3 if speed >= 100_000 else 2
        assert number == f"{round(speed, digits - len(str(speed))):,}", name
