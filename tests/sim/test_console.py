"""The console: a table for people, plain lines for pipes, silence where nobody looks."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.text import Text

from sim.commands.console import print_summary, progress, summary_table
from sim.results import Results

MakeRun = Callable[..., Results]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def words(out: Terminal) -> list[str]:
    """The words of *out* without its colours."""
    return Text.from_ansi(out.getvalue()).plain.split()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Terminal]:
    """`terminal(80)`: a colour terminal with that many columns."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def make(columns: int) -> Terminal:
        monkeypatch.setenv("COLUMNS", str(columns))
        return Terminal()

    return make


def test_piped_summary_is_plain_and_whole(busy_run: MakeRun) -> None:
    """A header and a line per run, however long: no colours, no wrapping, nothing cut."""
    labels = ["lru", "a-policy-with-a-name-much-longer-than-anybody-would-like-to-read"]
    both = Results.concat([busy_run(name) for name in labels])
    out = io.StringIO()
    print_summary(both, out)
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["policy", *labels]
    assert len({len(line) for line in lines}) == 1
    assert "\x1b" not in out.getvalue()
    assert "…" not in out.getvalue()


def test_piped_output_stays_plain_when_colour_is_forced(
    busy_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CI systems set FORCE_COLOR; a file is still a file, and stdout the default."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_summary(busy_run("lru"))
    assert "\x1b" not in capsys.readouterr().out


def test_the_numbers(make_run: MakeRun) -> None:
    """Rates in percent, TTFT in seconds, TPOT in milliseconds, counts with separators."""
    request = {"first_token_time": 0.25, "finish_time": 0.28}
    run = make_run(
        "lru",
        request,
        {"status": "refused"} | dict.fromkeys(("first_token_time", "finish_time"), float("nan")),
        prefix_cache_queries=3,
        prefix_cache_hits=1,
        num_preemptions=12345,
        peak_used_blocks=6,
    )
    out = io.StringIO()
    print_summary(run, out)
    numbers = out.getvalue().splitlines()[1].split()
    expected = "lru 33.3% 0.250 0.250 10.00 10.00 12,345 1 1 75%"
    assert numbers == expected.split()


def test_what_did_not_happen_is_a_dash(make_run: MakeRun) -> None:
    """Case L3: an empty run has a full line with dashes, never `nan` or 0 for a latency."""
    out = io.StringIO()
    print_summary(make_run("lru"), out)
    dash = "–"  # noqa: RUF001
    assert out.getvalue().splitlines()[1].split() == ["lru", *[dash] * 5, "0", "0", "0", "0%"]


def test_rare_outcomes_have_a_column_only_if_they_occur(make_run: MakeRun) -> None:
    """Unfinished and aborted requests are shown where there are any."""
    for status in ("aborted", "unfinished"):
        out = io.StringIO()
        print_summary(make_run("lru", {"status": status}), out)
        assert status in out.getvalue()
    print_summary(make_run("lru", {}), out := io.StringIO())
    assert "aborted" not in out.getvalue()


@pytest.mark.parametrize("columns", [40, 80, 100, 200])
def test_no_terminal_is_too_narrow(
    busy_run: MakeRun, terminal: Callable[[int], Terminal], columns: int
) -> None:
    """At any width every number is there in full, and a table never exceeds the width."""
    run = busy_run("vllm")
    print_summary(run, out := terminal(columns))
    print_summary(run, plain := io.StringIO())
    assert set(plain.getvalue().splitlines()[1].split()) <= set(words(out))
    assert "…" not in out.getvalue()
    if columns >= 80:
        assert "─" in out.getvalue()
        console = Console(width=columns, file=io.StringIO())
        assert console.measure(summary_table(run, 0)).maximum <= columns


def test_labels_are_not_markup(make_run: MakeRun, terminal: Callable[[int], Terminal]) -> None:
    """Square brackets in a label are shown as they are."""
    print_summary(make_run("[bold]x[/bold]"), out := terminal(200))
    assert "[bold]x[/bold]" in words(out)


def test_progress_is_silent_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """A log file gets nothing from a progress bar."""
    with progress("replay", 10) as advance:
        for _ in range(10):
            advance(1)
    assert capfd.readouterr() == ("", "")


def test_progress_shows_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: Callable[[int], Terminal]
) -> None:
    """The bar names the work and counts it, on stderr, and is gone at the end."""
    monkeypatch.setattr(sys, "stderr", out := terminal(80))
    with progress("replay [lru]", 10) as advance:
        advance(4)
        advance(6)
    assert "replay [lru]" in out.getvalue()
    assert "10/10" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")


def test_progress_of_unknown_length(
    monkeypatch: pytest.MonkeyPatch, terminal: Callable[[int], Terminal]
) -> None:
    """Without a total the bar only counts."""
    monkeypatch.setattr(sys, "stderr", out := terminal(80))
    with progress("reading") as advance:
        advance(3)
    assert "3/?" in out.getvalue()


def test_a_long_sweep_is_cut(make_run: MakeRun) -> None:
    """A hundred rows are printed, and how many more the file has."""
    parts = [make_run("lru", {}).relabelled("lru", {"seed": i}) for i in range(123)]
    file = io.StringIO()
    print_summary(Results.concat(parts), file)
    lines = file.getvalue().splitlines()
    assert len(lines) == 1 + 100 + 1
    assert lines[-1] == "and 23 more in summary.csv"
    assert lines[-2].split()[:2] == ["lru", "99"]
