"""The keys of an experiment, section by section; a key that is not known is an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from sim.engine import Engine
from sim.errors import ConfigError
from sim.scheduler_config import SchedulerConfig
from sim.spec.build import Plan, Ready, plan
from sim.spec.config import Config
from sim.spec.names import find, names
from sim.spec.parameters import Parameters, checked
from sim.spec.place import Place, blamed, did_you_mean, show

TOP = (
    "name",
    "question",
    "mode",
    "seed",
    "seeds",
    "cache",
    "engine",
    "latency",
    "workload",
    "warm_start",
    "policies",
    "sweep",
    "bounds",
    "evictions",
    "report",
)
CACHE = ("num_blocks", "block_size", "kv_bytes_per_token")
REPORT_DEFAULTS: dict[str, Any] = {
    "plots": True,
    "out": None,
    "baseline": None,
    "warmup_requests": 0,
    "target_hit_rate": None,
}
REPORT = tuple(REPORT_DEFAULTS)
CACHE_DEFAULTS = {"block_size": 16, "kv_bytes_per_token": 131072}
"""The bytes are Llama-3.1-8B's in bf16: 32 layers, 8 KV heads of 128, keys and values."""
PICTURES = (
    "hit_rate",
    "memory",
    "queue_time",
    "ttft",
    "tpot",
    "e2e",
    "hit_rate_by_size",
    "latency_by_size",
    "gain",
    "misses",
    "eviction_age",
)

SCHEDULER_PARAMETERS = Parameters.of(SchedulerConfig)
ENGINE_PARAMETERS = Parameters.of(Engine, without=("manager", "latency", "scheduler"))
ENGINE = (*SCHEDULER_PARAMETERS.by_name, *ENGINE_PARAMETERS.by_name)


def section(config: Config, name: str) -> dict[str, Any]:
    """The mapping under *name*; empty if it is not there."""
    value = config.data.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{config.root / name} is {show(value)}; it must be a mapping of keys")
    return value


def refuse_unknown(given: Mapping[str, Any], known: Collection[str], place: Place) -> None:
    """ConfigError for the first key of *given* that is not *known*, with the nearest that is."""
    for key in given:
        if key not in known:
            hint = did_you_mean(key, known) or _elsewhere(key)
            raise ConfigError(f"{place / key}: unknown key{hint} (known: {', '.join(known)})")


def _elsewhere(key: str) -> str:
    """Where a key of that name, or of a similar one, would be right."""
    managers = {name for use in names("manager") for name in _manager_keys(use)}
    sections = {"cache": {*CACHE, *managers}, "engine": set(ENGINE), "report": set(REPORT)}
    homes = {key: home for home, keys in sections.items() for key in sorted(keys)}
    near = get_close_matches(key.lower(), [*TOP, *homes], n=1, cutoff=0.8)
    if not near:
        return ""
    home = f"{homes[near[0]]}." if near[0] in homes else ""
    return f"; did you mean '{home}{near[0]}'?"


def _manager_keys(use: str) -> Collection[str]:
    return Parameters.of(find("manager", use, Place())).by_name


def cache_section(config: Config) -> dict[str, Any]:
    """The section `cache` with its defaults; manager arguments in it are checked by managers."""
    place = config.root / "cache"
    cache = {**CACHE_DEFAULTS, **section(config, "cache")}
    for name in ("num_blocks", "block_size"):
        if name in cache:
            cache[name] = at_least(1, int, cache[name], place / name)
    name = "kv_bytes_per_token"
    cache[name] = at_least(0, int | float, cache[name], place / name)
    return {name: cache.pop(name) for name in CACHE if name in cache} | cache


