"""What a scheduler does with a block manager, for tests that need no scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_backend.watch import watch_every
from policies.reference import ReferenceBlockManager
from sim.cache import BlockManager
from sim.keys import ChunkKeys, SegmentKeys, TokenKeys
from sim.request import Request
from workloads.mooncake import Mooncake


class Serving:
    """Serves prompts with one manager, as a scheduler would; answers occur nowhere else."""

    def __init__(self, manager: BlockManager) -> None:
        self.manager = manager
        self._ids = count()
        self._answers = count(1_000_000)

    def prompt(
        self,
        tokens: Iterable[int],
        num_outputs: int = 1,
        *,
        answer: Iterable[int] | None = None,
        **content: Any,
    ) -> Request:
        """A request for *num_outputs* tokens, or for *answer*; *content*: LoRA, images, salt."""
        tokens = list(tokens)
        answer = [next(self._answers) for _ in range(num_outputs)] if answer is None else [*answer]
        keys = TokenKeys([*tokens, *answer], self.manager.block_size, **content)
        return Request(next(self._ids), keys, len(tokens), len(answer))

    def look_up(self, tokens: Iterable[int], **content: Any) -> int:
        """How many tokens a prompt would hit now."""
        return self.manager.get_computed_blocks(self.prompt(tokens, **content)).num_tokens

    def admit(self, request: Request, num_tokens: int | None = None, **gates: Any) -> int | None:
        """Hit tokens of *request*, now scheduled whole or up to *num_tokens*; None if refused."""
        hit = self.manager.get_computed_blocks(request)
        num_new = (num_tokens or request.num_tokens) - hit.num_tokens
        if self.manager.allocate_slots(request, num_new, hit, **gates) is None:
            return None
        request.num_computed_tokens = hit.num_tokens + num_new
        return hit.num_tokens

    def decode(self, request: Request) -> bool:
        """The next token is sampled and given its slot; False if there is no room for it."""
        request.num_output_tokens += 1
        given = self.manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += given
        return given

    def run(self, request: Request) -> int | None:
        """*request* from admission to its end: its hit tokens; None if refused."""
        hit = self.admit(request)
        if hit is not None:
            for _ in range(request.max_tokens - 1):  # the last token gets no slot
                assert self.decode(request)
            self.manager.free(request)
        return hit

    def use_key(self, key: int) -> bool:
        """One access of a cache trace, as one block; True if it hits."""
        block_size = self.manager.block_size
        keys = SegmentKeys([key], [block_size + 1], block_size)
        request = Request(next(self._ids), keys, block_size + 1, max_tokens=1)
        hit = self.admit(request, block_size)  # not the last token: it would take a second block
        self.manager.free(request)
        return bool(hit)

    def hits(self, trace: str) -> list[int]:
        """The positions, from 1, at which a trace of one-letter keys hits."""
        return [i for i, letter in enumerate(trace, 1) if self.use_key(ord(letter))]

    def holds(self, letters: str) -> str:
        """Those of *letters* that are cached."""
        size = self.manager.block_size
        return "".join(
            a for a in letters if self.manager.copies(SegmentKeys([ord(a)], [size], size)[0])
        )

    def queue(self) -> list[int | None]:
        """The free queue, front first."""
        return [block.block_id for block in self.manager.free_blocks()]

    def state(self) -> Any:
        """All that an operation of the reference manager may change, to be compared."""
        manager = cast("ReferenceBlockManager", self.manager)
        blocks = [(b.block_id, b.ref_cnt, b.block_hash, b.start) for b in manager.blocks]
        tables = {key: [b.block_id for b in table] for key, table in manager.tables.items()}
        copies = {key: [b.block_id for b in manager.cached.copies(key)] for key in manager.cached}
        counts = (manager.num_free_blocks, manager.num_cached_blocks, manager.num_evicted_blocks)
        return blocks, tables, copies, counts, self.queue(), dict(manager.num_cached)

    def table(self, request: Request) -> list[int | None]:
        """The block ids of a request."""
        return [block.block_id for block in self.manager.table(request.request_id)]


@pytest.fixture
def serving() -> type[Serving]:
    """`serving(manager)` serves prompts with a block manager."""
    return Serving


@pytest.fixture(autouse=True)
def _shadow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every test but the slow: each request reads only what is its own (L0)."""
    if request.node.get_closest_marker("slow") is None:
        watch_every(monkeypatch.setattr, ReferenceBlockManager)


@pytest.fixture
def all_ids(kvsim_data: Path) -> Callable[[str], Iterator[Request]]:
    """The requests of a Mooncake trace in which every id is a full block that can be hit.

    Convention "all ids": the prompt gets one token more, so that also its last id can be a hit.
    """

    def requests(trace: str) -> Iterator[Request]:
        workload = Mooncake(kvsim_data / "mooncake" / f"{trace}_trace.jsonl.xz", 512)
        for i in range(len(workload)):
            ids = workload.hash_ids(i)
            num_tokens = len(ids) * 512 + 1
            keys = ChunkKeys([*ids, 2**40 + i], 512, 512, num_tokens, num_tokens + 1, -1 - i)
            yield Request(i, keys, num_tokens, 1, float(i))

    return requests
