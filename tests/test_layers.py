"""Which package may import which, and what an import may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "sim": {"sim"},
    "policies": {"policies", "sim"},
    "workloads": {"workloads", "sim"},
    "gpu_backend": {"gpu_backend", "sim", "torch"},
}


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_import_direction(package):
    """`sim` imports none of its siblings; only gpu_backend imports torch at the top."""
    ours = {*ALLOWED, "torch"}
    for path in (ROOT / package).rglob("*.py"):
        assert imported(path) & ours <= ALLOWED[package], path


ROOMS = ("hardware", "state", "analysis", "plots", "studies", "reports", "commands")
FRONTS = {"__init__.py", "cli.py", "testing.py"}  # they open the rooms to users


def rooms_at_the_top(path: Path) -> set[str]:
    """The rooms of `sim` that a file needs to be imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {module.split(".")[1] for module in modules if module.startswith("sim.")} & {*ROOMS}


def test_the_rooms_of_sim_are_in_order():
    """A room needs those before it, the machine (the files of `sim` itself) and the spec none."""
    for path in sorted((ROOT / "sim").rglob("*.py")):
        room = path.relative_to(ROOT / "sim").parts[0]
        if room not in FRONTS:
            before = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ()
            assert rooms_at_the_top(path) <= {*before}, path


def test_the_design_names_every_room():
    """docs/design.md says of every folder of `sim` what it is for."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "sim").glob("*/__init__.py")}
    assert {room for room in rooms if f"| `sim/{room}/` |" in text} == rooms


def test_importing_sim_is_light():
    """`import sim` loads neither torch nor matplotlib nor pandas."""
    code = "import sys, sim; print(sorted({'torch','matplotlib','pandas'} & set(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert output.stdout.strip() == "[]"
