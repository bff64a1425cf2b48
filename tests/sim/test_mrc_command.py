"""`kvsim mrc`: the answer on stdout, the table and the picture in a folder."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from policies.vllm import VLLMBlockManager
from sim import plots
from sim.analysis.memory_curve import MemoryCurve
from sim.cli import main
from sim.footprint import prompt
from sim.hardware.models import KV_BYTES_PER_TOKEN
from sim.replay import replay
from workloads.mooncake import Mooncake
from workloads.shared_prefix import SharedPrefix


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three prompts of 1,200 tokens in turn, twenty times, and one of them once more."""
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [
        {
            "timestamp": i,
            "input_length": 1_200,
            "output_length": 3,
            "hash_ids": [3 * (i % 3), 3 * (i % 3) + 1, 1_000 + i],
        }
        for i in range(60)
    ]
    path = tmp_path / "turns.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["mrc", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "mrc.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_answer_is_one_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """57 of 60 prompts can hit 2 of their 3 blocks: 81 % of the tokens.

    LRU: when a prompt comes again, the two others and their blocks without content (the classic
    free order) lie ahead of it, 2 * (2 + 1), and its own 2 make 8. MIN: the running prompt holds 3
    and the others' 4 are kept, 7.
    """
    out = run(capsys, trace, "--target-hit-rate", 0.8, "--kv-bytes-per-token", 2**20)
    assert out == (
        "a hit rate of 80.0%: LRU needs 8 usable blocks of 512 tokens (4.00 GiB), "
        "MIN needs 7 usable blocks of 512 tokens (3.50 GiB); "
        "--num-blocks and vLLM's num_gpu_blocks are one more\n"
    )
    out = run(capsys, trace, "--target-hit-rate", 0.9, "--policy", "lru")
    assert out == "a hit rate of 90.0% is out of reach: without any limit it is 81.07%\n"


