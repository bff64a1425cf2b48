"""Building the turns of sessions one after the other."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from sim.traffic import Turns


class TurnBuilder:
    """Collects segments and requests into `Turns`.

    Ids from 0 to *num_shared* - 1 are the caller's, for contents at the start of a prompt; `new_id`
    gives others. `chained` names content behind other content.
    """

    def __init__(self, num_shared: int = 0) -> None:
        self._next_id = num_shared
        self._chain: dict[tuple[int, int], int] = {}
        self.ids, self.ends = array("q"), array("q")
        self._columns = {
            name: array("q") for name in ("sessions", "prompts", "outputs", "starts", "stops")
        }
        self._pauses = array("d")
        self._follows: list[tuple[int, ...]] = []
        self._hints: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._follows)

    def new_id(self) -> int:
        """An id that nobody else has."""
        self._next_id += 1
        return self._next_id - 1

    def chained(self, parent: int, content: int) -> int:
        """The id of *content* behind the segment *parent* (-1: at the start)."""
        key = (parent, content)
        found = self._chain.get(key)
        if found is None:
            found = self._chain[key] = self.new_id()
        return found

    def begin(self, segments: Iterable[tuple[int, int]] = ()) -> Context:
        """A new context that begins with *segments*, each an id and its tokens."""
        return Context(self, segments)

    def add(
        self,
        context: Context,
        session: int,
        output: int,
        answer: int,
        *,
        pause: float = 0.0,
        follows: tuple[int, ...] = (),
        **hints: Any,
    ) -> int:
        """A request with the prompt *context* so far, and an answer called *answer*; its index."""
        prompt = self.ends[-1]
        self.ids.append(answer)
        self.ends.append(prompt + output)
        row = (session, prompt, output, context.start, len(self.ids))
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        self._pauses.append(pause)
        self._follows.append(follows)
        for name, value in hints.items():
            self._hints.setdefault(name, []).append(value)
        return len(self._follows) - 1

    def done(self) -> Turns:
        """All requests."""
        columns = {name: np.array(values) for name, values in self._columns.items()}
        return Turns(
            pauses=np.array(self._pauses),
            ids=np.array(self.ids),
            ends=np.array(self.ends),
            follows=self._follows,
            hints=self._hints,
            **columns,
        )


class Context:
    """What a conversation holds. Only the context begun last may grow: segments are contiguous."""

    def __init__(self, builder: TurnBuilder, segments: Iterable[tuple[int, int]]) -> None:
        self._builder = builder
        self.start = len(builder.ids)
        self._base = self.start
        for segment in segments:
            self.append(*segment)

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        ends = self._builder.ends
        return ends[-1] if len(ends) > self.start else 0

    def append(self, segment: int, num_tokens: int) -> None:
        """Let the context go on with a segment."""
        before = self.num_tokens
        self._builder.ids.append(segment)
        self._builder.ends.append(before + num_tokens)

    def segments(self) -> list[tuple[int, int]]:
        """Ids and tokens of all segments."""
        ids = self._builder.ids[self.start :]
        ends = self._builder.ends[self.start :]
        return [(i, e - b) for i, e, b in zip(ids, ends, [0, *ends], strict=False)]
