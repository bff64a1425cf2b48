"""Replay without a clock: one request at a time through a block manager.

The quick answer to "how much of this traffic would be hit?". Nothing runs concurrently, so there
are no queues, no preemptions and no latencies; the engine has those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import process_time

from sim.cache import BlockManager
from sim.errors import ConfigError
from sim.garbage import no_cycle_collection
from sim.request import Request

PROGRESS_EVERY = 256  # requests


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay counted. Refused requests are in `requests` and `refused` only.

    Queries are the served prompts, as vLLM counts them: all tokens, also those that can never be
    hit (the last one, the partial block). `query_blocks` are their full blocks. `evicted_blocks`
    lost their content to new content. At the end `cached_blocks` hold content, of which
    `orphaned_blocks` cannot be hit, as some block before them is gone. `seconds` is CPU time of the
    loop, making requests included.
    """

    requests: int
    refused: int
    query_blocks: int
    hit_blocks: int
    query_tokens: int
    hit_tokens: int
    evicted_blocks: int
    cached_blocks: int
    orphaned_blocks: int
    seconds: float = field(compare=False)

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens over prompt tokens; None if nothing was served."""
        return self.hit_tokens / self.query_tokens if self.query_tokens else None

    @property
    def block_hit_rate(self) -> float | None:
        """Hit blocks over full blocks of the prompts; None if there were none."""
        return self.hit_blocks / self.query_blocks if self.query_blocks else None


@no_cycle_collection()
def replay(
    manager: BlockManager,
    requests: Iterable[Request],
    *,
    decode: bool = False,
    on_progress: Callable[[int], None] | None = None,
    hits: list[int] | None = None,
    cached: list[int] | None = None,
) -> ReplayResult:
    """Serve *requests* one after the other with *manager*, and count what was hit.

    Each prompt is looked up, given slots and freed before the next comes. With *decode* the answer
    gets slots too, all but its last token, which no engine stores. Requests come out as they went
    in. A request with more slots than the whole pool is refused: it changes nothing. *on_progress*
    is called with the number of requests done, now and then and at the end. *hits* gains the hit
    tokens of every request, -1 where it was refused; *cached* what
    `BlockManager.num_cached_of` says before it is served.

    ConfigError if a request's keys are for blocks of another size than the manager's.
    """
    block_size = manager.block_size
    num_slots = manager.num_blocks * block_size
    serve = manager.serve
    num_requests = refused = query_blocks = query_tokens = hit_tokens = 0
    evicted_before = manager.num_evicted_blocks
    start = process_time()
    for request in _reported(requests, on_progress) if on_progress else requests:
        if request.keys.block_size != block_size:
            raise _wrong_block_size(request, block_size)
        num_requests += 1
        num_prompt = request.num_prompt_tokens
        needed = num_prompt + request.max_tokens - 1 if decode else num_prompt
        if cached is not None:
            cached.append(manager.num_cached_of(request))
        fits = needed <= num_slots  # the manager may refuse by a rule of its own, too
        num_hit = serve(request, needed, now=request.arrival_time) if fits else None
        if hits is not None:
            hits.append(-1 if num_hit is None else num_hit)
        if num_hit is None:
            refused += 1
            continue
        query_tokens += num_prompt
        query_blocks += num_prompt // block_size
        hit_tokens += num_hit
    seconds = process_time() - start
    manager.check()
    return ReplayResult(
        requests=num_requests,
        refused=refused,
        query_blocks=query_blocks,
        hit_blocks=hit_tokens // block_size,
        query_tokens=query_tokens,
        hit_tokens=hit_tokens,
        evicted_blocks=manager.num_evicted_blocks - evicted_before,
        cached_blocks=manager.num_cached_blocks,
        orphaned_blocks=manager.num_orphaned_blocks,
        seconds=seconds,
    )


def _reported(requests: Iterable[Request], on_progress: Callable[[int], None]) -> Iterator[Request]:
    """*requests*, telling *on_progress* how many are done."""
    done = 0
    for request in requests:
        yield request
        done += 1
        if done % PROGRESS_EVERY == 0:
            on_progress(done)
    if done % PROGRESS_EVERY:
        on_progress(done)


def _wrong_block_size(request: Request, block_size: int) -> ConfigError:
    return ConfigError(
        f"request {request.request_id!r}: block_size of its keys is {request.keys.block_size}, of "
        f"the manager {block_size}; both must be equal; give the workload block_size={block_size}"
    )
