"""`kvsim example`: a worked example, moment by moment."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from sim.analysis.walkthrough import walkthrough
from sim.errors import KvsimError


def run(arguments: Namespace) -> int:
    """Print the example that the configuration describes, or the specification's."""
    print(walkthrough(arguments.config or _packaged("seed_example.yaml")))
    return 0


def _packaged(name: str) -> Path:
    """A configuration that comes with kvsim: beside the sources, or installed with them."""
    package = Path(__file__).parents[1]
    places = (package.parent / "configs" / name, package / "configs" / name)
    for place in places:
        if place.is_file():
            return place
    raise KvsimError(f"{name} is not installed with kvsim; name a configuration instead")
