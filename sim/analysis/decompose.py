"""One trace, one pool, one policy, many hit rates: what each rule of an engine costs or gives.

"LRU with 10,000 blocks" has another number in every tool, because each leaves out other rules.
Here they are added one at a time, from blocks without any order to a serving engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.engine import Engine
from sim.footprint import all_ids
from sim.keys import ChunkKeys
from sim.replay import replay
from sim.request import Request
from sim.workload import Workload

if TYPE_CHECKING:
    from sim.cache import BlockManager

MakeManager = Callable[[str], "BlockManager"]
"""An empty LRU manager with this free order."""


@dataclass(frozen=True, slots=True)
class Level:
    """Hits under the rules so far. *like*: tools that count so, if there are any."""

    rule: str
    unit: str  # blocks or tokens
    num_hits: int
    num_queries: int
    like: str = ""

    @property
    def hit_rate(self) -> float:
        """Hits / queries; 0 if nothing was asked for."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0


def decompose(
    workload: Workload, num_blocks: int, make: MakeManager, engine: dict[str, Any] | None = None
) -> Iterator[Level]:
    """The hit rate of LRU in *num_blocks* usable blocks, rule by rule.

    *make*: makes the managers of the later rules; *engine*: options of `Engine` for the last. The
    first rule counts every id of a trace, so it is there only for traces with one id per block.
    Every rule counts the same requests, those that are `fitting`.
    """
    requests = fitting(workload, make, engine)
    size = workload.block_size
    if requests and isinstance(requests[0].keys, ChunkKeys):
        keys = requests[0].keys
        if keys.block_size == keys.chunk_size:
            ids = ([f.keys[i] for i in range(f.num_stored)] for f in map(all_ids, requests))
            yield Level("every id is a block", "blocks", *_flat(ids, num_blocks), "libCacheSim")
    full = [_full_blocks(request) for request in requests]
    flat = _flat(full, num_blocks)
    yield Level("only full blocks", "blocks", *flat)
    hits, queries = _prefixes(full, num_blocks, deepest_first=False)
    yield Level("only a prefix can hit", "blocks", hits, queries, "kvlint")
    tokens = sum(request.num_prompt_tokens for request in requests)
    yield Level("counted in tokens", "tokens", hits * size, tokens, "LMCache's simulator")
    hits, _ = _prefixes(full, num_blocks, deepest_first=True)
    yield Level("the deepest blocks go first", "tokens", hits * size, tokens, "prefixlens")
    for rule, order, decode, like in (
        ("+ last token, partial blocks", "unhashed_first", False, "vLLM >= 0.24, one at a time"),
        ("  the same, freed to the tail", "tail", False, "vLLM <= 0.23, one at a time"),
        ("+ answers take blocks", "tail", True, ""),
    ):
        result = replay(make(order), requests, decode=decode)
        yield Level(rule, "tokens", result.hit_tokens, result.query_tokens, like)
    totals = Engine(make("tail"), **(engine or {})).run(workload).totals
    found = int(totals["prefix_cache_hits"]), int(totals["prefix_cache_queries"])
    yield Level("+ a clock: concurrency, pins", "tokens", *found, "vLLM <= 0.23")


def fitting(
    workload: Workload, make: MakeManager, engine: dict[str, Any] | None = None
) -> list[Request]:
    """The requests of *workload* that an engine does not refuse, such as those too large for it."""
    refusal = Engine(make("tail"), **(engine or {})).refusal
    return [request for request in workload if not refusal(request)]


def _full_blocks(request: Request) -> list[Any]:
    keys = request.keys
    return [keys[i] for i in range(request.num_prompt_tokens // keys.block_size)]


def _flat(chains: Iterable[Sequence[Any]], num_blocks: int) -> tuple[int, int]:
    """LRU on single blocks, the first of a prompt first, nothing held: (hits, queries)."""
    cached: OrderedDict[Any, None] = OrderedDict()
    num_hits = num_queries = 0
    for chain in chains:
        num_queries += len(chain)
        for key in chain:
            if key in cached:
                num_hits += 1
                cached.move_to_end(key)
                continue
            cached[key] = None
            if len(cached) > num_blocks:
                cached.popitem(last=False)
    return num_hits, num_queries


def _prefixes(
    chains: Iterable[Sequence[Any]], num_blocks: int, *, deepest_first: bool
) -> tuple[int, int]:
    """LRU where a block hits only if all before it do; a prompt's own blocks are used as one."""
    cached: OrderedDict[Any, None] = OrderedDict()
    num_hits = num_queries = 0
    for chain in chains:
        num_queries += len(chain)
        for key in chain:
            if key not in cached:
                break
            num_hits += 1
        for key in reversed(chain) if deepest_first else chain:
            cached[key] = None
            cached.move_to_end(key)
        while len(cached) > num_blocks:
            cached.popitem(last=False)
    return num_hits, num_queries
