"""Content that only its owner may share: the same keys, under a name that nobody else has."""

from __future__ import annotations

from collections.abc import Hashable

from sim.keys import BlockKeys


class ScopedKeys(BlockKeys):
    """*keys* as seen within *scope*; equal content in another scope is other content.

    *is_salt*: the content is the same there, but must not be shared.
    """

    __slots__ = ("block_size", "is_salt", "keys", "scope")

    def __init__(self, keys: BlockKeys, scope: Hashable, *, is_salt: bool = False) -> None:
        self.keys = keys
        self.scope = scope
        self.is_salt = is_salt
        self.block_size = keys.block_size

    @property
    def private_from(self) -> int | None:
        return self.keys.private_from

    @property
    def shared(self) -> BlockKeys | None:
        inner = self.keys.shared
        if self.is_salt:
            return inner or self.keys
        return None if inner is None else ScopedKeys(inner, self.scope)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int, /) -> Hashable:
        return (self.scope, self.keys[i])

    def common(self, other: BlockKeys, start: int, stop: int) -> int:
        if type(other) is not ScopedKeys or other.scope != self.scope:
            return 0
        return self.keys.common(other.keys, start, stop)
