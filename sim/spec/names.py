"""Short names and import paths: how a configuration names a class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal

from sim.blame import in_a_line
from sim.cache import BlockManager, EvictionPolicy
from sim.errors import ConfigError
from sim.latency import LatencyModel
from sim.spec.place import Place, did_you_mean
from sim.traffic import Arrivals, Lengths, Prompts
from sim.workload import Workload

Kind = Literal["manager", "policy", "workload", "latency", "arrivals", "prompts", "lengths"]

CONTRACTS: dict[Kind, type] = {
    "manager": BlockManager,
    "policy": EvictionPolicy,
    "workload": Workload,
    "latency": LatencyModel,
    "arrivals": Arrivals,
    "prompts": Prompts,
    "lengths": Lengths,
}
TABLES: dict[Kind, str] = {
    "manager": "policies:MANAGERS",
    "policy": "policies:POLICIES",
    "workload": "workloads:WORKLOADS",
    "latency": "sim.latency:LATENCIES",
    "arrivals": "workloads:ARRIVALS",
    "prompts": "workloads:PROMPTS",
    "lengths": "workloads:LENGTHS",
}
NOUNS: dict[Kind, str] = {
    "manager": "block manager",
    "policy": "eviction policy",
    "workload": "workload",
    "latency": "latency model",
    "arrivals": "arrival process",
    "prompts": "prompt model",
    "lengths": "length distribution",
}


def a(kind: Kind) -> str:
    """`a workload`, `an eviction policy`."""
    return f"{'an' if NOUNS[kind][0] in 'aeiou' else 'a'} {NOUNS[kind]}"


def find(kind: Kind, use: str, place: Place) -> Callable[..., Any]:
    """The class that *use* names: a short name, or `module:Class`."""
    table = names(kind)
    if ":" in use or use in table:
        return constructor(imported(table.get(use, use), place), use, place)
    hint = did_you_mean(use, table)
    if kind == "manager" and use in names("policy"):
        hint = f"; for that eviction policy write {{use: reference, eviction: {use}}}"
    raise ConfigError(
        f"{place}: no {NOUNS[kind]} is called {use!r}{hint} "
        f"(known: {', '.join(table)}; your own: module:Class)"
    )


def constructor(found: Any, use: str, place: Place) -> Callable[..., Any]:
    """*found*, if it can be called to make an object."""
    if not callable(found) or inspect.isabstract(found):
        what = "an abstract class" if callable(found) else f"a {type(found).__name__}"
        raise ConfigError(f"{place}: {use} is {what}; name a class that can be built")
    return found  # type: ignore[no-any-return]


def names(kind: Kind) -> Mapping[str, str]:
    """The short names of one kind, each with its import path."""
    table: Mapping[str, str] = imported(TABLES[kind], Place())
    return table


def imported(path: str, place: Place) -> Any:
    """What `module:name` names."""
    module_name, _, name = path.partition(":")
    if not module_name or not name.isidentifier():
        raise ConfigError(f"{place}: {path!r} is not an import path; write module:Class")
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever it does, its name must be in the message
        reason = in_a_line(error)
        raise ConfigError(f"{place}: cannot import {module_name} ({reason})") from error
    if not hasattr(module, name):
        near = did_you_mean(name, [n for n, v in vars(module).items() if inspect.isclass(v)])
        raise ConfigError(f"{place}: {module_name} has no {name}{near}")
    return getattr(module, name)
