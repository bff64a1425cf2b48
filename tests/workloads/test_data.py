from __future__ import annotations

from pathlib import Path

import pytest

from sim.errors import ConfigError, TraceError
from workloads.data import find


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and KVSIM_DATA naming another one beside it."""
    here, data = tmp_path / "here", tmp_path / "data"
    here.mkdir()
    data.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("KVSIM_DATA", str(data))
    return data


def test_a_relative_path_is_looked_up_as_given_first(data: Path) -> None:
    """A file in the working folder hides one of the same name under KVSIM_DATA."""
    (data / "a.jsonl").touch()
    assert find("a.jsonl") == data / "a.jsonl"
    Path("a.jsonl").touch()
    assert find("a.jsonl") == Path("a.jsonl")


def test_an_absolute_path_is_taken_as_it_is(data: Path) -> None:
    (data / "a.jsonl").touch()
    assert find(data / "a.jsonl") == data / "a.jsonl"
    with pytest.raises(TraceError, match=r"looked for [^ ]*b\.jsonl;"):
        find(data / "b.jsonl")


def test_a_missing_file_names_every_place_and_the_variable(data: Path) -> None:
    with pytest.raises(TraceError) as refusal:
        find("sub/a.jsonl")
    message = str(refusal.value)
    assert f"looked for sub/a.jsonl and {data / 'sub/a.jsonl'}" in message
    assert "KVSIM_DATA" in message
    assert "\n" not in message


def test_without_the_variable_the_message_says_so(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSIM_DATA")
    with pytest.raises(TraceError, match="KVSIM_DATA is not set"):
        find("a.jsonl")


def test_a_path_is_text() -> None:
    with pytest.raises(ConfigError, match="path is 5"):
        find(5)  # type: ignore[arg-type]
