from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from policies.vllm import VLLMBlockManager
from sim import run
from sim.errors import TraceError
from sim.replay import replay
from workloads.lengths import Lengths

Write = Callable[..., Path]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


@pytest.fixture
def csv(write: Write) -> Write:
    return lambda *lines: write(*lines, name="trace.csv")


def test_azure_times_have_seven_digits_or_a_zone(csv: Write) -> None:
    """2023 writes 100 ns without a zone, 2024 microseconds with one; the last newline may miss."""
    path = csv(AZURE, "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109")
    path.write_text(path.read_text().rstrip())
    first, second = Lengths(path)
    assert (first.num_prompt_tokens, first.max_tokens, second.max_tokens) == (374, 44, 109)
    assert second.arrival_time == pytest.approx(4.314579, abs=1e-9)
    path = csv(AZURE, "2024-05-10 00:00:00.009930+00:00,1,1", "2024-05-10 02:00:01+02:00,1,1")
    assert [r.arrival_time for r in Lengths(path)] == pytest.approx([0, 0.99007])


def test_burstgpt_failures_are_left_out_and_counted(csv: Write) -> None:
    path = csv(
        BURST,
        "5,ChatGPT,472,18,490,Conversation log",
        "45,ChatGPT,1087,0,1087,Conversation log",
        "118.5,GPT-4,417,276,693,API log",
    )
    workload = Lengths(path)
    assert [r.arrival_time for r in workload] == [0, 113.5]
    assert workload.notes[0] == "1 rows without an answer were left out"


def test_without_a_content_model_nothing_is_shared(csv: Write) -> None:
    """Lengths say nothing about content: no hits, and the workload says so."""
    path = csv(BURST, *(f"{i},m,640,4,644,API log" for i in range(50)))
    workload = Lengths(path)
    assert not workload.has_content
    assert "a hit rate says nothing" in workload.notes[-1]
    assert replay(VLLMBlockManager(10_000, 16), workload).hit_tokens == 0


def test_with_a_content_model_prefixes_are_shared(csv: Write) -> None:
    """One prefix of 320 tokens: all requests but the first hit it; shorter prompts a part of it."""
    lengths = [640] * 5 + [100]
    path = csv(BURST, *(f"{i},m,{n},4,644,API log" for i, n in enumerate(lengths)))
    workload = Lengths(path, num_prefixes=1, prefix_tokens=320)
    assert workload.has_content
    assert "made-up content" in workload.notes[-1]
    assert replay(VLLMBlockManager(10_000, 16), workload).hit_tokens == 4 * 320 + 96


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([AZURE, "2023-11-16 25:15:46.68,374,44"], ":2: .*time is '2023-11-16 25"),
        ([AZURE, "2023-11-16 18:15:46.,374,44"], ":2: .*time is"),
        ([BURST, "1,m,4.5,1,1,x"], ":2: .*prompt tokens is 4.5; it must be a whole number"),
        ([BURST, "1,m,nan,1,1,x"], ":2: .*prompt tokens is 'nan'"),
        ([BURST, "1,m,-1,1,1,x"], ":2: .*prompt tokens is -1"),
        ([BURST, "1,m"], ":2: .*the row has 2 fields; it needs 4"),
        ([BURST, "-1,m,1,1,1,x"], ":2: .*time is '-1'"),
        (["time,tokens", "1,2"], ":1: the header is 'time,tokens'; it must name the columns"),
    ],
)
def test_bad_rows_are_named(csv: Write, lines: list[str], what: str) -> None:
    with pytest.raises(TraceError, match=what):
        Lengths(csv(*lines))


def test_the_form_of_the_text_does_not_matter(tmp_path: Path) -> None:
    """Case K7 for CSV: CRLF, BOM, blank lines and no final newline give the same requests."""
    lines = [BURST, "0,m,10,1,11,x", "1,m,20,2,22,x", "2,m,30,3,33,x"]
    texts = ["\n".join(lines), "\r\n".join(lines) + "\r\n", "\n\n".join(lines) + "\n\n \n"]
    found = []
    for i, text in enumerate([*texts, "\ufeff" + texts[0]]):
        path = tmp_path / f"{i}.csv"
        path.write_bytes(text.encode())
        found.append([(r.arrival_time, r.num_prompt_tokens, r.max_tokens) for r in Lengths(path)])
    assert found == [[(0, 10, 1), (1, 20, 2), (2, 30, 3)]] * 4


def test_no_run_claims_a_hit_rate_without_content(csv: Write) -> None:
    """Latencies, but no hit rate in any table; with a content model there is one."""
    path = csv(BURST, *(f"{i},m,640,4,644,API log" for i in range(5)))
    config = {
        "cache": {"num_blocks": 4096, "block_size": 16},
        "workload": {"use": "lengths", "path": str(path)},
        "policies": {"lru": "vllm"},
    }
    bare = run(config)
    assert (
        bare.summary[["hit_rate", "mean_request_hit_ratio", "hit_rate_window"]]
        .isna()
        .to_numpy()
        .all()
    )
    assert bare.series[["hit_rate", "hit_rate_window"]].isna().to_numpy().all()
    assert bare.summary["ttft_p50"].notna().all()
    modelled = run(config, overrides=["workload.num_prefixes=1"])
    assert modelled.summary["hit_rate"].iloc[0] > 0.3
