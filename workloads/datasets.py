"""Finding, fetching and verifying the traces of the catalog.

Fetching needs the extra `datasets` (pooch). A download appears under its name only when it is
complete and has the right content. The cache folder is $KVSIM_CACHE, else pooch's own.
"""

from __future__ import annotations

import hashlib
import logging
import os
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from sim.errors import ConfigError, TraceError
from sim.spec.place import did_you_mean
from workloads.catalog import DATASETS, Dataset, File
from workloads.compressed import SUFFIXES, opened

PREFIX = "dataset:"
DATA_VARIABLE, CACHE_VARIABLE = "KVSIM_DATA", "KVSIM_CACHE"
PIECE = 2**22  # bytes


def dataset(name: str) -> Dataset:
    """The entry of the catalog called *name*; ConfigError, with what is known, if none is."""
    if name not in DATASETS:
        hint = did_you_mean(name, DATASETS)
        raise ConfigError(f"no dataset is called {name!r}{hint} (known: {', '.join(DATASETS)})")
    return DATASETS[name]


def found(name: str) -> Path:
    """The first file of a dataset, all of them verified; fetched first where they are nowhere."""
    entry = dataset(name)
    paths = [_present(file, name) for file in entry.files]
    if None in paths:
        paths = [_fetched(file, name, entry) for file in entry.files]
    for path, file in zip(paths, entry.files, strict=True):
        assert path is not None
        _verify(path, file)
    assert paths[0] is not None
    return paths[0]


def is_present(name: str) -> bool:
    """Whether all files of a dataset are there; they are not read."""
    return all(_present(file, name) is not None for file in dataset(name).files)


def _present(file: File, name: str) -> Path | None:
    """Where *file* is: under $KVSIM_DATA, however compressed, or in the cache folder."""
    folder = os.environ.get(DATA_VARIABLE)
    places = (
        [Path(folder).expanduser() / f"{file.path}{s}" for s in ("", *SUFFIXES)] if folder else []
    )
    cache = _cache_folder()
    if cache is not None:
        places.append(cache / name / file.name)
    return next((place for place in places if place.is_file()), None)


def _cache_folder() -> Path | None:
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    try:
        return Path(import_module("pooch").os_cache("kvsim"))
    except ImportError:
        return None


def _fetched(file: File, name: str, entry: Dataset) -> Path:
    """*file* in the cache folder, downloaded if it is not there."""
    where = (
        f"put it at {file.path} (perhaps .gz, .xz or .zst) under the folder {DATA_VARIABLE} names"
    )
    if not file.url:
        raise TraceError(
            f"{PREFIX}{name}: is not there and no single file to fetch; it is made of "
            f"{entry.source}; {where}"
        )
    try:
        pooch: Any = import_module("pooch")
    except ImportError:
        raise TraceError(
            f"{PREFIX}{name}: is not there; install kvsim[datasets] to fetch it from {file.url}, "
            f"or {where}"
        ) from None
    folder = _cache_folder()
    assert folder is not None
    target = folder / name / file.name
    unverified = target.with_name(f"{target.name}.unverified")
    pooch.get_logger().setLevel(logging.ERROR)
    try:
        if not target.is_file():
            pooch.retrieve(file.url, None, fname=unverified.name, path=unverified.parent)
            _verify(unverified, file)
            unverified.replace(target)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors
        reason = " ".join(str(error).split())[:200]
        raise TraceError(
            f"{PREFIX}{name}: cannot be fetched from {file.url} ({reason}); try again, or {where}"
        ) from None
    finally:
        unverified.unlink(missing_ok=True)
    return target


def _verify(path: Path, file: File) -> None:
    """TraceError if the content of *path* is not what the catalog says."""
    state = path.stat()
    suffix = Path(file.name).suffix if path.suffix == ".unverified" else path.suffix
    actual = _sha256(path, suffix, state.st_mtime_ns, state.st_size)
    if actual != file.sha256:
        raise TraceError(
            f"{path}: has the SHA-256 {actual[:12]}... where {file.sha256[:12]}... is expected; "
            "it is damaged or another version; remove it and fetch it again, or name the file "
            "itself instead of the dataset"
        )


@lru_cache(maxsize=64)
def _sha256(path: Path, suffix: str, changed: int, size: int) -> str:
    """Of the uncompressed content; *changed* and *size* tell whether the file is still the same."""
    digest = hashlib.sha256()
    with opened(path, suffix) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()