def test_the_table_and_the_picture(
    trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a target: rows for the sizes asked for; everything in mrc.csv, and a picture."""
    out = run(capsys, trace, "--sizes", 3, 6, 9, "--model", "qwen3-8b", "--out", tmp_path / "x")
    title, head = out.splitlines()[:2]
    assert "full blocks of the prompts; --num-blocks and vLLM's num_gpu_blocks are one" in title
    assert head.split() == ["usable", "blocks", "GiB", "LRU", "MIN", "no", "limit"]
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["3", "6", "9"]
    rows = {int(row["num_blocks"]): row for row in table(tmp_path / "x")}
    assert rows[9]["lru_hit_blocks"] == rows[9]["min_hit_blocks"] == "114"
    assert float(rows[9]["gib"]) == pytest.approx(9 * 512 * 147_456 / 2**30)
    assert rows[4]["min_hit_blocks"] == ""
    assert (tmp_path / "x" / "mrc.png").read_bytes().startswith(b"\x89PNG")


def test_json_and_the_default_folder(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object; without --out the files are in results/mrc-<trace>."""
    about = json.loads(run(capsys, trace, "--json", "--target-hit-rate", 0.8, "--decode"))
    assert about["requests"] == 60
    assert about["unbounded_hit_blocks"] == 114
    assert about["lru_num_blocks"] == 8
    assert about["lru_gib"] is None
    assert len(table(Path("results/mrc-turns"))) > 3


def test_every_id_is_a_block(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--all-ids counts the partial blocks too."""
    exact = json.loads(run(capsys, trace, "--json", "--all-ids", "--policy", "lru"))
    assert exact["sizes"][-1]["lru_hit_rate"] == pytest.approx(114 / 180)
    assert exact["lru"] == "LRU"


@pytest.fixture
def long_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """2,000 prompts of 2 blocks, every second one of which comes again 200 requests later."""
    monkeypatch.chdir(tmp_path)
    order = [n for i in range(2_000) for n in ((i, i - 200) if i % 2 and i > 200 else (i,))]
    rows = [
        {"timestamp": i, "input_length": 1_500, "output_length": 3}
        | {"hash_ids": [2 * n, 2 * n + 1, 100_000 + i]}
        for i, n in enumerate(order)
    ]
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_sample_is_an_estimate_and_says_so(
    long_trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No limit and MIN are exact, LRU ends at the limit, and it is called an estimate."""
    name = "LRU (estimated from 1 block in 2)"
    exact = json.loads(run(capsys, long_trace, "--json"))
    sampled = json.loads(run(capsys, long_trace, "--json", "--sample=2", "--sizes", 100, 4_000))
    for limit in ("unbounded_hit_blocks", "unbounded_hit_rate"):
        assert sampled[limit] == exact[limit]
    assert (sampled["lru"], sampled["sample_one_in"]) == (name, 2)
    assert sampled["sizes"][-1]["lru_hit_blocks"] == exact["unbounded_hit_blocks"]
    assert [row["lru_sample_one_in"] for row in sampled["sizes"]] == [2, 2]
    for row in sampled["sizes"]:
        assert row["min_hit_rate"] <= sampled["unbounded_hit_rate"]
    assert name in run(capsys, long_trace, "--sample=2")
    target = ["--target-hit-rate", str(exact["unbounded_hit_rate"])]
    said = run(capsys, long_trace, "--sample=2", *target)
    assert name in said
    needs = json.loads(run(capsys, long_trace, "--json", *target))["min_num_blocks"]
    assert f"MIN needs {needs:,} usable blocks" in said


def test_min_does_not_rely_on_an_estimate(long_trace: Path) -> None:
    """Where LRU is thought to need too little, MIN's size is still the smallest that reaches it."""
    curves = MemoryCurve.of(list(Mooncake(long_trace)))
    low = replace(curves.lru, corners=curves.lru.corners // 10, min_num_blocks=3)
    hopeful = replace(curves, lru=low, sample_one_in=2)
    rate = curves.rate(curves.lru.unbounded)
    lru, best = hopeful.lru_size(rate), hopeful.min_size(rate)
    assert lru is not None
    assert best is not None
    assert lru < best == curves.min_size(rate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target-hit-rate", "1.5"], "--target-hit-rate is 1.5; it must be above 0"),
        (["--sizes", "2"], "--sizes: 2 blocks do not hold the longest request, which needs 3"),
        (["--model", "lama"], "--model is 'lama'"),
        (["--kv-bytes-per-token", "0"], "--kv-bytes-per-token is 0"),
        (["--sample", "0"], "--sample is 0"),
        (["--sample", "2"], "blocks, and fewer than 1,000 say little; give a smaller one, or none"),
        (["--all-ids", "--decode"], "--all-ids counts prompts only"),
        (["--all-ids", "--block-size", "16"], "block_size is 16"),
    ],
)
def test_what_must_be_mended(
    trace: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """Exit code 2 and one line."""
    assert main(["mrc", str(trace), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_curve_in_python() -> None:
    """`plots.hit_rate_curve` draws on axes of its own or on given ones, with and without GiB."""
    requests = list(SharedPrefix(num_requests=200))
    curves = MemoryCurve.of(requests, prompt, title="made up", kv_bytes_per_token=131_072)
    ax = plots.hit_rate_curve(curves)
    assert ax.get_xscale() == "log"
    assert len(ax.lines) == 3
    assert ax.child_axes[0].get_xlabel() == "GiB"
    bare = MemoryCurve.of(requests, prompt, policies="lru")
    own = Figure().add_subplot()
    assert plots.hit_rate_curve(bare, own) is own
    assert len(own.lines) == 2
    assert not own.child_axes


def test_min_needs_no_more_than_lru() -> None:
    """Its size for a hit rate is the smallest that reaches it, and never above LRU's."""
    curves = MemoryCurve.of(list(SharedPrefix(num_requests=300)))
    for rate in np.linspace(0.05, curves.rate(curves.lru.unbounded), 6):
        lru, best = curves.lru_size(rate), curves.min_size(rate)
        assert lru is not None
        assert best is not None
        assert best <= lru
        assert curves.optimum is not None
        assert curves.rate(curves.optimum.num_hits(best)) >= rate
        if best > curves.lru.min_num_blocks:
            assert curves.rate(curves.optimum.num_hits(best - 1)) < rate
    assert curves.min_size(0.99) is None


def test_known_models() -> None:
    """Bytes per token as published: Llama-3.1-8B 131,072; DeepSeek-V3 70,272."""
    assert KV_BYTES_PER_TOKEN["llama-3.1-8b"] == 131_072
    assert KV_BYTES_PER_TOKEN["llama-3.1-405b"] == 516_096
    assert KV_BYTES_PER_TOKEN["qwen2.5-7b"] == 57_344
    assert KV_BYTES_PER_TOKEN["deepseek-v3"] == 70_272


@pytest.mark.slow
def test_conversation(kvsim_data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """30 % of the conversation trace's tokens; a replay with one block less does not reach it."""
    path = kvsim_data / "mooncake" / "conversation_trace.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    options = ["--json", "--target-hit-rate", "0.3", "--out", str(tmp_path), "--model=llama-3.1-8b"]
    about = json.loads(run(capsys, path, *options))
    assert Mooncake(path).block_size == about["block_size"] == 512
    assert about["lru_gib"] == about["lru_num_blocks"] * 512 * 131_072 / 2**30
    needed = about["lru_num_blocks"]
    rates = []
    for num_blocks in (needed - 1, needed):
        manager = VLLMBlockManager(num_blocks, 512, null_block=False)
        rates.append(replay(manager, Mooncake(path)).hit_rate)
    assert rates[0] < 0.3 <= rates[1]
    assert 3_000 < about["min_num_blocks"] < 3_200
