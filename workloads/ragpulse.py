"""RAGPulse's trace: prompts of a retrieval service as lists of content ids, one per passage.

A row is `{"timestamp": "s", "input_length", "output_length", "hash_ids": {"sys_prompt": [...],
"passages_ids": [...], "history": [...], "web_search": [...], "user_input": [...]}, "session_id"}`.
Ids name content wherever it stands; files beside the trace (`1_sys_prompt` ... `5_web_search`) have
the tokens of each. Source: flashserve/RAGPulse, `data/`.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

from sim.errors import TraceError
from sim.keys import BlockKeys, SegmentKeys
from workloads import fields
from workloads.arguments import real_number
from workloads.lines import json_lines, lines, parse
from workloads.recorded import Recorded, Row

PARTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
SIDECARS = {
    "1_sys_prompt": "sys_prompt_id",
    "2_passages": "passage_id",
    "3_history": "history_id",
    "4_user_input": "user_input_id",
    "5_web_search": "web_search_id",
}
WEEK = 604_800.0  # s


class RagPulse(Recorded):
    """The requests of the RAGPulse trace, by arrival; content counts as equal only as a prefix.

    Arguments as for Mooncake. Passages are chained in the order system prompt, passages, history,
    web search, question. The 6 to 12 tokens by which their lengths fall short of the prompt's (a
    template between them) stand at the end and are shared with nobody.

    The recording restarts its clock; *restart_s* seconds are added from there on (the session ids
    show that the second part began exactly a week after the first).
    """

    format_name: ClassVar[str] = "RAGPulse"

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int = 16,
        *,
        restart_s: float = WEEK,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        super().__init__(path, block_size, limit=limit, time_scale=time_scale, lenient=lenient)
        self.restart_s = real_number("RagPulse", "restart_s", restart_s)
        self.trace_block_size = 1
        self.items = array("q")  # content ids as in the file, parallel to the chained ones
        self._ends = array("q")
        self._chain: dict[tuple[int, int], int] = {}
        self._last_time, self._ahead, self._num_restarts = 0.0, 0.0, 0
        self._tokens = _token_lengths(self.path)
        self._load(lines(self.path), self._row)
        del self._chain, self._tokens
        if self._num_restarts:
            self.notes += (
                f"the clock restarts {self._num_restarts} time(s); {self.restart_s:g} s were added "
                "from there on",
            )

    @property
    def inputs(self) -> tuple[Path, ...]:
        return (self.path, *(_sidecar_path(self.path, *one) for one in SIDECARS.items()))

    def _keys(self, row: int, start: int, stop: int, num_prompt: int, num_output: int) -> BlockKeys:
        ids, ends = self._id_view[start:stop].tolist(), self._ends[start:stop]
        named = ends[-1] if ends else 0
        ids.append(-1 - row)
        ends.append(num_prompt + num_output)
        return SegmentKeys(ids, ends, self.block_size, named)

    def _row(self, line: bytes) -> Row:
        row = fields.record(parse(line))
        num_prompt = fields.whole(row, "input_length")
        num_output = fields.whole(row, "output_length")
        fields.check_length(num_prompt + num_output, self.block_size, "the number of tokens")
        parts = fields.record(fields.field(row, "hash_ids"), "hash_ids")
        items = [i for part in PARTS for i in fields.ids(parts, part)]
        ends = list(accumulate(self._length(i) for i in items))
        if ends and ends[-1] > num_prompt:
            raise ValueError(
                f"hash_ids name {ends[-1]} tokens; input_length is {num_prompt} and must be at "
                "least as much"
            )
        session = fields.name_of(row, "session_id")
        time = self._time(fields.field(row, "timestamp"))
        self.items.extend(items)
        self._ends.extend(ends)
        return Row(time, num_prompt, num_output, self._chained(items), session)

    def _length(self, item: int) -> int:
        if item not in self._tokens:
            raise ValueError(f"content id {item} is in none of the files with token_length")
        return self._tokens[item]

    def _chained(self, items: list[int]) -> list[int]:
        """A number for each item that names the items before it too."""
        numbers, parent = [], -1
        for item in items:
            parent = self._chain.setdefault((parent, item), len(self._chain))
            numbers.append(parent)
        return numbers

    def _time(self, value: Any) -> float:
        """Seconds on a clock that does not restart; the field is a number spelt as text."""
        seconds = fields.number(value, "timestamp") if type(value) is str else value
        time = fields.time({"timestamp": seconds}, "timestamp", "seconds")
        if time < self._last_time - self.restart_s / 2:
            self._ahead += self.restart_s
            self._num_restarts += 1
        self._last_time = time
        return self._ahead + time


def _token_lengths(trace: Path) -> dict[int, int]:
    """Tokens by content id, from the files beside *trace*."""
    return {
        item: num_tokens
        for stem, name in SIDECARS.items()
        for item, num_tokens in _sidecar(trace, stem, name)
    }


def _sidecar_path(trace: Path, stem: str, name: str) -> Path:
    found = sorted(trace.parent.glob(f"{stem}.jsonl*"))
    if not found:
        raise TraceError(
            f"{trace}: {stem}.jsonl is not beside it; it has the token_length of every {name}; "
            "copy it there from RAGPulse's data folder"
        )
    return found[0]


def _sidecar(trace: Path, stem: str, name: str) -> Iterator[tuple[int, int]]:
    path = _sidecar_path(trace, stem, name)
    for line, value in json_lines(path):
        try:
            row = fields.record(value)
            yield fields.whole(row, name, 0), fields.whole(row, "token_length")
        except ValueError as fault:
            raise TraceError(f"{path}:{line}: {fault}; correct the line") from None
