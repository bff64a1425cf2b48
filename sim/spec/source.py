"""Where a configuration comes from: a file or a mapping, with what was left out filled in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sim.spec.config import Config, apply_overrides, load
from sim.spec.search import find_modules_in

Source = str | os.PathLike[str] | Mapping[str, Any]


def read(source: Source, overrides: Iterable[str] = ()) -> Config:
    """The configuration in *source* with *overrides* and the defaults of missing sections."""
    config = load(source)
    if not isinstance(source, Mapping):
        find_modules_in(Path(source).parent)
    return apply_overrides(with_defaults(config), overrides)


def with_defaults(config: Config) -> Config:
    """*config* with the sections that may be left out."""
    given = {"latency": "linear", "policies": {"lru": "vllm"}}
    return Config({**given, **config.data}, config.origins)


def default_name(source: Source) -> str:
    """What an experiment is called that does not say it."""
    return "experiment" if isinstance(source, Mapping) else Path(source).stem