def engine_section(config: Config) -> tuple[dict[str, Any], SchedulerConfig]:
    """The section `engine` with its defaults, and the scheduler's part of it."""
    place, given = config.root / "engine", section(config, "engine")
    refuse_unknown(given, ENGINE, place)
    parts: list[dict[str, Any]] = []
    for parameters in (SCHEDULER_PARAMETERS, ENGINE_PARAMETERS):
        mine = {name: value for name, value in given.items() if name in parameters.by_name}
        settled = {name: parameters.check(name, v, place / name) for name, v in mine.items()}
        parts.append({**parameters.defaults, **settled})
    try:
        scheduler = SchedulerConfig(**parts[0])
    except ConfigError as error:
        raise ConfigError(blamed(str(error), {n: place / n for n in given}, place)) from None
    return {**parts[0], **parts[1]}, scheduler


def report_section(config: Config) -> dict[str, Any]:
    """The section `report` with its defaults; it changes no run, only what is made of them."""
    place, given = config.root / "report", section(config, "report")
    refuse_unknown(given, REPORT, place)
    report = {**REPORT_DEFAULTS, **given}
    report["plots"] = pictures(report["plots"], place / "plots")
    report["out"] = checked(str | None, report["out"], place / "out")
    name = "warmup_requests"
    report[name] = at_least(0, int, report[name], place / name)
    name = "target_hit_rate"
    target = checked(float | None, report[name], place / name)
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"{place / name} is {target}; it must be above 0 and at most 1")
    labels = section(config, "policies")
    if report["baseline"] is not None and report["baseline"] not in labels:
        hint = did_you_mean(report["baseline"], labels)
        raise ConfigError(
            f"{place / 'baseline'} is {show(report['baseline'])}; it must be the label of a "
            f"policy{hint}"
        )
    return report


def manager_plans(
    config: Config, cache: Mapping[str, Any], scheduler: SchedulerConfig, seed: int
) -> dict[str, Plan | Ready]:
    """A plan for every label; every key of `cache` must be of use to at least one of them."""
    place, specs = config.root / "policies", section(config, "policies")
    if not specs:
        raise ConfigError(f"{place}: is empty; write at least one 'label: block manager'")
    known = {name: value for name, value in cache.items() if name != "kv_bytes_per_token"}
    known["seed"] = manager_seed(seed)
    if scheduler.max_model_len is not None:
        known["max_model_len"] = scheduler.max_model_len
    home = config.root / "cache"
    plans = {
        label: plan("manager", spec, known=known, where=place / label, known_where=home)
        for label, spec in specs.items()
    }
    built = [one for one in plans.values() if isinstance(one, Plan)]
    names = [name for one in built for name in one.parameters.by_name]
    refuse_unknown(cache, dict.fromkeys([*CACHE, *names]), home)
    for name in cache:
        if name not in CACHE and not any(name in one.known for one in built):
            raise ConfigError(f"{home / name}: has no effect, as every policy gives its own {name}")
    return plans


def manager_seed(seed: int) -> int:
    """A seed for managers and policies, so that their draws are not those of the workload."""
    return int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])


def folder_name(value: Any, place: Place) -> str:
    """*value*, if it can name a folder."""
    name: str = checked(str, value, place)
    if not name.strip() or name.startswith(".") or set(name) & set('/\\\0:*?"<>|\n'):
        raise ConfigError(f"{place} is {show(name)}; it must be usable as a folder's name")
    return name


def at_least(least: int, hint: Any, value: Any, place: Place) -> Any:
    """*value* as *hint*, if it is not less than *least*."""
    number = checked(hint, value, place)
    if number < least:
        raise ConfigError(f"{place} is {show(value)}; it must be at least {least}")
    return number


def pictures(value: Any, place: Place) -> tuple[str, ...]:
    """The pictures to draw: all for true, none for false, or those listed."""
    if isinstance(value, bool):
        return PICTURES if value else ()
    names: list[str] = checked(list[str], value, place)
    for i, name in enumerate(names):
        if name not in PICTURES:
            raise ConfigError(f"{place / i} is {show(name)}; pictures are {', '.join(PICTURES)}")
    return tuple(names)
