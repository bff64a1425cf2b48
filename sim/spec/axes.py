"""What an experiment varies besides its policies: `sweep:` and `seeds:`, as one point per setting.

    sweep:
      cache.num_blocks: [2000, 10000]            # dotted paths, as for --set
      workload: {calm: {use: ..., rate: 2}, ...}  # or named values, of any kind
    seeds: [0, 1, 2]                              # the same as an axis `seed`

All combinations are taken; the first axis changes slowest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from sim.errors import ConfigError
from sim.spec.config import Config, assign
from sim.spec.parameters import checked
from sim.spec.place import Place, show
from sim.spec.yaml_text import dump

KEYS = ("sweep", "seeds")
Scalar = int | float | str
Setting = Mapping[str, Scalar]
"""Where on each axis a run stands: the value, or the name of a value that is no single word."""

FIXED = ("name", "question", "report", "policies", "bounds", "evictions", "mode", *KEYS)


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values: what to call it, and the configuration with it filled in."""

    setting: Setting
    config: Config


def points(config: Config) -> list[Point]:
    """Every combination that *config* asks for; without axes, *config* itself.

    ConfigError if an axis is empty, has a value twice, or leads nowhere.
    """
    axes = _axes(config)
    base = config.without(KEYS)
    found = []
    for combination in product(*(values.items() for values in axes.values())):
        changed = base.copied()
        for name, (_, value) in zip(axes, combination, strict=True):
            assign(changed, name, value, _origin(config, name))
        setting = {name: label for name, (label, _) in zip(axes, combination, strict=True)}
        found.append(Point(setting, changed))
    return found


def _axes(config: Config) -> dict[str, dict[Scalar, Any]]:
    """The values of every axis by their names, in the order of the configuration."""
    place = config.root / "sweep"
    sweep = config.data.get("sweep")
    if sweep is None:
        sweep = {}
    if not isinstance(sweep, dict):
        raise ConfigError(
            f"{place} is {show(sweep)}; write a mapping such as {{cache.num_blocks: [2000, 4000]}}"
        )
    axes = {name: dict(_values(name, values, place / name)) for name, values in sweep.items()}
    seeds = config.data.get("seeds")
    if seeds is not None:
        place = config.root / "seeds"
        if "seed" in axes:
            raise ConfigError(f"{place}: sweep.seed is an axis too; leave one of them out")
        checked(list[int], seeds, place)
        axes["seed"] = dict(_values("seed", seeds, place))
    return axes


def _values(name: str, values: Any, place: Place) -> Iterator[tuple[Scalar, Any]]:
    if name.partition(".")[0] in FIXED and not name.startswith("policies."):
        raise ConfigError(f"{place}: {name} cannot be swept; name a value of cache, workload ...")
    if not isinstance(values, dict | list):
        raise ConfigError(f"{place} is {show(values)}; it must be a list, or a mapping of names")
    if not values:
        raise ConfigError(f"{place}: is empty; give at least one value")
    if isinstance(values, dict):
        yield from values.items()
        return
    seen = set()
    for i, value in enumerate(values):
        label = _label(value)
        if label in seen:
            raise ConfigError(f"{place / i} is {show(value)} for the second time; leave it out")
        seen.add(label)
        yield label, value


def _label(value: Any) -> Scalar:
    """*value* in a table."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    if value is None or isinstance(value, bool | list | dict):
        return " ".join(dump(value).replace("\n...", "").split())
    return getattr(value, "__name__", type(value).__name__)


def _origin(config: Config, name: str) -> str:
    """What errors about a value of this axis begin with."""
    if name == "seed" and config.data.get("seeds") is not None:
        return f"{(config.root / 'seeds').origin}seeds: "
    return f"{(config.root / 'sweep' / name).origin}sweep "
