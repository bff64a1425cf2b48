"""What produced a result: versions, revision and input files. No times: equal runs, equal bytes."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sim.workload import Workload

PACKAGES = ("kvsim", "numpy", "pandas", "pyarrow", "simpy")


def provenance(workload: Workload) -> dict[str, Any]:
    """Versions, git revision, and the workload: its notes, its file and the file's SHA-256."""
    return {
        "python": platform.python_version(),
        **{name: installed(name) for name in PACKAGES},
        "git": git_revision(),
        "workload": {
            "num_requests": len(workload),
            "notes": list(workload.notes),
            "files": InputFiles().of(workload),
        },
    }


def installed(package: str) -> str | None:
    """The installed version of *package*; None if it is not installed (a source checkout)."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """The commit of this source, with "+changes" if files differ; None outside a checkout."""
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # an installed copy that happens to lie inside somebody's repository
    revision, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", "..")
    return f"{revision}+changes" if revision and changes else revision


def git(*arguments: str) -> str | None:
    """What git prints, run in the folder of `sim`; None if it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parents[1]), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


class InputFiles:
    """The SHA-256 of what workloads were read from, each file hashed once."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def of(self, workload: Workload) -> dict[str, str]:
        """File name -> SHA-256 of every file that *workload* was read from."""
        paths = [path.resolve() for path in workload.inputs if path.is_file()]
        return {path.name: self._sha256(path) for path in paths}

    def _sha256(self, path: Path) -> str:
        if path not in self._known:
            with path.open("rb") as file:
                self._known[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._known[path]
