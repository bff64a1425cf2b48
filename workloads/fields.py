"""Fields of a row of a trace, checked: a ValueError names the field, its value and the rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from reprlib import repr as short_repr
from typing import Any

from sim.keys import POSITION_BITS

LARGEST_TIME = 2**53  # up to here a float holds every whole number
LARGEST_ID = 2**63 - 1

Record = Mapping[str, Any]


def record(value: Any, what: str = "the row") -> Record:
    """*value* as a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {short_repr(value)}; it must be a JSON object")
    return value


def field(row: Record, name: str) -> Any:
    """The value of a field that must be there."""
    if name not in row:
        raise ValueError(f"{name} is missing")
    return row[name]


def time(row: Record, name: str, unit: str) -> float:
    """A finite number of *unit* (in words), at least 0."""
    value = field(row, name)
    if type(value) not in (int, float) or not 0 <= value <= LARGEST_TIME:
        raise ValueError(f"{name} is {short_repr(value)}; it must be {unit}, 0 to {LARGEST_TIME}")
    return float(value)


def whole(row: Record, name: str, least: int = 1) -> int:
    """A whole number of at least *least*; 3.0 is one."""
    value = field(row, name)
    is_whole = type(value) is int or (type(value) is float and value.is_integer())
    if not is_whole or not least <= value <= LARGEST_ID:
        raise ValueError(
            f"{name} is {short_repr(value)}; it must be a whole number of at least {least}"
        )
    return int(value)


def ids(row: Record, name: str) -> list[int]:
    """A list of whole numbers >= 0, of any size."""
    value = field(row, name)
    if type(value) is not list or any(type(i) is not int or i < 0 for i in value):
        raise ValueError(f"{name} is {short_repr(value)}; it must list whole numbers >= 0")
    return value


def text(row: Record, name: str) -> str:
    """Text, which may be empty."""
    value = field(row, name)
    if type(value) is not str:
        raise ValueError(f"{name} is {short_repr(value)}; it must be text")
    return value


def name_of(row: Record, name: str) -> int | str | None:
    """An identifier, if the row has it: text or a whole number."""
    value = row.get(name)
    if value is None or type(value) in (int, str):
        return value
    raise ValueError(f"{name} is {short_repr(value)}; it must be text or a whole number")


def number(text: str, name: str) -> float:
    """The finite number that *text*, a field of CSV, spells."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} is {short_repr(text)}; it must be a number")
    return value


def check_length(num_tokens: int, block_size: int, what: str) -> None:
    """Refuse a request of more blocks than keys can count."""
    if num_tokens // block_size >> POSITION_BITS:
        raise ValueError(
            f"{what} is {short_repr(num_tokens)}; it must be below "
            f"2**{POSITION_BITS} blocks of {block_size} tokens"
        )


def check_num_ids(num_ids: int, num_tokens: int, chunk: int, names: tuple[str, str]) -> None:
    """Refuse another number of ids than ceil(*num_tokens* / *chunk*); *names*: ids and tokens."""
    expected = -(-num_tokens // chunk)
    if num_ids != expected:
        raise ValueError(
            f"{names[0]} has {num_ids} ids; an {names[1]} of {num_tokens} needs "
            f"{expected} (one per trace_block_size = {chunk} tokens)"
        )
