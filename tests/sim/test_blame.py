"""Errors of somebody else's class are one line everywhere; those of kvsim keep their traceback."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import yaml

from sim.blame import blame
from sim.cli import main

MINE = '''
"""Classes with errors, for kvsim's tests."""
import sys
from policies.lru import LRU

class Boom(LRU):
    def victim(self, num_blocks):
        raise RuntimeError("two\\nlines")

class Exits(LRU):
    def victim(self, num_blocks):
        sys.exit(3)

class Unmade(LRU):
    def __init__(self):
        raise RuntimeError("boom")

class UnmadeExits(LRU):
    def __init__(self):
        sys.exit(3)
'''
CONFIG = {
    "mode": "replay",
    "cache": {"num_blocks": 16, "block_size": 4},
    "workload": {
        "use": "shared_prefix",
        "num_requests": 9,
        "prefix_tokens": 8,
        "suffix_tokens": 8,
        "output_tokens": 2,
    },
    "policies": {"lru": "vllm"},
    "report": {"plots": False},
    "bounds": False,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules, a trace and a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("kvsim_blamed.py").write_text(textwrap.dedent(MINE))
    Path("kvsim_exits.py").write_text("import sys; sys.exit(4)")
    Path("c.yaml").write_text(yaml.safe_dump(CONFIG))
    row = '{{"timestamp": {0}, "input_length": 1024, "output_length": 3, "hash_ids": [{0}, {1}]}}\n'
    Path("t.jsonl").write_text("".join(row.format(i, i + 100) for i in range(9)))
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code, and stderr, which is one line."""
    code = main(arguments)
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return code, text.removeprefix("kvsim: error: ").rstrip()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["replay", "explain"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Boom", "kvsim_blamed:Boom raised RuntimeError: two lines (kvsim_blamed.py:8)"),
        ("Exits", "kvsim_blamed:Exits raised SystemExit: 3 (kvsim_blamed.py:12)"),
    ],
)
def test_a_command_says_whose_class_raised_what(
    capsys: pytest.CaptureFixture[str], command: str, name: str, said: str
) -> None:
    """The class, the error and the line; exit code 1."""
    options = ["t.jsonl", "--num-blocks", "4", "--policy", f"kvsim_blamed:{name}"]
    assert told(capsys, command, *options) == (1, said)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["run", "validate"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unmade", "kvsim_blamed:Unmade raised RuntimeError: boom (kvsim_blamed.py:16)"),
        ("UnmadeExits", "kvsim_blamed:UnmadeExits raised SystemExit: 3 (kvsim_blamed.py:20)"),
    ],
)
def test_what_a_constructor_raises_is_told_with_its_place(
    capsys: pytest.CaptureFixture[str], command: str, name: str, said: str
) -> None:
    """Before any run; exit code 2."""
    spec = f"policies.mine={{use: vllm, eviction: 'kvsim_blamed:{name}'}}"
    code, line = told(capsys, command, "c.yaml", "--set", spec)
    assert (code, line) == (2, f"--set policies.mine.eviction: {said}")


@pytest.mark.usefixtures("folder")
def test_a_module_that_exits_cannot_be_imported(capsys: pytest.CaptureFixture[str]) -> None:
    """`sys.exit` at import ends nothing silently."""
    code, line = told(capsys, "validate", "c.yaml", "--set", "policies.mine=kvsim_exits:X")
    assert (code, line) == (2, "--set policies.mine: cannot import kvsim_exits (SystemExit: 4)")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_class_that_exits_fails_its_own_run_only(
    capsys: pytest.CaptureFixture[str], executor: str
) -> None:
    """The tables hold the other policies; what failed is told in one line, and kept in full."""
    spec = "policies.mine={use: vllm, eviction: 'kvsim_blamed:Exits'}"
    assert main(["run", "c.yaml", "--set", spec, "--out", "r", "--executor", executor]) == 1
    captured = capsys.readouterr()
    assert "\nlru " in captured.out
    said = "mine: kvsim_blamed:Exits raised SystemExit: 3 (kvsim_blamed.py:12) (r/runs/"
    assert said in captured.err
    (text,) = Path("r", "runs").glob("*.failed.txt")
    assert "Traceback" in text.read_text()


@pytest.mark.usefixtures("folder")
def test_errors_of_kvsim_are_not_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are bugs: the traceback is what is needed."""
    monkeypatch.setattr("sim.commands.replay.manager_of", lambda *_: None)
    with pytest.raises(AttributeError) as error:
        main(["replay", "t.jsonl", "--num-blocks", "4"])
    assert blame(error.value) is None


@pytest.mark.parametrize(("module", "is_ours"), [("sim.made_up", True), ("made_up", False)])
def test_libraries_are_not_blamed_but_who_called_them(module: str, is_ours: bool) -> None:
    """Frames of compiled modules too, which name files that are not there."""
    with pytest.raises(ValueError, match="nonsense") as error:
        exec("import pandas; pandas.Timestamp('nonsense')", {"__name__": module})
    error.value.__traceback__ = error.value.__traceback__.tb_next  # type: ignore[union-attr]
    found = blame(error.value)
    assert found is None if is_ours else found and found.startswith("made_up:<module> raised DateP")
