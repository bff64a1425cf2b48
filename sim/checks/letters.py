"""Prompts of letters: what is said of them can be read."""

from __future__ import annotations

from sim.keys import BlockKeys


class Letters(BlockKeys):
    """Content as a growing text: the key of a block is the text up to its end."""

    def __init__(self, text: str, block_size: int) -> None:
        self.text = text
        self.block_size = block_size

    def __len__(self) -> int:
        return len(self.text) // self.block_size

    def __getitem__(self, i: int, /) -> str:
        return self.text[: (i + 1) * self.block_size]
