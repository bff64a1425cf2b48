"""Reports: the answer comes first and is true; the page stands alone; equal bytes every time."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from policies.fifo import FIFO
from policies.vllm import VLLMBlockManager
from sim.cli import main
from sim.errors import KvsimError
from sim.replay import replay
from sim.reports.findings import Findings
from sim.reports.html import html
from sim.reports.markdown import markdown
from sim.reports.report import Report
from sim.results import Results
from sim.studies.experiment import Experiment
from sim.studies.study import run

CONFIG: dict[str, Any] = {
    "name": "sizes",
    "question": "Is <FIFO> as good as LRU?",
    "mode": "replay",
    "cache": {"block_size": 4},
    "workload": {
        "use": "shared_prefix",
        "num_requests": 400,
        "num_prefixes": 20,
        "prefix_tokens": 40,
        "suffix_tokens": 8,
        "output_tokens": 4,
    },
    "policies": {
        "lru": "vllm",
        "fifo": {"use": "vllm", "eviction": "fifo"},
        "MIN policy": {"use": "vllm", "eviction": "belady"},
    },
    "sweep": {"cache.num_blocks": [60, 120, 240]},
    "report": {"plots": ["gain"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "r"
    run(CONFIG, out=out)
    return out


class Page(HTMLParser):
    """Which tags are open, what is loaded from elsewhere, and the text."""

    VOID = ("meta", "hr", "br", "img", "path", "use", "rect", "image", "circle")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name in ("src", "href", "xlink:href", "srcset"):
            value = given.get(name) or ""
            if value and not value.startswith(("#", "data:")):
                self.loaded.append(value)
        if tag in ("script", "link", "iframe"):
            self.loaded.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_answer_is_what_the_tables_say(folder: Path) -> None:
    """Winner, hit rate and difference are those of the summary where the policies differ most."""
    results = Results.load(folder)
    found = Findings.of(results, "lru", offline=frozenset({"MIN policy"}))
    table = results.summary[results.summary["policy"] != "MIN policy"]
    spread = table.groupby("cache.num_blocks")["hit_rate"].agg(lambda x: x.max() - x.min())
    size = spread.idxmax()
    at = table[table["cache.num_blocks"] == size]
    best = at.loc[at["hit_rate"].idxmax()]
    assert found.winner == best["policy"]
    assert found.place() == f"at {size:,} blocks"
    first = found.sentences()[0]
    assert first.startswith(f"At {size:,} blocks, ")
    assert f"{best['hit_rate']:.1%}" in first
    assert any(f"MIN hits {best['min_hit_rate']:.1%}" in text for text in found.sentences())


def test_a_difference_that_could_be_chance_is_called_so(make_run: Any) -> None:
    """One request in favour of another policy is no win."""
    rows = [{"num_prompt_tokens": 10, "num_cached_tokens": c} for c in (0, 4, 4, 0, 8)]
    more = [*rows[:-1], {"num_prompt_tokens": 10, "num_cached_tokens": 9}]
    one = make_run("lru", *rows, prefix_cache_queries=50, prefix_cache_hits=16)
    other = make_run("new", *more, prefix_cache_queries=50, prefix_cache_hits=17)
    (answer, *_) = Findings.of(Results.concat([one, other]), "lru").sentences()
    assert answer.startswith("**new** hits most: **34.0%**")
    assert answer.endswith("That could be chance.")


def test_a_single_run_and_an_empty_one_have_answers(make_run: Any) -> None:
    """Case L3: nothing to compare, or nothing at all, is said in words."""
    one = make_run("lru", {"num_prompt_tokens": 10, "num_cached_tokens": 4})
    one.summary["hit_rate"] = 0.4
    assert Findings.of(one).sentences() == ["**lru** hits **40.0%** of the prompt tokens."]
    empty = Findings.of(make_run("lru")).sentences()
    assert empty == ["No prompt token was looked up in a cache."]


def test_the_memory_for_a_target(folder: Path) -> None:
    """Between the last size that misses it and the first that reaches it, per policy."""
    results = Results.load(folder)
    rates = results.select("lru").summary["hit_rate"]
    found = Findings.of(results, "lru", target=float(rates[1]))
    assert "lru needs 60 to 120 blocks" in "\n".join(found.sentences())
    found = Findings.of(results, "lru", target=0.999)
    assert "lru needs more than the largest pool tried (240 blocks)" in "\n".join(found.sentences())


def test_the_page_stands_alone(folder: Path) -> None:
    """Well-formed, nothing loaded, no script; light, dark and print; labels are text."""
    text = html([Report.of(folder)])
    page = Page(text)
    assert page.open == []
    assert page.loaded == []
    assert "Is <FIFO> as good as LRU?" in page.texts
    for feature in ("prefers-color-scheme: dark", "@media print", "width=device-width"):
        assert feature in text
    assert text.count("<svg") >= 4
    assert "#22272b" not in text, "ink follows the page"


def test_orphans_have_a_column_where_there_are_any(folder: Path, tmp_path: Path) -> None:
    """Memory that holds what cannot be hit, at the end; a warm-up does not change it."""
    results = Results.load(folder)
    shares = results.summary.set_index(["policy", "cache.num_blocks"])["orphan_share"]
    for num_blocks in (60, 120, 240):
        manager = VLLMBlockManager(num_blocks, 4, eviction=FIFO())
        found = replay(manager, Experiment.load(one_point()).workload_of(4))
        assert shares["fifo", num_blocks] == found.orphaned_blocks / manager.num_blocks
        assert shares["lru", num_blocks] == 0
    assert shares.max() > 0
    assert list(results.after_warmup(100).summary["orphan_share"]) == list(
        results.summary["orphan_share"]
    )
    num_blocks = int(shares["fifo"].idxmax())
    run(one_point(num_blocks), out=tmp_path / "all")
    short = Report.of(tmp_path / "all").tables[0]
    assert short.rows.set_index("policy").loc["fifo", "orphans"] == f"{shares.max():.2%}"
    assert "cannot be hit" in short.note
    run({**one_point(num_blocks), "policies": {"lru": "vllm"}}, out=tmp_path / "lru")
    short = Report.of(tmp_path / "lru").tables[0]
    assert "orphans" not in short.rows
    assert not short.note


def one_point(num_blocks: int = 120) -> dict[str, Any]:
    return {k: v for k, v in CONFIG.items() if k != "sweep"} | {
        "cache": {"num_blocks": num_blocks, "block_size": 4}
    }


def test_every_figure_has_its_sentence(folder: Path) -> None:
    """What to read off a picture is below it, and is its description for those who cannot see."""
    report = Report.of(folder)
    names = [figure.name for figure in report.figures]
    assert names == ["hit_rate_by_size", "gain", "misses", "hit_rate"]
    text = html([report])
    for figure in report.figures:
        assert re.search(r"[.]$", figure.caption)
        assert text.count(figure.caption) == 2


def test_an_engine_run_has_latencies(tmp_path: Path) -> None:
    """With a clock there are curves of TTFT and TPOT, and memory over time."""
    source = {**CONFIG, "mode": "engine", "bounds": True, "report": {"plots": False}}
    run(source, out=tmp_path / "r")
    report = Report.of(tmp_path / "r")
    names = {figure.name for figure in report.figures}
    assert {"latency_by_size", "memory", "ttft", "tpot"} <= names
    assert any("Time to first token" in answer for answer in report.answers) or (
        report.answers[0].startswith("At") and "no policy hits more" in report.answers[0]
    )
    assert any("a yardstick, not a proof" in note for note in report.notes)


def test_markdown_says_the_same(folder: Path) -> None:
    """Answers, tables, the pictures that exist, configuration and versions."""
    report = Report.of(folder)
    text = markdown([report])
    for answer in report.answers:
        assert answer in text
    assert "![gain](plots/gain.png)" in text
    assert "plots/misses.png" not in text
    assert "| policy | 60 | 120 | 240 |" in text
    assert "cache.num_blocks" in text.rpartition("```yaml")[2]


def test_equal_results_give_equal_reports(folder: Path, tmp_path: Path) -> None:
    """No times, no random names: a report can be compared and committed."""
    one = html([Report.of(folder)])
    assert html([Report.of(folder)]) == one


def test_the_command_writes_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """report.html and report.md stand in the folder, the answers on stdout."""
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("sizes:\n  At ")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert (folder / "report.md").read_text().startswith("# sizes\n")
    run(CONFIG, out=folder)  # a run removes the report of what it replaces
    assert not (folder / "report.html").exists()


def test_several_folders_are_chapters(folder: Path, tmp_path: Path) -> None:
    """One page for all, in their order, where --out says."""
    run({**CONFIG, "name": "second", "seed": 1}, out=tmp_path / "r2")
    assert main(["report", str(folder), str(tmp_path / "r2"), "--out", str(tmp_path / "o")]) == 0
    page = Page((tmp_path / "o" / "report.html").read_text())
    assert page.open == []
    titles = re.findall(r"<h1>(.*?)</h1>", (tmp_path / "o" / "report.html").read_text())
    assert titles == ["sizes", "second"]


def test_a_folder_without_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what is missing; exit code 2."""
    with pytest.raises(KvsimError, match=r"requests\.parquet: no such file"):
        Report.of(tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("kvsim: error: ")
