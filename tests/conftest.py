"""Data that tests share: the recordings of real vLLM and the folder of public traces."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come last, so that what is broken shows early."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings, unpacked: `goldens / "v0.33.0" / "h01_design_doc_example.json"`."""
    folder = tmp_path_factory.mktemp("goldens")  # one per xdist worker
    with tarfile.open(TESTS / "goldens" / "goldens.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):  # Python >= 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def kvsim_data() -> Path:
    """The folder of public traces; tests that need it are skipped where it is missing."""
    folder = Path(os.environ.get("KVSIM_DATA") or TESTS.parent.parent / "shared" / "traces")
    if not folder.is_dir():
        pytest.skip(f"no traces at {folder}: set KVSIM_DATA to the folder that holds mooncake/ ...")
    return folder
