"""Profiles of models and GPUs: YAML files in `configs/models` and `configs/gpus`, or anyone's.

Each names its `source`: where its numbers are from, and when and with which versions they were
measured or read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from sim.errors import ConfigError
from sim.spec.config import load
from sim.spec.parameters import Parameters
from sim.spec.place import did_you_mean

T = TypeVar("T")


def profile_names(kind: str) -> list[str]:
    """The profiles that come with kvsim; *kind* is "models" or "gpus"."""
    return sorted(path.stem for path in _folder(kind).glob("*.yaml"))


def read_profile(kind: str, name: str, target: type[T]) -> T:
    """The profile *name*, or the one in the file *name* (.yaml, .json), as a *target*.

    ConfigError, in one line, if there is none, or if it says what *target* does not take.
    """
    if name.endswith((".yaml", ".json")):  # JSON is YAML
        return _read(Path(name), target)
    known = profile_names(kind)
    if name not in known:
        raise ConfigError(
            f"{kind.removesuffix('s')} is {name!r}; no profile is called so"
            f"{did_you_mean(name, known)} (known: {', '.join(known)}; your own: a .yaml file)"
        )
    return _read(profile_path(kind, name), target)


def profile_path(kind: str, name: str) -> Path:
    """The file of a profile that comes with kvsim."""
    return _folder(kind) / f"{name}.yaml"


def _folder(kind: str) -> Path:
    """Beside the sources, or installed with them."""
    package = Path(__file__).parents[1]
    places = (package.parent / "configs" / kind, package / "configs" / kind)
    return next((place for place in places if place.is_dir()), places[0])


def _read(path: Path, target: type[T]) -> T:
    parameters, values = Parameters.of(target), dict[str, Any]()
    config = load(path, least=", ".join(f"'{name}:'" for name in parameters.required))
    for key, value in config.data.items():
        if key not in parameters.by_name:
            hint = did_you_mean(key, parameters.by_name)
            raise ConfigError(f"{config.root / key}: unknown{hint} (it takes: {parameters})")
        values[key] = parameters.check(key, value, config.root / key)
    missing = [name for name in parameters.required if name not in values]
    if missing:
        raise ConfigError(f"{path}: needs {', '.join(missing)}")
    try:
        return target(**values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
