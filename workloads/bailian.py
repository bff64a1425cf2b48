"""Bailian's traces (Qwen): JSON rows of a chat service, with the hash of every 16 prompt tokens.

A row is `{"chat_id", "parent_chat_id": -1 or another row's, "timestamp": s, "input_length",
"output_length", "type": "text" ..., "turn": 1 ..., "hash_ids": [...]}`. Source: the public
repository alibaba-edu/qwen-bailian-usagetraces-anon. Read from its description, the files were not
at hand: whether ids are hashes of prefixes or of blocks makes no difference here, since each is
chained with those before it, and whether the partial block at the end has one is left to the row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from workloads import fields
from workloads.arguments import whole_number
from workloads.lines import lines, parse
from workloads.recorded import Recorded, Row


class Bailian(Recorded):
    """The requests of a Bailian trace, by arrival, with the hints `type`, `turn` and `parent`.

    Arguments as for Mooncake, 16 tokens to an id. `session` is the chat_id that a conversation
    began with, `parent` the request_id of the turn before, None if it is not in the file. A prompt
    has floor or ceil(input_length / 16) ids.
    """

    format_name: ClassVar[str] = "Bailian"
    hints = frozenset({"type", "turn", "parent"})

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int = 16,
        *,
        trace_block_size: int = 16,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        super().__init__(path, block_size, limit=limit, time_scale=time_scale, lenient=lenient)
        self.trace_block_size = whole_number("Bailian", "trace_block_size", trace_block_size, 1)
        self._chain: dict[tuple[int, int], int] = {}
        self._chats: dict[int, tuple[int, int]] = {}  # chat_id -> its row, first of the session
        self._num_rows = 0
        self._load(lines(self.path), self._row)
        del self._chats, self._chain

    def _row(self, line: bytes) -> Row:
        index, self._num_rows = self._num_rows, self._num_rows + 1
        row = fields.record(parse(line))
        timestamp = fields.time(row, "timestamp", self.unit)
        num_prompt = fields.whole(row, "input_length")
        num_output = fields.whole(row, "output_length")
        fields.check_length(num_prompt + num_output, self.block_size, "the number of tokens")
        hash_ids = fields.ids(row, "hash_ids")
        if len(hash_ids) != num_prompt // self.trace_block_size:
            names = ("hash_ids", "input_length")
            fields.check_num_ids(len(hash_ids), num_prompt, self.trace_block_size, names)
        session, hints = self._place(index, row)
        return Row(timestamp, num_prompt, num_output, self._chained(hash_ids), session, hints)

    def _chained(self, hash_ids: list[int]) -> list[int]:
        """A number for each id that names the ids before it too."""
        numbers, parent, chain = [], -1, self._chain
        for hash_id in hash_ids:
            parent = chain.setdefault((parent, hash_id), len(chain))
            numbers.append(parent)
        return numbers

    def _place(self, index: int, row: fields.Record) -> tuple[int, Mapping[str, Any]]:
        """The session of a row, and its hints."""
        chat = fields.whole(row, "chat_id", 0)
        parent, first = self._chats.get(fields.whole(row, "parent_chat_id", -1), (None, chat))
        self._chats[chat] = (index, first)
        kind, turn = fields.text(row, "type"), fields.whole(row, "turn", 0)
        return first, {"type": kind, "turn": turn, "parent": parent}
