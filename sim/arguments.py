"""argparse that refuses in one line, as every command does what must be mended."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, NoReturn


class Parser(ArgumentParser):
    """Says on stderr, in one line, what it does not understand, and whose --help would tell."""

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.split())
        self.exit(2, f"kvsim: error: {line} ({self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left over here, where the subcommand is known."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left
