"""Logs of real text, cut into tokens and blocks: the content of every block is what was written.

Layouts are those of workloads/conversations.py. Blocks are chained from the first token on, so
equal text counts as equal only after equal text. Answers are text too: a later prompt that repeats
an answer hits its blocks.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from sim.errors import TraceError
from sim.hashing import HashFunction
from sim.keys import BlockKeys, ChunkKeys, TokenKeys
from workloads import fields
from workloads.arguments import real_number
from workloads.conversations import Exchange, exchanges
from workloads.lines import parse
from workloads.recorded import Recorded, Row
from workloads.rows import items
from workloads.tokenizers import tokenizer as tokenizer_named

Tokenize = Callable[[str], Sequence[int]]


class TextLog(Recorded):
    """The requests of a log of conversations, by arrival, with the hint `turn`.

    Arguments as for Mooncake. *tokenizer*: see workloads/tokenizers.py; a function from Python does
    too. *hash_function*: None numbers equal blocks; a name of `TokenKeys` hashes them as vLLM does,
    with the same hits. *gap_s*: seconds between requests of a log without times. Prompts without a
    token are bad rows; an answer without one is raised to one token and noted.

    Several requests of one line (ShareGPT) are numbered through in `request_id`.
    """

    format_name: ClassVar[str] = "conversation"
    time_field: str = "time"
    hints = frozenset({"turn"})

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int = 16,
        *,
        tokenizer: str | Callable[..., Any] = "bytes",
        hash_function: HashFunction | None = None,
        gap_s: float = 1.0,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        super().__init__(path, block_size, limit=limit, time_scale=time_scale, lenient=lenient)
        self.trace_block_size = self.block_size
        self.hash_function = hash_function
        self.gap_s = real_number("TextLog", "gap_s", gap_s)
        self._tokenize: Tokenize = (
            tokenizer_named(tokenizer) if isinstance(tokenizer, str) else tokenizer
        )
        self._chain: dict[tuple[int, bytes], int] = {}
        self._tokens = array("I")  # of prompts and answers, if they are to be hashed
        self._token_ends = array("q", [0])
        self._num_empty, self._num_timed, self._num_read = 0, 0, 0
        self._load(self._exchanges(), self._row)
        del self._chain, self._tokenize
        self._note()

    def _exchanges(self) -> Iterator[tuple[int, Exchange | ValueError]]:
        """Line number and request, or what is wrong with the line."""
        for line, text in items(self.path):
            try:
                found = list(exchanges(parse(text)))
            except ValueError as fault:
                yield line, fault
            else:
                yield from ((line, one) for one in found)

    def _row(self, exchange: Exchange | ValueError) -> Row:
        try:
            if isinstance(exchange, ValueError):
                raise exchange
            return self._request(exchange)
        finally:
            self._token_ends.append(len(self._tokens))  # bad rows have a place too

    def _request(self, exchange: Exchange) -> Row:
        prompt = np.asarray(list(self._tokenize(exchange.prompt)), dtype=np.uint32)
        answer = np.asarray(list(self._tokenize(exchange.answer)), dtype=np.uint32)
        if not len(prompt):
            raise ValueError("the prompt has no tokens; it must have at least one")
        self._num_empty += not len(answer)
        num_output = max(1, len(answer))
        fields.check_length(len(prompt) + num_output, self.block_size, "the number of tokens")
        tokens = np.concatenate([prompt, answer])
        time = self._num_read * self.gap_s if exchange.time is None else exchange.time
        self._num_read += 1
        self._num_timed += exchange.time is not None
        if self.hash_function is not None:
            self._tokens.frombytes(tokens.tobytes())
        hints = {"turn": exchange.turn}
        ids = self._blocks(tokens)
        return Row(time, len(prompt), num_output, ids, exchange.session, hints)

    def _blocks(self, tokens: np.ndarray[Any, np.dtype[np.uint32]]) -> list[int]:
        """A number for each full block that names all before it too."""
        data, width = tokens.tobytes(), 4 * self.block_size
        numbers, parent, chain = [], -1, self._chain
        for start in range(0, len(data) - width + 1, width):
            parent = chain.setdefault((parent, data[start : start + width]), len(chain))
            numbers.append(parent)
        return numbers

    def _note(self) -> None:
        if 0 < self._num_timed < self._num_read:
            raise TraceError(
                f"{self.path}: {self._num_timed} of {self._num_read} requests have a time; all or "
                "none must; remove the times or the rows without"
            )
        if not self._num_timed:
            self.notes += (f"no times are recorded; requests arrive {self.gap_s:g} s apart",)
        if self._num_empty:
            self.notes += (
                f"{self._num_empty} of {self._num_read} answers are empty; 1 token is sampled "
                "for them",
            )

    def _keys(self, row: int, start: int, stop: int, num_prompt: int, num_output: int) -> BlockKeys:
        if self.hash_function is not None:
            tokens = self._tokens[self._token_ends[row] : self._token_ends[row + 1]]
            return TokenKeys(tokens, self.block_size, hash_function=self.hash_function)
        size = self.block_size
        named = (stop - start) * size  # answers have names too
        return ChunkKeys(
            self._id_view[start:stop], size, size, named, num_prompt + num_output, -1 - row
        )
