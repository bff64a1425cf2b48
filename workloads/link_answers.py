"""Output identity: an answer that a later prompt contains gets the names it has there.

Traces name prompts only. The next turn of a conversation repeats the answer before it, so the
blocks that decoding filled could be hit; without a link they have names that nobody else uses.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Literal, NamedTuple

from sim.errors import ConfigError
from sim.keys import ChunkKeys
from sim.request import Request
from sim.workload import Workload
from workloads.arguments import one_of
from workloads.transforms import Transform

How = Literal["declared", "inferred", "both"]


class LinkAnswers(Transform):
    """*of* with answers linked to the prompts that continue them; content by equal chunks only.

    *how*: `declared` links what the trace says, the hint `parent` or the turns of a session;
    `inferred` links a request to the next one whose prompt begins with its last whole chunk, if no
    request before it had that chunk, and is long enough for prompt and answer. An inferred link may
    be wrong: the later prompt may go on differently within the chunk. `both` infers where nothing
    is declared. `num_declared`, `num_inferred`: how many answers were linked; the notes say so.

    Of a linked answer the whole chunks get names. Its prompt's partial chunk is renamed with them,
    so an unlinked repetition of the prompt no longer hits there (blocks smaller than chunks only).
    """

    def __init__(self, of: Workload, how: How = "both") -> None:
        super().__init__(of)
        one_of("LinkAnswers", "how", how, ("declared", "inferred", "both"))
        self.num_declared = self.num_inferred = 0
        self._links: dict[int | str, ChunkKeys] = {}
        self._find(how)
        self.notes += (
            f"{self.num_declared + self.num_inferred} of {len(of)} answers are linked to a later "
            f"prompt: {self.num_declared} as declared, {self.num_inferred} as inferred",
        )

    def __iter__(self) -> Iterator[Request]:
        for request in self.of:
            request.keys = self._links.get(request.request_id, request.keys)
            yield request

    def __len__(self) -> int:
        return len(self.of)

    def _find(self, how: How) -> None:
        """Go through the requests by arrival; each may continue some before it."""
        open_ends = _OpenEnds()
        turns: dict[Hashable, _End] = {}  # by request_id, and the latest of each session
        for request in self.of:
            end = _End.of(request)
            if how != "inferred":
                self._declare(request, end, turns)
            if how != "declared":
                for before in open_ends.within(end):
                    if before.name in self._links:
                        open_ends.close(before)
                    elif self._link(before, end):
                        open_ends.close(before)
                        self.num_inferred += 1
                open_ends.add(end)

    def _declare(self, request: Request, end: _End, turns: dict[Hashable, _End]) -> None:
        hints = request.hints or {}
        session = (request.session, hints.get("agent"))  # a sub-agent has turns of its own
        if "parent" in hints:
            before = turns.get(("request", hints["parent"]))
        else:
            before = None if request.session is None else turns.get(session)
        if before is not None and before.name not in self._links and self._link(before, end):
            self.num_declared += 1
        turns["request", request.request_id] = end
        if request.session is not None:
            turns[session] = end

    def _link(self, before: _End, after: _End) -> bool:
        """Name the answer of *before* by the prompt of *after*; False if nothing can be named."""
        old, new = before.keys, after.keys
        num_chunks = old.num_tokens // old.chunk_size
        if (
            num_chunks <= before.num_whole
            or new.num_prompt_tokens < old.num_tokens
            or not _continues(before, after)
        ):
            return False
        self._links[before.name] = ChunkKeys(
            new.ids[:num_chunks],
            old.chunk_size,
            old.block_size,
            num_chunks * old.chunk_size,
            old.num_tokens,
            old.output_id,
        )
        return True


class _End(NamedTuple):
    """A request that may be continued; *num_whole*: whole chunks of its prompt."""

    name: int | str
    keys: ChunkKeys
    num_whole: int

    @classmethod
    def of(cls, request: Request) -> _End:
        keys = request.keys
        if not isinstance(keys, ChunkKeys):
            raise ConfigError(
                f"LinkAnswers: the content of request {request.request_id!r} is not named by equal "
                "chunks; link the trace itself, before other transforms (answers of text and of "
                "synthetic traffic have their names already)"
            )
        whole = min(request.num_prompt_tokens, keys.num_prompt_tokens) // keys.chunk_size
        return cls(request.request_id, keys, whole)


def _continues(before: _End, after: _End) -> bool:
    """Whether *after* begins with all whole chunks of *before*'s prompt."""
    last = before.num_whole - 1
    if last < 0:
        return True
    ids = after.keys.ids
    return last < len(ids) and ids[last] == before.keys.ids[last]


class _OpenEnds:
    """Prompts whose last whole chunk was new, by that chunk, until they are continued."""

    def __init__(self) -> None:
        self._by_chunk: dict[int, _End] = {}
        self._seen: set[int] = set()

    def within(self, end: _End) -> list[_End]:
        """The open ends that the prompt of *end* contains."""
        chunks = end.keys.ids[: end.num_whole]
        return [self._by_chunk[chunk] for chunk in chunks if chunk in self._by_chunk]

    def add(self, end: _End) -> None:
        """*end* is open, if it brought something new."""
        ids = end.keys.ids[: end.num_whole]
        if end.num_whole and ids[-1] not in self._seen:
            self._by_chunk[ids[-1]] = end
        self._seen.update(ids)

    def close(self, end: _End) -> None:
        """*end* has been continued."""
        del self._by_chunk[end.keys.ids[end.num_whole - 1]]
