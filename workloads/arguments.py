"""Checks of constructor arguments: a ConfigError names the argument, its value and the rule."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from reprlib import repr as short_repr
from typing import Any

from sim.errors import ConfigError


def whole_number(owner: str, name: str, value: Any, least: int) -> int:
    """*value* as an int of at least *least*; ConfigError otherwise (True is no number)."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise _wrong(owner, name, value, f"a whole number of at least {least}")
    return int(value)


def real_number(owner: str, name: str, value: Any, *, above: float | None = None) -> float:
    """*value* as a finite float >= 0, or > *above* if given; ConfigError otherwise."""
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if above is None and not (is_number and value >= 0):
        raise _wrong(owner, name, value, "a finite number of at least 0")
    if above is not None and not (is_number and value > above):
        raise _wrong(owner, name, value, f"a finite number above {above:g}")
    return float(value)


def one_of(owner: str, name: str, value: str, choices: Collection[str]) -> str:
    """*value*, if it is one of *choices*; ConfigError otherwise."""
    if value not in choices:
        raise _wrong(owner, name, value, f"one of {', '.join(choices)}")
    return value


def _wrong(owner: str, name: str, value: Any, rule: str) -> ConfigError:
    return ConfigError(f"{owner}: {name} is {short_repr(value)}; it must be {rule}")
