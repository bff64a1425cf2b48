"""YAML in which every value remembers its line, and nothing is read otherwise than it looks.

Refused: duplicate keys, keys that are not text (`on:` is true), octal (`010`), base 60 (`1:30`),
`.inf` and `.nan`, tags. `1e9` is a number, as everywhere outside YAML 1.1; dates are text. Merge
keys (`<<`) are legal and may be overridden.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import yaml

from sim.errors import ConfigError
from sim.spec.place import KeyPath, Place, show

TAG = "tag:yaml.org,2002:"
MERGE = f"{TAG}merge"


def parse(text: str, name: str, origins: dict[KeyPath, str] | None = None) -> Any:
    """The data in *text* (None if it is empty); *origins* receives `name:line: ` of every value.

    *name*: what errors call the text. Without *origins* it is one line, and lines go unmentioned.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        reader = _Reader(loader, name, {} if origins is None else origins, origins is not None)
        return reader.data(node, Place(reader.origins))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark if origins is not None else None
        line = f":{mark.line + 1}" if mark else ""
        reason = " ".join(f"{error.problem or error.context}".split())
        raise ConfigError(f"{name}{line}: is not valid YAML: {reason}") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name}: is not valid YAML: {reason}") from None
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply, or contains itself") from None


def dump(data: Any) -> str:
    """*data* as YAML that `parse` reads back unchanged."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, where 1e9 is a number and a date is text."""


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes text that the loader would take for a number."""


_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(f"{TAG}float", _FLOAT, list("-+.0123456789"))


@dataclass(slots=True)
class _Reader:
    """Turns nodes into data; the nodes are PyYAML's, with their tags and marks."""

    loader: _Loader
    name: str
    origins: dict[KeyPath, str]
    has_lines: bool

    def origin(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}: " if self.has_lines else f"{self.name}: "

    def data(self, node: yaml.Node, place: Place) -> Any:
        """The value of *node*."""
        self.origins.setdefault(place.path, self.origin(node))
        if isinstance(node, yaml.MappingNode) and node.tag == f"{TAG}map":
            return self.mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{TAG}seq":
            return [self.data(child, place / i) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, str(place) if place.path else self.origin(node)[:-2])
        raise ConfigError(f"{place}: the tag {node.tag} has no meaning here; remove it")

    def mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        """The keys of *node* over those it merges; of several merged mappings the first wins."""
        # Not PyYAML's flatten_mapping: in 6.0.4 it loses overrides where merges are chained.
        self.refuse_duplicates(node)
        values: dict[str, Any] = {}
        for _, child in (pair for pair in node.value if pair[0].tag == MERGE):
            merged = child.value if isinstance(child, yaml.SequenceNode) else [child]
            for one in reversed(merged):
                if not isinstance(one, yaml.MappingNode):
                    raise ConfigError(f"{self.origin(one)}<< takes a mapping or a list of them")
                values |= self.data(one, place)
        for key, child in (pair for pair in node.value if pair[0].tag != MERGE):
            name = self.key(key, place)
            self.origins[(place / name).path] = self.origin(key)
            values[name] = self.data(child, place / name)
        return values

    def refuse_duplicates(self, node: yaml.MappingNode) -> None:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in lines:
                first = f" (first on line {lines[key.value]})" if self.has_lines else ""
                raise ConfigError(f"{self.origin(key)}duplicate key {key.value!r}{first}")
            lines[key.value] = key.start_mark.line + 1

    def key(self, node: yaml.Node, place: Place) -> str:
        key = self.loader.construct_object(node) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(key, str):
            return key
        inside = f"in {place.dotted}: " if place.path else ""
        shown = node.value if isinstance(node, yaml.ScalarNode) else "of several parts"
        raise ConfigError(
            f"{self.origin(node)}{inside}the key {shown} is read as {show(key)}, not as text; "
            f'write "{shown}"'
        )

    def scalar(self, node: yaml.ScalarNode, where: str) -> Any:
        value = self.loader.construct_object(node)
        text: str = node.value
        if isinstance(value, int) and not isinstance(value, bool):
            if ":" in text:
                raise ConfigError(f"{where} is {text}, which YAML reads as {value}; write {value}")
            if re.match(r"[-+]?0[0-7_]*[1-7]", text):
                plain = ("-" if value < 0 else "") + text.lstrip("+-0_")
                raise ConfigError(
                    f"{where} is {text}, which YAML reads as octal {value}; "
                    f"write {plain} or {value}, or quote it"
                )
        if isinstance(value, float) and ":" in text:
            raise ConfigError(f"{where} is {text}, which YAML reads as {value}; write {value}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"{where} is {text}; numbers must be finite (leave the key out for no limit)"
            )
        return value
