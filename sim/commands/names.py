"""`kvsim list`: every short name, what it stands for and what it takes."""

from __future__ import annotations

import inspect
import textwrap
from argparse import Namespace

from sim.spec.names import NOUNS, Kind, find, names
from sim.spec.parameters import Parameters
from sim.spec.place import Place


def run(arguments: Namespace) -> int:
    """Print every short name, what it stands for and what it takes."""
    plurals = {"policy": "eviction policies", "arrivals": "arrival processes"}
    for kind, noun in NOUNS.items():
        print(f"{plurals.get(kind, noun + 's')}:")
        for name in names(kind):
            _list_one(kind, name)
        print()
    return 0


def _list_one(kind: Kind, name: str) -> None:
    target = find(kind, name, Place())
    about = (inspect.getdoc(target) or "").partition("\n")[0]
    print(f"  {name:<15} {about}")
    taken = f"takes: {Parameters.of(target)}"
    print(textwrap.fill(taken, 96, initial_indent=" " * 18, subsequent_indent=" " * 25))
