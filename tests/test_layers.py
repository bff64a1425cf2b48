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


def test_importing_sim_is_light():
    """`import sim` loads neither torch nor matplotlib nor pandas."""
    code = "import sys, sim; print(sorted({'torch','matplotlib','pandas'} & set(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert output.stdout.strip() == "[]"
