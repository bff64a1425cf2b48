"""Where configurations find the classes that they name by `module:Class`."""

from __future__ import annotations

import sys
from pathlib import Path


def find_modules_in(*folders: Path) -> None:
    """Let configurations name classes in *folders*; appended, so that none can hide ours."""
    for folder in folders:
        if str(folder.resolve()) not in sys.path:
            sys.path.append(str(folder.resolve()))
