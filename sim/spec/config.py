"""Experiment configurations: read from YAML or Python, changed by `--set`."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.spec.place import KeyPath, Place, did_you_mean, show
from sim.spec.yaml_text import parse

FROM_PYTHON = "from Python"


@dataclass(frozen=True, slots=True)
class Config:
    """Plain data (dicts, lists, scalars; objects if they came from Python) and its origins."""

    data: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict)

    @property
    def root(self) -> Place:
        """The place of the whole; `root / "cache" / "num_blocks"` is the place of one key."""
        return Place(self.origins)

    def copied(self) -> Config:
        """The same values in containers of their own."""
        return Config(_copied(self.data), dict(self.origins))

    def without(self, keys: Iterable[str]) -> Config:
        """The same configuration without some keys of its top level."""
        left = {key: value for key, value in self.data.items() if key not in set(keys)}
        return Config(left, self.origins)


def load(
    source: str | os.PathLike[str] | Mapping[str, Any], *, least: str = "'workload:'"
) -> Config:
    """Read a configuration from a YAML file or a mapping; ConfigError if that cannot be done.

    *least*: what one that is empty lacks.
    """
    if isinstance(source, Mapping):
        return Config(_plain(source, Place()))
    path = Path(source)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    origins: dict[KeyPath, str] = {(): f"{path}: "}
    data = parse(text, str(path), origins)
    if data is None:
        raise ConfigError(f"{path}: is empty; write at least {least}")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: is {show(data)}; it must be a mapping of keys to values")
    return Config(data, origins)


def apply_overrides(config: Config, overrides: Iterable[str]) -> Config:
    """A copy of *config* with each `dotted.path=value` set; values are read as YAML.

    A path may add a key to a mapping or to a short name (`latency: linear` becomes
    `{use: linear, ...}`), but below the top level it cannot invent the mapping that holds the key.
    """
    changed = config.copied()
    for override in overrides:
        dotted, equals, text = override.partition("=")
        dotted = dotted.strip()
        if not dotted or not equals:
            raise ConfigError(f"--set {override}: write it as key=value: cache.num_blocks=4096")
        assign(changed, dotted, parse(text, f"--set {dotted}"))
    return changed


def assign(config: Config, dotted: str, value: Any, origin: str = "--set ") -> None:
    """Set the value at *dotted* in *config*, in place; errors about it begin with *origin*."""
    data, place, rest = config.data, config.root, dotted
    while True:
        key, rest = _first_key(data, rest)
        place = place / key
        if not rest:
            break
        if key not in data:
            config.origins[place.path] = origin
        data = _mapping_at(data, key, place, f"{origin}{dotted}")
    data[key] = _copied(value)
    for path in [path for path in config.origins if path[: len(place.path)] == place.path]:
        del config.origins[path]
    config.origins[place.path] = origin


def _first_key(data: Mapping[str, Any], dotted: str) -> tuple[str, str]:
    """The first key of *dotted* and the rest; a key of *data* may itself contain dots."""
    known = [key for key in data if dotted == key or dotted.startswith(f"{key}.")]
    key = max(known, key=len, default=dotted.partition(".")[0])
    return key, dotted[len(key) + 1 :]


def _mapping_at(data: dict[str, Any], key: str, place: Place, change: str) -> dict[str, Any]:
    """The mapping under *key*, made from a short name or, at the top level, from nothing.

    *change*: what errors begin with, as it was written.
    """
    if key not in data and len(place.path) > 1:
        if not data:
            above = Place(path=place.path[:-1]).dotted
            whole = f"write the whole of it: --set {above}={{...}}"
            raise ConfigError(f"{change}: {above} has no keys yet; {whole}")
        hint = did_you_mean(key, data) or f"; it could be {', '.join(data)}"
        raise ConfigError(f"{change}: there is no {place.dotted}{hint}")
    child = data.get(key)
    if isinstance(child, str):
        child = {"use": child}
    child = {} if child is None else child
    if not isinstance(child, dict):
        raise ConfigError(f"{change}: {place.dotted} is {show(child)} and has no keys")
    data[key] = child
    return child


def _copied(data: Any) -> Any:
    """New containers around the same values."""
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data


def in_words(value: Any) -> Any:
    """*value* as YAML can hold it: what is no data becomes a word that says so."""
    if isinstance(value, Mapping):
        return {str(key): in_words(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [in_words(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = value if isinstance(value, type) else type(value)
    return f"<{kind.__module__}:{kind.__qualname__} {FROM_PYTHON}>"


def _plain(value: Any, place: Place) -> Any:
    """*value* from Python, in the types that YAML gives; what is no data stays as it is."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{place}: the key {show(key)} is not text")
        return {key: _plain(item, place / key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, place / i) for i, item in enumerate(value)]
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)  # NumPy's too
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ConfigError(f"{place} is {value}; numbers must be finite (None for no limit)")
        return float(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value
