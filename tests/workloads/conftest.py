"""Small trace files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows, or lines of text, into a new file."""

    def write(*rows: Any, name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{r if type(r) is str else json.dumps(r)}\n" for r in rows))
        return path

    return write
