"""Objects as bytes and back: a graph of any depth, with who refers to whom.

Pickle alone recurses along linked lists and trees, and builds whatever a file asks for. Here every
object that can change is a record of its own, whose references are numbers, so no chain is too
long; and only classes of packages that the caller names are built. Within a record, values are
pickled. Sets of objects come back in an order of their own.
"""

from __future__ import annotations

import io
import pickle
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterator
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

Record = tuple[str, ...]
CONTAINERS = {kind.__name__: kind for kind in (list, dict, set, deque, OrderedDict, Counter)}
MAPPINGS = ("dict", "OrderedDict", "Counter")
LEFT_OUT = (FunctionType, WeakKeyDictionary)  # notes about requests die with these
VALUES = (np.ndarray, np.random.Generator, random.Random)
ALLOWED = {
    *(("builtins", name) for name in ("frozenset", "range", "slice", "complex", "bytearray")),
    *(("numpy", name) for name in ("ndarray", "dtype")),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("_core", "core")),
    *((f"numpy.{core}.multiarray", "scalar") for core in ("_core", "core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("_core", "core")),
    *(("numpy.random._pickle", f"__{name}_ctor") for name in ("generator", "bit_generator")),
    ("numpy.random._pcg64", "PCG64"),
    ("numpy.random.bit_generator", "SeedSequence"),
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"),
    ("array", "_array_reconstructor"),
    ("array", "array"),
    ("random", "Random"),
    (__name__, "_bound"),
    (__name__, "_view"),
}


class Unsaved(Exception):
    """Something in the graph cannot be written down, or must not be read."""


def dumps(roots: list[Any], packages: Collection[str]) -> bytes:
    """The graph that hangs on *roots*, objects of *packages*, without what is `LEFT_OUT`.

    Unsaved if an object of another package hangs on it.
    """
    out = io.BytesIO()
    pickler = _Pickler(out, packages)
    for root in roots:
        pickler.number(root)
    shells: list[tuple[Record, bytes]] = []
    for one in pickler.found:  # grows while it is gone through
        if isinstance(one, VALUES):
            shells.append((("value",), pickle.dumps(one, protocol=5)))
            continue
        kind = type(one)
        if kind in CONTAINERS.values():
            shells.append(((kind.__name__,), b""))
        else:
            shells.append((("object", kind.__module__, kind.__qualname__), b""))
        try:
            pickler.dump(_state(one))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise Unsaved(f"a {kind.__name__} holds what cannot be saved ({error})") from error
    return pickle.dumps(shells, protocol=5) + out.getvalue()


def loads(data: bytes, roots: list[Any], packages: Collection[str]) -> None:
    """Give *roots*, new objects like those of `dumps`, the state in *data*.

    What was left out of them stays. Unsaved, pickle.UnpicklingError and others if *data* is not
    what `dumps` made of such roots.
    """
    file = io.BytesIO(data)
    shells = _Unpickler(file, packages, []).load()
    made = [_shell(record, value, packages) for record, value in shells]
    for i, root in enumerate(roots):
        if type(made[i]) is not type(root):
            raise Unsaved(f"a {type(made[i]).__name__} was saved")
    made[: len(roots)] = roots
    unpickler = _Unpickler(file, packages, made)
    states = [() if isinstance(one, VALUES) else unpickler.load() for one in made]
    late = []  # what is hashed must be whole before
    for one, state in zip(made, states, strict=True):
        if isinstance(one, dict | set):
            late.append((one, state))
        elif isinstance(one, list | deque):
            one.extend(state)
        else:
            for name, value in state:
                object.__setattr__(one, name, value)
    for one, state in late:
        for item in state:
            if isinstance(one, set):
                one.add(item)
            else:
                one[item[0]] = item[1]


def _state(one: Any) -> tuple[Any, ...]:
    """What *one* holds, as a tuple."""
    if isinstance(one, dict):
        return tuple(one.items())
    if isinstance(one, list | set | deque):
        if isinstance(one, deque) and one.maxlen is not None:
            raise Unsaved("a deque with maxlen cannot be saved")
        return tuple(one)
    return tuple((name, v) for name, v in _attributes(one) if not isinstance(v, LEFT_OUT))


def _attributes(one: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of *one* itself, in its dictionary and in its slots."""
    yield from getattr(one, "__dict__", {}).items()
    for cls in type(one).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            hidden = slot.startswith("__") and not slot.endswith("__")
            name = f"_{cls.__name__.lstrip('_')}{slot}" if hidden else slot
            if name not in ("__dict__", "__weakref__") and hasattr(one, name):
                yield name, getattr(one, name)


def _shell(record: Record, value: bytes, packages: Collection[str]) -> Any:
    """An empty object of its kind; a value is whole."""
    if record[0] == "value":
        return _Unpickler(io.BytesIO(value), packages, []).load()
    if record[0] in CONTAINERS:
        return CONTAINERS[record[0]]()
    cls = _class(record[1], record[2], packages)
    return cls.__new__(cls)


def _class(module: str, name: str, packages: Collection[str]) -> Any:
    """A class of *packages*."""
    found: Any = None
    if module.partition(".")[0] in packages:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part, None)
    if not isinstance(found, type):
        raise Unsaved(f"it names {module}.{name}, which is not loaded")
    return found


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, packages: Collection[str]) -> None:
        super().__init__(out, protocol=5)
        self.found: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._packages = packages

    def number(self, one: Any) -> int:
        """The number of the record of *one*; a new one if it has none."""
        if id(one) not in self._numbers:
            self._numbers[id(one)] = len(self.found)
            self.found.append(one)
        return self._numbers[id(one)]

    def persistent_id(self, one: Any) -> int | None:
        kind = type(one)
        if kind in CONTAINERS.values() or isinstance(one, VALUES):
            return self.number(one)
        if kind.__module__.partition(".")[0] not in self._packages or _is_plain(one):
            return None
        if isinstance(one, list | dict | set):
            raise Unsaved(f"a {kind.__name__} is a {kind.__mro__[-2].__name__} of its own kind")
        return self.number(one)

    def reducer_override(self, one: Any) -> Any:
        if isinstance(one, MethodType):
            return _bound, (one.__self__, one.__func__.__name__)
        if isinstance(one, memoryview):
            return _view, (one.tobytes(), one.format)
        kind = type(one)
        known = (kind.__module__, kind.__qualname__) in ALLOWED
        ours = kind.__module__.partition(".")[0] in self._packages
        builtin = kind.__module__ in ("builtins", "array") or isinstance(one, np.generic)
        if known or ours or (builtin and kind is not object):
            return NotImplemented
        raise Unsaved(f"a {kind.__module__}.{kind.__qualname__} cannot be saved")


def _is_plain(one: Any) -> bool:
    """Whether *one* cannot change: it needs no record of its own."""
    from enum import Enum

    return isinstance(one, tuple | Enum | str | bytes | int | float | type | FunctionType)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, packages: Collection[str], made: list[Any]) -> None:
        super().__init__(file)
        self._made = made
        self._packages = packages

    def persistent_load(self, number: Any) -> Any:
        return self._made[number]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        return _class(module, name, self._packages)


def _bound(one: Any, name: str) -> Any:
    """A method of *one*."""
    found = getattr(one, name)
    if not isinstance(found, MethodType):
        raise Unsaved(f"{name} is no method")
    return found


def _view(data: bytes, form: str) -> memoryview:
    return memoryview(data).cast(form)  # type: ignore[call-overload, no-any-return]
