"""notebooks/*.ipynb are thin and run from top to bottom, here with few requests."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALLER = {  # as they are written, and as they are run here
    'run("../configs/quickstart.yaml")': 'run("../configs/quickstart.yaml", '
    'overrides=["workload.num_requests=200"])',
    'run("../configs/questions/policies_by_memory.yaml")': "run("
    '"../configs/questions/policies_by_memory.yaml", overrides=["workload.limit=300"])',
    'conversation_trace.jsonl.xz")': 'conversation_trace.jsonl.xz", limit=300)',
    '"num_requests": 5000': '"num_requests": 200',
    '"num_requests": 3000': '"num_requests": 100',
    "num_requests=10_000": "num_requests=400",
    "seconds=3": "seconds=0.5",
    "num_requests=150": "num_requests=40",
    "trace.head(3000)": "trace.head(500)",
    "target = 0.6": "target = 0.2",
}


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text("utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_there_are_the_promised_ones() -> None:
    """One per question that a newcomer has."""
    names = [path.stem.split("_", 1)[1] for path in NOTEBOOKS]
    assert names == [
        "quickstart",
        "worked_example",
        "write_a_policy",
        "compare_on_a_trace",
        "capacity_planning",
        "gpu_check",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_thin_and_have_outputs(path: Path) -> None:
    """At most 20 cells, none longer than a policy, committed as they ran, without errors."""
    code = cells(path, "code")
    assert len(code) + len(cells(path, "markdown")) <= 20
    outputs = [output for cell in code for output in cell["outputs"]]
    if path.stem != "06_gpu_check":
        assert any("image/png" in output.get("data", {}) for output in outputs)
    assert outputs
    assert all(output["output_type"] != "error" for output in outputs)
    for cell in code:
        assert len(cell["source"]) <= 25
    numbers = [cell["execution_count"] for cell in code]
    assert numbers == list(range(1, len(code) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cell, in order, in one namespace; what the last line shows can be shown."""
    text = path.read_text("utf-8")
    if "KVSIM_DATA" in text:
        monkeypatch.setenv("KVSIM_DATA", str(request.getfixturevalue("kvsim_data")))
    monkeypatch.chdir(path.parent)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path, "code"), start=1):
        code = source(cell)
        for long, short in SMALLER.items():
            code = code.replace(long, short)
        shown = evaluated(code, f"{path.name}[{number}]", names)
        if hasattr(shown, "_repr_png_"):
            assert shown._repr_png_().startswith(b"\x89PNG")
        elif hasattr(shown, "_repr_html_"):
            assert "<table" in shown._repr_html_()


def evaluated(code: str, name: str, names: dict[str, Any]) -> Any:
    """Run *code* as a notebook does; the value of its last line, if that is an expression."""
    tree = ast.parse(code, name)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), name, "exec"), names)
    return eval(compile(ast.Expression(last.value), name, "eval"), names)
