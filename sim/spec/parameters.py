"""What a constructor takes: names, defaults and types, and how a value is checked against them."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from sim.errors import ConfigError
from sim.spec.place import BOOL_HINT, Place, show

ARBITRARY = ConfigDict(arbitrary_types_allowed=True)
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
WORDS |= {Path: "a path", list: "a list", tuple: "a list", dict: "a mapping", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Parameters:
    """The keyword arguments of *target*, a class or a function."""

    target: Callable[..., Any]
    by_name: Mapping[str, inspect.Parameter]
    hints: Mapping[str, Any]
    takes_any: bool  # it has **kwargs

    @classmethod
    def of(cls, target: Callable[..., Any], *, without: tuple[str, ...] = ()) -> Parameters:
        """The parameters of *target*, leaving out those that the caller itself supplies."""
        every = _signature(target).parameters.values()
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        by_name = {p.name: p for p in every if p.kind in named and p.name not in without}
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in every)
        return cls(target, by_name, type_hints(target), takes_any)

    @property
    def required(self) -> list[str]:
        """Names without a default."""
        return [name for name, p in self.by_name.items() if p.default is p.empty]

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the others."""
        return {name: p.default for name, p in self.by_name.items() if p.default is not p.empty}

    def check(self, name: str, value: Any, place: Place) -> Any:
        """*value* as the parameter's type (a list as a tuple, text as a path); else ConfigError."""
        return checked(self.hints.get(name, Any), value, place)

    def __str__(self) -> str:
        """`num_blocks, block_size=16`, or `nothing`."""
        texts = [
            name if p.default is p.empty else f"{name}={show(p.default).strip(chr(39))}"
            for name, p in self.by_name.items()
        ]
        return ", ".join(texts + ["..."] * self.takes_any) or "nothing"


def _signature(target: Callable[..., Any]) -> inspect.Signature:
    """What *target* takes; of a class, what its `__init__` does, whatever its `__new__` takes."""
    if not isinstance(target, type) or target.__init__ is object.__init__:  # type: ignore[misc]
        return inspect.signature(target)
    whole = inspect.signature(target.__init__)  # type: ignore[misc]
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def checked(hint: Any, value: Any, place: Place) -> Any:
    """*value* as *hint*; ConfigError, saying what would do, if it is something else."""
    if hint is Any:
        return value
    try:
        return validated(hint, value)
    except ValidationError as error:
        raise ConfigError(refusal(hint, value, place, error)) from None


def type_hints(target: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of *target*'s arguments; none of them if one cannot be resolved."""
    try:
        return get_type_hints(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
    except (NameError, TypeError, AttributeError):
        return {}


def validated(hint: Any, value: Any) -> Any:
    """*value* as *hint* says, without guessing: no text for numbers, no booleans for integers.

    Whole floats such as 1e6 are taken as integers. ValidationError if the value does not fit.
    """
    try:
        adapter = TypeAdapter(hint, config=ARBITRARY)
    except PydanticUserError:  # a dataclass or model, which has its own configuration
        adapter = TypeAdapter(hint)
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # an object from Python
        return adapter.validate_python(value, strict=True)
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError:
        whole = json.dumps(with_whole_floats_as_int(value))
        if whole == text:
            raise
        return adapter.validate_json(whole, strict=True)


def with_whole_floats_as_int(value: Any) -> Any:
    """*value* with 3.0 as 3, in lists and mappings too."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [with_whole_floats_as_int(item) for item in value]
    if isinstance(value, dict):
        return {key: with_whole_floats_as_int(item) for key, item in value.items()}
    return value


def refusal(hint: Any, value: Any, place: Place, error: ValidationError) -> str:
    """One line that says what was seen and what would do."""
    first = error.errors(include_url=False)[0]
    if isinstance(value, list) and first["loc"] and isinstance(first["loc"][0], int):
        item_hint = (get_args(hint) or (Any,))[0]
        return refusal(item_hint, first["input"], place / first["loc"][0], error)
    if isinstance(value, bool) and takes_text(hint):
        return f"{place} is {show(value)}; it must be {wording(hint)} ({BOOL_HINT})"
    if isinstance(value, str) and takes_number(hint):
        return f"{place} is {show(value)}; it must be {wording(hint)}, plain digits without unit"
    return f"{place} is {show(value)}; it must be {wording(hint)}"


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def takes_text(hint: Any) -> bool:
    """Whether text would do."""
    return any(
        one is str or (get_origin(one) is Literal and isinstance(get_args(one)[0], str))
        for one in alternatives(hint)
    )


def takes_number(hint: Any) -> bool:
    """Whether a number would do."""
    return any(one in (int, float) for one in alternatives(hint))


def wording(hint: Any) -> str:
    """*hint* in words: `one of tail, unhashed_first`."""
    return " or ".join(_wording(one) for one in alternatives(hint))


def _wording(hint: Any) -> str:
    origin = get_origin(hint) or hint
    if origin is Literal:
        return f"one of {', '.join(str(choice) for choice in get_args(hint))}"
    if origin in WORDS:
        return WORDS[origin]
    names = {"Sequence": "a list", "Mapping": "a mapping", "Callable": "a function (from Python)"}
    name = getattr(origin, "__name__", str(hint))
    return names.get(name, f"a {name}")
