"""From a spec to an object: the three rules of every configuration.

1. Wherever an object is named, write a short name, or a mapping with `use:`.
2. The other keys of the mapping are that class's constructor arguments.
3. A short name is ours; `module:Class` is anyone's.

From Python a spec may also be a class or an object that is ready for use.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.blame import blame
from sim.errors import ConfigError
from sim.spec.config import in_words
from sim.spec.names import CONTRACTS, Kind, a, find
from sim.spec.parameters import Parameters, alternatives, takes_number
from sim.spec.place import BOOL_HINT, Place, blamed, did_you_mean, show


@dataclass(frozen=True, slots=True)
class Plan:
    """A spec that was checked: what will be built, with which arguments.

    *given*: arguments of the spec; *known*: those that the experiment supplied. Values are plans
    where the argument is itself an object.
    """

    kind: Kind
    use: str
    parameters: Parameters
    given: Mapping[str, Any]
    known: Mapping[str, Any]
    place: Place
    known_place: Place

    def build(self) -> Any:
        """A new object; ConfigError if its constructor refuses the arguments."""
        arguments = {name: _built(value) for name, value in {**self.known, **self.given}.items()}
        try:
            made = self.parameters.target(**arguments)
        except (ConfigError, ValueError) as error:
            places = {name: self.known_place / name for name in self.known}
            places |= {name: self.place / name for name in self.given}
            raise ConfigError(blamed(str(error), places, self.place)) from error
        except (Exception, SystemExit) as error:
            line = blame(error)
            if line is None:
                raise
            raise ConfigError(f"{self.place}: {line}") from error
        return _fulfils(self.kind, made, self.place)

    def resolved(self) -> dict[str, Any]:
        """The spec with every default spelled out, except what the experiment supplies."""
        settled = {
            name: _settled(value)
            for name, value in self.parameters.defaults.items()
            if name not in self.known and isinstance(value, bool | int | float | str)
        }
        settled |= {name: _settled(value) for name, value in self.given.items()}
        return {"use": self.use, **settled}


@dataclass(frozen=True, slots=True)
class Ready:
    """An object that came from Python, to be used as it is."""

    kind: Kind
    made: Any
    place: Place

    def build(self) -> Any:
        """The object; an eviction policy is copied, so that several managers can have it."""
        if self.kind != "policy":
            return self.made
        if hasattr(self.made, "pool"):
            raise ConfigError(f"{self.place}: {show(self.made)} serves a manager already")
        return copy.deepcopy(self.made)

    def resolved(self) -> str:
        """A word for it: what came from Python cannot be written down."""
        return str(in_words(self.made))


def build(
    kind: Kind, spec: object, *, known: Mapping[str, object] | None = None, where: Place | str = ""
) -> Any:
    """The object that *spec* describes; ConfigError, in one line, if it describes none.

    *known*: values that the experiment knows (`num_blocks`, `block_size`, `seed` ...); each is
    passed if the constructor asks for it and the spec does not give it. *where*: for errors.
    """
    return plan(kind, spec, known=known, where=where).build()


def plan(
    kind: Kind,
    spec: object,
    *,
    known: Mapping[str, object] | None = None,
    where: Place | str = "",
    known_where: Place | None = None,
) -> Plan | Ready:
    """Check *spec* without building anything; *known_where* is the place of *known* values."""
    place = Place(path=(where or kind,)) if isinstance(where, str) else where
    if isinstance(spec, CONTRACTS[kind]):
        return Ready(kind, spec, place)
    use, given = _parted(kind, spec, place)
    named = place / "use" if isinstance(spec, Mapping) else place
    target = use if isinstance(use, type) else find(kind, use, named)
    name = f"{use.__module__}:{use.__qualname__}" if isinstance(use, type) else use
    parameters = Parameters.of(target)
    supplied = {key: value for key, value in (known or {}).items() if key in parameters.by_name}
    for key in given:
        _refuse_unknown(name, key, parameters, place)
    known_place = known_where or place
    nested = (known, known_place)  # an object inside this one may ask for the same values
    arguments = {
        key: _argument(parameters, key, v, place / key, *nested) for key, v in given.items()
    }
    values = {
        key: _argument(parameters, key, value, known_place / key, *nested)
        for key, value in supplied.items()
        if key not in given
    }
    missing = [key for key in parameters.required if key not in arguments and key not in values]
    if missing:
        raise ConfigError(f"{place}: {name} needs {', '.join(missing)}; it takes: {parameters}")
    return Plan(kind, name, parameters, arguments, values, place, known_place)


def _parted(kind: Kind, spec: object, place: Place) -> tuple[str | type, dict[str, Any]]:
    """What to use, and the arguments."""
    if isinstance(spec, str | type):
        return spec, {}
    if isinstance(spec, Mapping):
        given = dict(spec)
        use = given.pop("use", None)
        if isinstance(use, str | type):
            return use, given
        if use is None:
            raise ConfigError(f"{place}: needs 'use:', the name of {a(kind)}")
        place, spec = place / "use", use
    hint = f" ({BOOL_HINT})" if isinstance(spec, bool) else ""
    raise ConfigError(
        f"{place} is {show(spec)}; it must be the name of {a(kind)}, or a mapping with 'use:'{hint}"
    )


def _refuse_unknown(use: str, key: str, parameters: Parameters, place: Place) -> None:
    if key in parameters.by_name or parameters.takes_any:
        return
    hint = did_you_mean(key, parameters.by_name)
    raise ConfigError(f"{place / key}: unknown to {use}{hint} (it takes: {parameters})")


def _argument(
    parameters: Parameters,
    name: str,
    value: Any,
    place: Place,
    known: Mapping[str, object] | None,
    known_where: Place,
) -> Any:
    """*value* checked against the annotation; a plan where an object of ours is asked for."""
    hint = parameters.hints.get(name)
    if isinstance(value, int | float) and takes_number(hint):
        return parameters.check(name, value, place)  # a number may stand for an object
    for kind, contract in CONTRACTS.items():
        for one in alternatives(hint):
            if isinstance(one, type) and issubclass(one, contract) and value is not None:
                return plan(kind, value, known=known, where=place, known_where=known_where)
    return parameters.check(name, value, place)


def _built(value: Any) -> Any:
    return value.build() if isinstance(value, Plan | Ready) else value


def _settled(value: Any) -> Any:
    """*value* as plain data again."""
    if isinstance(value, Plan | Ready):
        return value.resolved()
    if isinstance(value, tuple | list):
        return [_settled(item) for item in value]
    plain = value is None or isinstance(value, bool | int | float | str | dict)
    return value if plain else str(value)


def _fulfils(kind: Kind, made: object, place: Place) -> object:
    if not isinstance(made, CONTRACTS[kind]):
        contract = CONTRACTS[kind]
        raise ConfigError(
            f"{place}: {type(made).__name__} is not {a(kind)}; "
            f"derive it from {contract.__module__}.{contract.__name__}"
        )
    return made
