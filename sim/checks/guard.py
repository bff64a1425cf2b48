"""An eviction policy under guard: each call goes to it, each answer is held against the rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sim.cache import EvictionPolicy, Pool, Span
from sim.checks.contract import ContractBroken, NotPrepared, require
from sim.errors import KvsimError
from sim.request import Request

TRAITS = ("max_span", "ranks_unhashed", "needs", "is_offline")


class Guard(EvictionPolicy):
    """Serves a manager as *policy* does; `ContractBroken` at the first rule that *policy* breaks.

    *victims*: what was offered so far, as (first block, content of the deepest block, blocks).
    *call*: the method that is running, for reports of one that does not return.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        for name in TRAITS:
            setattr(self, name, getattr(policy, name))
        self.lists_in_order = "__iter__" in dir(policy) and getattr(policy, "lists_in_order", True)
        self.victims: list[tuple[int, object, int]] = []
        self.call = "__init__"
        self._held: dict[Span, None] = {}
        self._known: dict[Span, None] = {}

    @property
    def waiting(self) -> Collection[Request]:
        """The scheduler's waiting queue, as the policy sees it."""
        return self.policy.waiting

    @waiting.setter
    def waiting(self, queue: Collection[Request]) -> None:
        self.policy.waiting = queue

    def _do(self, name: str, *arguments: Any) -> Any:
        """Call the policy; it must not raise, nor change what belongs to the manager."""
        self.call = name
        users = {span: span.ref_cnt for span in self._known}
        num_held = self._num_held()
        try:
            result = getattr(self.policy, name)(*arguments)
        except KvsimError as error:
            if name == "prepare":
                raise NotPrepared(error) from error
            raise ContractBroken(f"{name}() raises nothing", f"{error}") from error
        except ContractBroken:  # from `split`, if the policy has had a span cut
            raise
        except Exception as error:
            raise ContractBroken(
                f"{name}() raises nothing", f"{type(error).__name__}: {error}"
            ) from error
        for span, ref_cnt in users.items():
            require(
                span.ref_cnt == ref_cnt,
                "ref_cnt belongs to the manager; a policy only reads it",
                f"{name}() changed the ref_cnt of {_show(span)} from {ref_cnt} to {span.ref_cnt}",
            )
        require(
            self._num_held() == num_held,
            "num_blocks belongs to the manager; a policy has a span cut by pool.cut",
            f"{name}() changed the length of a span",
        )
        return result

    def _num_held(self) -> int:
        return sum(span.num_blocks for span in self._held)

    def bind(self, pool: Pool) -> None:
        super().bind(pool)
        self._do("bind", pool)
        require(
            getattr(self.policy, "pool", None) is pool,
            "bind() keeps the pool (call super().bind(pool))",
            "policy.pool is not the pool it serves",
        )

    def prepare(self, requests: Sequence[Request]) -> None:
        self._do("prepare", requests)

    def release(self, span: Span, request: Request, now: float) -> None:
        self._known[span] = self._held[span] = None
        self._do("release", span, request, now)

    def hit(self, span: Span, request: Request, now: float) -> None:
        self._known[span] = None
        self._do("hit", span, request, now)
        if span.ref_cnt == 0:
            self._held.pop(span, None)

    def miss(self, request: Request, start: int, stop: int) -> None:
        self._do("miss", request, start, stop)

    def unlocked(self, span: Span) -> None:
        self._do("unlocked", span)

    def split(self, upper: Span, lower: Span) -> None:
        self._known[upper] = self._known[lower] = None
        if lower in self._held:
            self._held[upper] = None
        self._do("split", upper, lower)

    def victim(self, num_blocks: int) -> tuple[Span, int]:
        answer = self._do("victim", num_blocks)
        held = f"{self._num_held()} blocks are held"
        require(
            isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Span),
            "victim() returns a span and a number of blocks; it is called only if a span is held",
            f"it returned {answer!r}, while {held}",
        )
        span, num_evicted = answer
        require(
            span.ref_cnt == 0,
            "a span in use is never offered",
            f"victim({num_blocks}) offered {_show(span)}, which {span.ref_cnt} requests use",
        )
        require(
            span in self._held,
            "only spans that are held (released, and not reused, evicted or forgotten) are offered",
            f"victim({num_blocks}) offered {_show(span)}, which is not held; {held}",
        )
        require(
            isinstance(num_evicted, int) and 1 <= num_evicted <= min(num_blocks, span.num_blocks),
            "victim(num_blocks) offers 1 to num_blocks blocks, and no more than the span has",
            f"victim({num_blocks}) offered {num_evicted} blocks of {_show(span)}",
        )
        require(
            not self.pool.leaf_only or self.pool.may_evict(span),
            "in leaf mode (pool.leaf_only) only spans that pool.may_evict allows are offered",
            f"victim({num_blocks}) offered {_show(span)}, which longer cached content hangs on",
        )
        self.victims.append((span.start, span.key(span.num_blocks - 1), num_evicted))
        return span, num_evicted

    def evicted(self, span: Span, num_blocks: int) -> None:
        self._do("evicted", span, num_blocks)
        if span.num_blocks == 0:
            self._held.pop(span, None)

    def forget(self, span: Span) -> None:
        self._do("forget", span)
        self._held.pop(span, None)

    def __iter__(self) -> Iterator[Span]:
        """The spans held, as the policy lists them, if it can."""
        if "__iter__" not in dir(self.policy):
            return iter(self._held)
        listed: list[Span] = list(self._do("__iter__"))
        lost = [span for span in self._held if span not in listed]
        extra = [span for span in listed if span not in self._held]
        require(
            not lost and not extra and len(listed) == len(self._held),
            "iterating a policy lists each span that it holds once: none is lost in release, hit, "
            "split, evicted or forget",
            f"lost: {_show_all(lost)}; not held: {_show_all(extra)}; "
            f"{len(listed)} listed, {len(self._held)} held",
        )
        return iter(listed)


def _show(span: Span) -> str:
    last = span.start + span.num_blocks - 1
    return f"blocks {span.start} to {last} (ends with {span.key(span.num_blocks - 1)!r})"


def _show_all(spans: Sequence[Span]) -> str:
    return ", ".join(map(_show, spans)) or "none"
