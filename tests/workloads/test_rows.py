from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.errors import TraceError
from workloads.rows import items


def read(path: Path, text: str) -> list[tuple[int, object]]:
    path.write_text(text)
    return [(line, json.loads(item)) for line, item in items(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.json"


def test_lines_and_arrays_give_the_same_rows(path: Path) -> None:
    """One a line, one array on a line, or an array over many lines with long strings."""
    rows = [{"a": 1}, {"b": ["]", "[", '\\"']}, {"c": {"d": "x" * 70_000}}, {"e": 5}]
    assert [r for _, r in read(path, "\n".join(map(json.dumps, rows)))] == rows
    for indent in (None, 1):
        assert [r for _, r in read(path, json.dumps(rows, indent=indent))] == rows


def test_items_are_numbered_by_the_line_they_begin_in(path: Path) -> None:
    assert read(path, '[\n{"a":\n1},\n\n{"a": 2}, {"a": 3}\n]\n') == [
        (2, {"a": 1}),
        (5, {"a": 2}),
        (5, {"a": 3}),
    ]


@pytest.mark.parametrize("text", ['[{"a": 1}', '[{"a": 1},\n{"a"]', "[{}] {}", '[{"a": 1},\n{'])
def test_an_array_that_is_not_complete_is_refused(path: Path, text: str) -> None:
    with pytest.raises(TraceError, match=r":\d: .*one complete array"):
        read(path, text)


def test_an_empty_array_has_no_rows(path: Path) -> None:
    assert read(path, "[]") == []
