"""Where trace files are: as named, in the folder that KVSIM_DATA names, or in the catalog."""

from __future__ import annotations

import os
from pathlib import Path

from sim.errors import ConfigError, TraceError
from workloads.datasets import DATA_VARIABLE, PREFIX, found


def find(path: str | os.PathLike[str]) -> Path:
    """The file that *path* names: as given, else, if relative, under $KVSIM_DATA.

    `dataset:NAME` is a trace of the catalog, wherever it is.

    TraceError if it is in neither place; the message names both.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"path is {path!r}; it must be the name of a trace file")
    if str(path).startswith(PREFIX):
        return found(str(path).removeprefix(PREFIX))
    given = Path(path).expanduser()
    folder = os.environ.get(DATA_VARIABLE)
    places = [given]
    if folder and not given.is_absolute():
        places.append(Path(folder).expanduser() / given)
    for place in places:
        if place.exists():
            return place
    tried = " and ".join(str(place) for place in places)
    unset = "" if folder else f" ({DATA_VARIABLE} is not set)"
    raise TraceError(
        f"{given}: no such file; looked for {tried}{unset}; "
        f"correct the path or set {DATA_VARIABLE} to the folder that holds the traces"
    )
