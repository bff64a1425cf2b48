from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.cli import main
from sim.keys import TokenKeys
from sim.request import Request
from workloads.mooncake import Mooncake
from workloads.own import Own
from workloads.profile import Seen, profile
from workloads.shared_prefix import SharedPrefix
from workloads.sharing_tree import Branch, branches
from workloads.trace_plots import PLOTS, save
from workloads.units import units

Write = Callable[..., Path]
SAMPLE = Path(__file__).parents[1] / "data" / "mooncake_sample.jsonl"


def row(time: float, tokens: int, *ids: int) -> dict[str, Any]:
    return {"timestamp": time, "input_length": tokens, "output_length": 3, "hash_ids": ids}


@pytest.fixture
def trace(write: Write) -> Path:
    return write(
        row(0, 1100, 1, 2, 3),
        row(5000, 1100, 1, 2, 3),
        row(65_000, 1024, 1, 2),
        row(65_000, 512, 9),
    )


def test_a_profile_by_hand(trace: Path) -> None:
    """Nine ids, four different; the second prompt is hit whole, its last id stands for 76 tokens.

    Hit: 3 units after 5 s, then 2 units after 60 s; tokens 1100 + 1024 of 3736; shares 0, 1, 1, 0.
    """
    found = profile(Mooncake(trace))
    sharing = found.sharing
    assert sharing is not None
    assert (sharing.units, sharing.unique, sharing.roots, sharing.hit_units) == (9, 4, 2, 5)
    assert (sharing.hit_tokens, sharing.token_hit_rate) == (2124, 2124 / 3736)
    assert (sharing.unit_hit_rate, sharing.request_hit_rate) == (5 / 9, 0.5)
    assert (sharing.requests_hit, sharing.requests_fully_cached) == (2, 2)
    assert {k: n for k, n in sharing.reuse_s.items() if n} == {"<10": 3, "<600": 2}
    assert {k: n for k, n in sharing.depth.items() if n} == {"<1": 2, "<4096": 2}
    assert (found.requests, found.span_s, found.most_at_once) == (4, 65.0, 2)
    assert found.requests_per_s == pytest.approx(4 / 65)


def test_long_and_short_prompts_are_counted_alike(write: Write) -> None:
    """Above a few hits NumPy counts; the numbers are those of one by one."""
    rows = [row(1000 * t, 512 * n, *range(n)) for t, n in enumerate((3, 4, 5, 6, 20, 4, 20, 30))]
    sharing = profile(Mooncake(write(*rows))).sharing
    assert sharing is not None
    assert sharing.hit_units == 3 + 4 + 5 + 6 + 4 + 20 + 20
    # One second later: 3, 4, 5, 6, 4, 4 (of 20) and 20; the other 16 after two.
    assert {k: n for k, n in sharing.reuse_s.items() if n} == {"<10": sharing.hit_units}


def test_one_request_has_no_rate(write: Write) -> None:
    found = profile(Mooncake(write(row(0, 512, 1))))
    assert (found.requests_per_s, found.gap_cv, found.span_s) == (None, None, 0.0)
    json.dumps(found.as_dict(), allow_nan=False)


def test_units_of_hashed_and_generated_prompts() -> None:
    """Tokens count by full blocks; a generated prompt by its segments that end in the prompt."""
    request = Request(0, TokenKeys(range(11), 4), 9, 2)
    assert list(units(request).ends) == [4, 8]
    (first, *_) = SharedPrefix(num_requests=1, block_size=16)
    found = units(first)
    assert len(found.names) == 2
    assert found.ends[-1] == first.num_prompt_tokens


def test_branches_are_what_prompts_share(trace: Path) -> None:
    """Three prompts share 1024 tokens, two of them 76 more."""
    workload = Mooncake(trace)
    assert branches(workload) == [Branch(0, 3, 0, 1024), Branch(0, 2, 1024, 1100)]
    assert branches(workload, least=3) == [Branch(0, 3, 0, 1024)]
    seen = Seen()
    for request in workload:
        seen.add(request)
    assert seen.uses.tolist() == [3, 3, 2, 1]


def test_info_prints_text_or_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "info", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "ideal hits      55.56% of units, 56.85% of tokens" in text
    assert "reused after s  <10: 3, <600: 2 (units)" in text
    assert (
        main(["trace", "info", str(trace), "--json", "--format", "{use: mooncake, limit: 2}"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["reader"], found["requests"], found["sharing"]["hit_units"]) == ("Mooncake", 2, 3)


def test_info_of_lengths_claims_no_hits(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Without content no command says anything about hits."""
    header = "Timestamp,Model,Request tokens,Response tokens"
    path = write(header, "0,m,64,4", "1,m,64,4", name="b.csv")
    assert main(["trace", "info", str(path)]) == 0
    assert "sharing         not known" in capsys.readouterr().out
    assert main(["trace", "info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sharing"] is None
    assert main(["replay", str(path), "--num-blocks", "99"]) == 0
    assert "not known: the trace has lengths only" in capsys.readouterr().out
    assert main(["replay", str(path), "--num-blocks", "99", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hit_tokens"] is None
    assert main(["mrc", str(path)]) == 2
    assert "has lengths only" in capsys.readouterr().err


def test_convert_writes_the_same_requests(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = trace.with_name("out.jsonl.xz")
    assert main(["trace", "convert", str(trace), str(out)]) == 0
    assert "4 requests in" in capsys.readouterr().out
    assert profile(Own(out)) == profile(Mooncake(trace))


def test_plots_are_written(trace: Path, tmp_path: Path) -> None:
    """All six pictures, also of a workload in which nothing repeats; none is empty."""
    lonely = SharedPrefix(num_requests=1)
    for i, workload in enumerate((Mooncake(trace), lonely)):
        paths = save(workload, tmp_path / str(i))
        assert [path.stem for path in paths] == list(PLOTS)
        assert all(path.stat().st_size > 5000 for path in paths)
