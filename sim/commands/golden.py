"""`kvsim golden`: recordings of real vLLM, replayed."""

from __future__ import annotations

from argparse import Namespace

from sim.golden import main


def run(arguments: Namespace) -> int:
    """Replay recordings and report the first difference of each."""
    return main(arguments.paths, arguments.manager)
