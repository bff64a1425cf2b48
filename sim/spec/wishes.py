"""What an experiment is asked for beside its runs: a clock or none, bounds, notes of evictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sim.errors import ConfigError
from sim.spec.build import Plan, Ready
from sim.spec.config import Config
from sim.spec.parameters import checked

Mode = Literal["engine", "replay", "replay_with_answers"]


def bounds_wanted(config: Config, mode: Mode) -> bool:
    """Whether bounds are computed: by default without a clock, never behind a warm start."""
    place, is_warm = config.root / "bounds", config.data.get("warm_start") is not None
    wanted: bool = checked(bool, config.data.get("bounds", mode != "engine" and not is_warm), place)
    if wanted and is_warm:
        raise ConfigError(f"{place}: bounds are of runs that begin empty; leave out warm_start")
    return wanted


def evictions_wanted(config: Config, mode: Mode) -> bool:
    """Whether evictions are watched, which takes a replay of its own from an empty cache."""
    place = config.root / "evictions"
    wanted: bool = checked(bool, config.data.get("evictions", False), place)
    if wanted and mode == "engine":
        raise ConfigError(f"{place}: evictions are watched without a clock; add mode: replay")
    if wanted and config.data.get("warm_start") is not None:
        raise ConfigError(f"{place}: evictions are watched from an empty cache; drop warm_start")
    return wanted


def lru_label(managers: Mapping[str, Plan | Ready]) -> str:
    """The first policy that is plain LRU, to compare the others with; else the first of all."""
    for label, manager in managers.items():
        spec = manager.resolved()
        if isinstance(spec, dict) and spec.get("enable_caching") is not False:
            eviction = spec.get("eviction") or {"use": "lru"}
            if isinstance(eviction, dict) and eviction["use"] == "lru":
                return label
    return next(iter(managers))
