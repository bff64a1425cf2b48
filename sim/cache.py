"""The two contracts of the project: who hands out KV memory, and who chooses what to forget.

A `BlockManager` decides which blocks a request reuses, which it is given and what becomes of them.
An `EvictionPolicy` orders the cached blocks that nobody is using. Both speak of `Span`s: runs of
consecutive blocks of one prompt that share their history. A block-by-block manager hands its
policy spans of one block; the same policy serves both kinds.

Neither knows a clock (`now` is an argument), SimPy, files or global randomness.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from sim.events import EventSink
from sim.keys import BlockKeys
from sim.request import Request


class Span:
    """A run of consecutive blocks of one prompt that share one history.

    Blocks are counted from the start of the prompt: a span covers the blocks *start* to *start* +
    *num_blocks* - 1. Eviction takes the deepest of them first, so a span shrinks from its end.
    `prev_free`, `next_free` and `note` belong to the eviction policy.
    """

    __slots__ = ("next_free", "note", "num_blocks", "prev_free", "ref_cnt", "start")

    num_blocks: int
    start: int
    ref_cnt: int  # requests that use the span now; the policy may evict it at 0
    prev_free: Span  # unset until a policy links the span
    next_free: Span
    note: Any

    def __init__(self, num_blocks: int, start: int = 0) -> None:
        self.num_blocks = num_blocks
        self.start = start
        self.ref_cnt = 0
        self.note = None

    def key(self, i: int) -> Hashable | None:
        """The block key of block *i* of the span (0 is the shallowest); None if it is unhashed."""
        raise NotImplementedError  # every manager's spans know their content in their own way


class Hit(NamedTuple):
    """What `get_computed_blocks` found: valid until the manager's next change.

    The last span may be longer than the hit; *num_tokens* says how much of it counts.
    """

    num_tokens: int
    spans: Sequence[Span]


NO_HIT = Hit(0, ())


class Allocation(NamedTuple):
    """What `allocate_slots` gave: new memory only, in the order of the prompt, without the hits."""

    num_new_blocks: int
    spans: Sequence[Span]


class Pool(ABC):
    """What a policy may ask of the manager it serves."""

    num_blocks: int  # blocks that can hold KV (the null block is not among them)
    block_size: int  # tokens
    leaf_only: bool = False  # True: only spans that `may_evict` allows are to be offered

    def may_evict(self, span: Span) -> bool:
        """Whether a held *span* may be offered: in leaf mode not while longer content hangs on it.

        A policy asks only if `leaf_only`; what it skips keeps its place, until `unlocked`.
        """
        return True

    @abstractmethod
    def cut(self, span: Span, num_blocks: int) -> Span:
        """Keep the *num_blocks* deepest blocks in *span*; the new upper span is returned.

        The policy's own `split` is called before this returns.
        """


class EvictionPolicy(ABC):
    """Orders the spans that no request is using.

    The manager calls `release` when a span's last user lets go (the deepest span of a request
    first), `hit` each time a request reuses a span, `miss` for what a request must compute, and
    `victim` when it needs memory, always followed by `evicted`. Where a span's `ref_cnt` is 0 at
    the moment of `hit`, the span was evictable; otherwise another request is using it and the
    policy does not hold it.
    """

    max_span: int | None = None  # 1: this rule needs single blocks (exact, slower)
    ranks_unhashed: ClassVar[bool] = False
    """True: spans without content are ordered too, which `free_order="tail"` then asks for.
    False: the manager keeps them aside and always hands them out first."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """Hints that every request must carry (`Workload.hints`); checked before a run starts."""
    is_offline: ClassVar[bool] = False
    """True: `prepare` is called with all requests, in their order, before the run."""

    pool: Pool
    waiting: Collection[Request] = ()  # the scheduler's waiting queue, if one runs

    def prepare(self, requests: Sequence[Request]) -> None:
        """See the future (offline policies only): the requests in the order of their arrival."""

    def bind(self, pool: Pool) -> None:
        """Serve *pool*, from empty. Called once, before anything else."""
        self.pool = pool

    @abstractmethod
    def release(self, span: Span, request: Request, now: float) -> None:
        """*span* may be evicted from now on; its first release is its insertion."""

    @abstractmethod
    def hit(self, span: Span, request: Request, now: float) -> None:
        """*request* reuses *span*: it must not be offered again before it is released."""

    def miss(self, request: Request, start: int, stop: int) -> None:
        """*request* is about to get memory for the blocks *start* to *stop* - 1 of its prompt.

        They were not cached. Only full blocks are told, each once, before anything is evicted.
        """

    @property
    def hears_misses(self) -> bool:
        """Whether the class has a `miss` of its own; a manager need not call it otherwise."""
        return type(self).miss is not EvictionPolicy.miss

    def unlocked(self, span: Span) -> None:
        """Leaf mode only: *span* is held, and `Pool.may_evict` allows it from now on.

        What hung on it is gone, or another copy of its content was stored. Told as often as that
        happens, also if the policy knows already.
        """

    @abstractmethod
    def split(self, upper: Span, lower: Span) -> None:
        """*lower* was cut: its shallower part is now *upper*, a new span with the same history."""

    @abstractmethod
    def victim(self, num_blocks: int) -> tuple[Span, int]:
        """A held span and how many of its deepest blocks, 1 to *num_blocks*, may go now.

        Called only while some span is held.
        """

    @abstractmethod
    def evicted(self, span: Span, num_blocks: int) -> None:
        """Those blocks are gone; `span.num_blocks` is what is left and may be 0."""

    @abstractmethod
    def forget(self, span: Span) -> None:
        """A held span leaves for another reason (reset, eviction by id): no longer held.

        A span that lost its content while in use is released at last, and forgotten at once.
        """


class BlockState(NamedTuple):
    """What one block holds, as seen from outside: for checks, recordings and drawings."""

    key: Hashable | None  # None: no content that can be hit
    ref_cnt: int
    block_id: int | None  # None: this manager has no block ids


class BlockManager(Pool):
    """Decides which blocks a request reuses, which it is given and what becomes of them.

    The verbs are vLLM's (`v1/core/kv_cache_manager.py`). The caller owns
    `request.num_computed_tokens`: it adds the hit and what it schedules; `free` does not reset it.
    """

    caches_when_computed: ClassVar[bool] = False
    """True: the caller must report every computed chunk by `cache_blocks`. False: it may, but
    `allocate_slots` has already made the blocks findable (vLLM)."""

    enable_caching: bool = True  # False: nothing is ever findable, no hit is counted
    num_evicted_blocks: int = 0  # cached content given up for new content, over the whole run
    events: EventSink | None = None  # called with every KV event

    @abstractmethod
    def get_computed_blocks(self, request: Request) -> Hit:
        """The longest cached prefix of *request*, at most num_tokens - 1 tokens; changes nothing.

        The last known token is never a hit: it must be computed to sample the next one.
        """

    @abstractmethod
    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hit: Hit = NO_HIT,
        *,
        now: float = 0.0,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        has_scheduled_reqs: bool = True,
        reserved_blocks: int = 0,
        delay_cache_blocks: bool = False,
    ) -> Allocation | None:
        """Memory for the next *num_new_tokens* tokens, or None: no room, and nothing has changed.

        *hit* is adopted first (only on admission). Blocks filled by these tokens are findable at
        once, before anything is computed, unless *delay_cache_blocks*. The gates: with
        *full_sequence_must_fit* every token known so far must fit now; *reserved_blocks* stay
        free; the manager's watermark stays free for a request that waits while others run
        (*has_scheduled_reqs*).
        """

    grows_blindly: ClassVar[bool] = False
    """True: `grow` does not look at the requests' counters, which may then be out of date."""

    def grow(self, requests: Collection[Request], *, now: float = 0.0) -> None:
        """One more block for each of these decoding requests, whose table is full.

        The same as `allocate_slots(request, 1)` for each, in order; the caller has made sure that
        `num_free_blocks` is enough. Blocks that no other request can hit need not be stored here:
        the caller stores them by `cache_blocks` before it frees the request.
        """
        for request in requests:
            given = self.allocate_slots(request, 1, now=now)
            assert given is not None, "the caller asks only for blocks that are free"

    @abstractmethod
    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """The first *num_tokens* tokens are computed: blocks they fill become findable."""

    @abstractmethod
    def free(self, request: Request, *, now: float = 0.0) -> None:
        """*request* ends or is preempted: it lets go of its blocks, the deepest first.

        Its `status` is PREEMPTED if it will come back, anything else if it ends.
        """

    def serve(self, request: Request, num_tokens: int, *, now: float = 0.0) -> int | None:
        """Look up, allocate, free: the whole life of a request that runs alone.

        *num_tokens*: the prompt and as much of the answer as gets slots. The tokens hit, or None:
        there was no room. The decisions are those of the three verbs one after the other; the
        request comes out as it went in.
        """
        num_prompt = request.num_prompt_tokens
        hit = self.get_computed_blocks(request)
        num_new = num_prompt - hit.num_tokens
        given = self.allocate_slots(request, num_new, hit, now=now, has_scheduled_reqs=False)
        if given and num_tokens > num_prompt:
            request.num_computed_tokens = num_prompt
            request.num_output_tokens = num_tokens - num_prompt
            given = self.allocate_slots(
                request, num_tokens - num_prompt, now=now, has_scheduled_reqs=False
            )
        request.num_computed_tokens = num_tokens if given else num_prompt
        self.free(request, now=now)
        request.num_computed_tokens = request.num_output_tokens = 0
        return hit.num_tokens if given else None

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Forget all content; False, and no change, while any request holds a block."""

    @property
    @abstractmethod
    def num_free_blocks(self) -> int:
        """Blocks that no request is using, whether they hold content or not."""

    @property
    @abstractmethod
    def num_cached_blocks(self) -> int:
        """Free blocks that hold content and can be hit."""

    @property
    def num_orphaned_blocks(self) -> int:
        """Free blocks with content that cannot be hit now, since a block before them is gone.

        0 for managers in which that cannot happen.
        """
        return 0

    def num_cached_of(self, request: Request) -> int:
        """Tokens of the prompt that are cached, findable or not, as far as they might be hit.

        What exceeds the hit is behind a gap. -1: nothing is looked up for *request*.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return -1
        stop = (request.num_prompt_tokens - 1) // self.block_size
        return self._num_cached(request.keys, stop) * self.block_size

    def _num_cached(self, keys: BlockKeys, stop: int) -> int:
        """How many of the first *stop* blocks are cached, findable or not."""
        return sum(bool(self.copies(keys[i])) for i in range(stop))

    @property
    def usage(self) -> float:
        """The share of blocks that requests are using, 0 to 1 (vLLM's kv_cache_usage)."""
        return 1.0 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0

    @abstractmethod
    def free_blocks(self) -> Iterator[BlockState]:
        """The free blocks, the next to be handed out first (if the policy can tell)."""

    @abstractmethod
    def table(self, request_id: int | str) -> list[BlockState]:
        """The blocks that a request holds, in the order of its tokens."""

    @abstractmethod
    def num_stored_blocks(self, request_id: int | str) -> int | None:
        """How many leading blocks of a request are findable; None while none has been."""

    @abstractmethod
    def copies(self, key: Hashable) -> list[BlockState]:
        """The physical copies of one content, oldest first: a lookup finds the first."""

    @abstractmethod
    def check(self) -> None:
        """Raise AssertionError unless the books balance; every run ends with it."""
