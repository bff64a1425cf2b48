"""The subcommands of `kvsim`, by noun: parsed arguments in, exit code out.

A command's module is imported when it is asked for, so each loads only what it needs.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from sim.spec.search import find_modules_in

COMMANDS = {
    "run": "sim.commands.run:run",
    "validate": "sim.commands.run:validate",
    "report": "sim.commands.report:run",
    "explain": "sim.commands.explain:explain",
    "decompose": "sim.commands.explain:decompose",
    "replay": "sim.commands.replay:run",
    "mrc": "sim.commands.mrc:run",
    "trace": "sim.commands.trace:run",
    "golden": "sim.commands.golden:run",
    "check": "sim.commands.check:run",
    "list": "sim.commands.names:run",
    "gpu": "gpu_backend.command:main",
    "example": "sim.commands.example:run",
}


def execute(arguments: Namespace) -> int:
    """Do what *arguments* ask for; users' classes are found beside the configuration and here."""
    config: Path | None = getattr(arguments, "config", None)
    find_modules_in(*([config.parent] if config else []), Path.cwd())
    module, _, function = COMMANDS[arguments.command].partition(":")
    command: Callable[[Namespace], int] = getattr(import_module(module), function)
    return command(arguments)
