"""Where a value of an experiment stands, and how errors speak of values and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

KeyPath = tuple[str | int, ...]
BOOL_HINT = "YAML reads on, off, yes and no as true and false; quote it if it is meant as text"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands, for error messages: `file.yaml:12: cache.num_blocks`.

    *origins*: per path, a prefix such as `file.yaml:12: `; a path without one has its parent's.
    *names*: what some paths are called, such as the options of a command.
    """

    origins: Mapping[KeyPath, str] = field(default_factory=dict)
    path: KeyPath = ()
    names: Mapping[KeyPath, str] = field(default_factory=dict)

    def __truediv__(self, key: str | int) -> Place:
        return Place(self.origins, (*self.path, key), self.names)

    def __str__(self) -> str:
        return f"{self.origin}{self.dotted}" if self.path else f"{self.origin}config"

    @property
    def dotted(self) -> str:
        """The path alone: `policies.lru.eviction`, `report.plots[1]`."""
        depths = range(len(self.path), 0, -1)
        named = next((depth for depth in depths if self.path[:depth] in self.names), 0)
        name = self.names.get(self.path[:named], "")
        parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path[named:])
        return "".join([name, *parts]).removeprefix(".")

    @property
    def origin(self) -> str:
        """The file and line alone, as a prefix; empty for what comes from Python."""
        depths = range(len(self.path), -1, -1)
        found = (self.origins.get(self.path[:depth]) for depth in depths)
        return next((origin for origin in found if origin is not None), "")


def blamed(message: str, arguments: Mapping[str, Place], whole: Place) -> str:
    """A constructor's *message* with the place of the argument that it begins with, or *whole*.

    Such messages read "rate is -1; ..." or "SharedPrefix: rate is -1; ...".
    """
    found = re.match(r"(?:\w+: )?(\w+)\b", message)
    if found and found[1] in arguments:
        return f"{arguments[found[1]]}{message[found.end() :]}"
    return f"{whole}: {message}"


def show(value: object) -> str:
    """*value* as YAML would spell it, cut to fit into a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` with the nearest of *known*, or nothing."""
    near = get_close_matches(str(name).lower(), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
