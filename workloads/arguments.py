"""Checks of constructor arguments: a ConfigError names the argument, its value and the rule.

What counts as a number is decided in `sim.spec.parameters`, for configurations and Python alike;
here the range is checked, which no annotation can say.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from reprlib import repr as short_repr
from typing import Any

import numpy as np
from pydantic import ValidationError

from sim.errors import ConfigError
from sim.spec.parameters import validated


def whole_number(owner: str, name: str, value: Any, least: int) -> int:
    """*value* as an int of at least *least*; ConfigError otherwise (True is no number)."""
    number = _as(int, value)
    if number is None or number < least:
        raise _wrong(owner, name, value, f"a whole number of at least {least}")
    return int(number)


def real_number(owner: str, name: str, value: Any, *, above: float | None = None) -> float:
    """*value* as a finite float >= 0, or > *above* if given; ConfigError otherwise."""
    number = _as(float, value)
    is_finite = number is not None and math.isfinite(number)
    if above is None and not (is_finite and number >= 0):
        raise _wrong(owner, name, value, "a finite number of at least 0")
    if above is not None and not (is_finite and number > above):
        raise _wrong(owner, name, value, f"a finite number above {above:g}")
    return float(number)


def one_of(owner: str, name: str, value: str, choices: Collection[str]) -> str:
    """*value*, if it is one of *choices*; ConfigError otherwise."""
    if value not in choices:
        raise _wrong(owner, name, value, f"one of {', '.join(choices)}")
    return value


def _as(kind: type, value: Any) -> Any:
    """*value* as *kind*, None if it is none."""
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        return validated(kind, plain)
    except ValidationError:
        return None


def _wrong(owner: str, name: str, value: Any, rule: str) -> ConfigError:
    return ConfigError(f"{owner}: {name} is {short_repr(value)}; it must be {rule}")
