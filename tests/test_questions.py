"""configs/questions: each file asks something and answers it, here with few requests."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sim.cli import main
from sim.reports.report import Report
from sim.studies.study import Study

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs" / "questions").glob("*.yaml"))
QUESTIONS = [path for path in FILES if path.stem != "learned"]  # needs torch and a whole trace


@pytest.mark.parametrize("path", QUESTIONS, ids=lambda path: path.stem)
def test_the_question_is_answered(
    path: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`kvsim run` and `kvsim report` on it give a page that begins with question and answer."""
    few = "workload.num_requests=60"
    if "mooncake/" in path.read_text("utf-8"):
        monkeypatch.setenv("KVSIM_DATA", str(request.getfixturevalue("kvsim_data")))
        few = "workload.limit=60"
    study = Study.load(path)
    assert study.name == path.stem.replace("_", "-")
    out = tmp_path / "r"
    sets = ["--set", few, "--set", "report.plots=false", "--set", "report.warmup_requests=0"]
    assert main(["run", str(path), *sets, "--out", str(out), "--jobs", "1"]) == 0
    assert main(["report", str(out)]) == 0
    report = Report.of(out)
    assert report.question.endswith("?")
    assert len(report.answers) >= 2
    assert (out / "report.html").is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_the_policy_differs(path: Path) -> None:
    """No policy but LRU orders blocks without content, so beside others LRU does not either."""
    managers = yaml.safe_load(path.read_text("utf-8"))["policies"].values()
    if len(managers) > 1:
        orders = {m["free_order"] for m in managers if isinstance(m, dict) and "eviction" not in m}
        assert "vllm" not in managers
        assert orders == {"unhashed_first"}


@pytest.mark.slow
def test_the_comparison_on_the_chat_trace(
    kvsim_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight policies at six sizes on the whole trace; LRU's numbers are those of the docs."""
    monkeypatch.setenv("KVSIM_DATA", str(kvsim_data))
    path = ROOT / "configs" / "questions" / "policies_by_memory.yaml"
    out = tmp_path / "r"
    assert main(["run", str(path), "--out", str(out)]) == 0
    report = Report.of(out)
    (table, *_) = report.tables
    assert len(table.rows) == 8 + 2
    lru = table.rows[table.rows["policy"] == "lru"].iloc[0]
    assert lru["10,000"] == "21.9%"
    bound = table.rows[table.rows["policy"] == "no limit"].iloc[0]
    assert set(bound.iloc[1:]) == {"37.3%"}
