"""Workloads made from another: parts of it, at other speeds, for several tenants, together.

`{use: window, of: {use: mooncake, path: ...}, stop_s: 600}`. Transforms nest. All keep the order of
arrival and the content, except where one says otherwise.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path

import numpy as np

from sim.errors import ConfigError
from sim.keys import BlockKeys, ChunkKeys, SegmentKeys, TokenKeys
from sim.request import Request
from sim.workload import Workload
from workloads.arguments import real_number, whole_number
from workloads.scoped_keys import ScopedKeys
from workloads.streams import stream


class Transform(Workload):
    """A workload made from *of*, with its block size, hints and notes."""

    def __init__(self, of: Workload) -> None:
        self.of = of
        self.block_size, self.hints = of.block_size, of.hints
        self.notes, self.has_content = of.notes, of.has_content
        self._num: int | None = None

    @property
    def inputs(self) -> tuple[Path, ...]:
        return self.of.inputs

    def __len__(self) -> int:
        if self._num is None:
            self._num = sum(1 for _ in self)
        return self._num


class Window(Transform):
    """The requests that arrive from *start_s* up to, not including, *stop_s*; time begins there.

    Who follows a request that is left out arrives at its own time.
    """

    def __init__(self, of: Workload, start_s: float = 0.0, stop_s: float | None = None) -> None:
        super().__init__(of)
        self.start_s = real_number("Window", "start_s", start_s)
        self.stop_s = math.inf if stop_s is None else real_number("Window", "stop_s", stop_s)
        if not len(self):
            raise ConfigError(
                f"Window: no request arrives from {start_s} s to {self.stop_s} s; move the window"
            )
        self.notes += (f"{len(self)} of {len(of)} requests are in the window",)

    def __iter__(self) -> Iterator[Request]:
        inside = (r for r in self.of if self.start_s <= r.arrival_time < self.stop_s)
        for request in _among_themselves(inside):
            yield _moved(request, lambda time: time - self.start_s)


class Scale(Transform):
    """All times multiplied by *time_scale*: 0.5 is twice the load, 0 all at once.

    Thinking takes as long as before.
    """

    def __init__(self, of: Workload, time_scale: float) -> None:
        super().__init__(of)
        self.time_scale = real_number("Scale", "time_scale", time_scale)

    def __iter__(self) -> Iterator[Request]:
        return (_moved(request, lambda time: time * self.time_scale) for request in self.of)


class Poissonise(Transform):
    """The same requests in the same order, but arriving as a Poisson process of the same rate.

    That takes bursts out of a trace, and pauses between turns too. *rate*: another rate, in
    requests a second.
    """

    def __init__(self, of: Workload, rate: float | None = None, seed: int = 0) -> None:
        super().__init__(of)
        self.seed = whole_number("Poissonise", "seed", seed, 0)
        if rate is None:
            last = max(request.arrival_time for request in of)
            rate = len(of) / last if last else 1.0
        self.rate = real_number("Poissonise", "rate", rate, above=0)

    def __iter__(self) -> Iterator[Request]:
        rng = stream(self.seed, "poissonise")
        times = np.cumsum(rng.standard_exponential(len(self.of))) / self.rate
        for request, time in zip(self.of, times.tolist(), strict=True):
            request.arrival_time, request.follows = time, ()
            yield request


class SampleSessions(Transform):
    """A *share* of the sessions, each as a whole, drawn at random; others disappear.

    A request without a session is one of its own. The smaller of two shares is part of the larger.
    """

    def __init__(self, of: Workload, share: float, seed: int = 0) -> None:
        super().__init__(of)
        self.share = real_number("SampleSessions", "share", share, above=0)
        seed = whole_number("SampleSessions", "seed", seed, 0)
        sessions = list(dict.fromkeys(_session(request) for request in of))
        drawn = stream(seed, "sample").random(len(sessions)) < self.share
        self._kept = {session for session, kept in zip(sessions, drawn, strict=True) if kept}
        if not self._kept:
            raise ConfigError(f"SampleSessions: share {share} keeps no session; raise it")
        self.notes += (f"{len(self._kept)} of {len(sessions)} sessions were kept",)

    def __iter__(self) -> Iterator[Request]:
        return _among_themselves(r for r in self.of if _session(r) in self._kept)


class BlockSize(Transform):
    """The same content in blocks of *block_size* tokens, for content that is known by ids."""

    def __init__(self, of: Workload, block_size: int) -> None:
        super().__init__(of)
        self.block_size = whole_number("BlockSize", "block_size", block_size, 1)

    def __iter__(self) -> Iterator[Request]:
        for request in self.of:
            request.keys = _divided(request.keys, self.block_size)
            yield request


class Merge(Transform):
    """Two workloads at once; each keeps its times. *shared*: equal content is shared among them.

    Request and session ids get the number of their workload, 0 or 1, in front. Hints are those
    that both give.
    """

    def __init__(self, of: Workload, other: Workload, shared: bool = False) -> None:
        super().__init__(of)
        if other.block_size != of.block_size:
            raise ConfigError(
                f"Merge: block_size is {of.block_size} of one and {other.block_size} of the other "
                "workload; give both the same"
            )
        self.other, self.shared = other, shared
        self.hints = of.hints & other.hints
        self.notes += other.notes
        self.has_content = of.has_content and other.has_content

    @property
    def inputs(self) -> tuple[Path, ...]:
        return (*self.of.inputs, *self.other.inputs)

    def __iter__(self) -> Iterator[Request]:
        parts = (self._part(number, one) for number, one in enumerate((self.of, self.other)))
        return heapq.merge(*parts, key=lambda request: request.arrival_time)

    def _part(self, number: int, workload: Workload) -> Iterator[Request]:
        for request in workload:
            request.request_id = f"{number}:{request.request_id}"
            request.follows = tuple(f"{number}:{name}" for name in request.follows)
            if request.session is not None:
                request.session = f"{number}:{request.session}"
            if not self.shared:
                request.keys = ScopedKeys(request.keys, ("part", number))
            yield request


class Tenants(Transform):
    """Sessions handed to *num_tenants* tenants that share nothing, with weights k ** -*zipf*.

    Whoever had content in common may then be strangers: this is what salts cost. Hint: tenant.
    """

    def __init__(self, of: Workload, num_tenants: int, zipf: float = 0.0, seed: int = 0) -> None:
        super().__init__(of)
        self.num_tenants = whole_number("Tenants", "num_tenants", num_tenants, 1)
        self.seed = whole_number("Tenants", "seed", seed, 0)
        weights = np.arange(1, num_tenants + 1) ** -real_number("Tenants", "zipf", zipf)
        self._total = np.cumsum(weights / weights.sum())
        self.hints |= {"tenant"}

    def __iter__(self) -> Iterator[Request]:
        rng, tenants = stream(self.seed, "tenants"), dict[Hashable, int]()
        for request in self.of:
            session = _session(request)
            if session not in tenants:
                drawn = int(np.searchsorted(self._total, rng.random(), side="right"))
                tenants[session] = min(drawn, self.num_tenants - 1)
            tenant = tenants[session]
            request.hints = {**(request.hints or {}), "tenant": tenant}
            request.keys = ScopedKeys(request.keys, ("tenant", tenant), is_salt=True)
            yield request


def _among_themselves(requests: Iterable[Request]) -> Iterator[Request]:
    """*requests*, which follow only each other: whom they followed besides is left out."""
    known: set[int | str] = set()
    for request in requests:
        known.add(request.request_id)
        request.follows = tuple(name for name in request.follows if name in known)
        yield request


def _session(request: Request) -> Hashable:
    """The session; a request without one is a session of its own."""
    return ("", request.request_id) if request.session is None else request.session


def _moved(request: Request, move: Callable[[float], float]) -> Request:
    request.arrival_time = move(request.arrival_time)
    if request.abort_time is not None:
        request.abort_time = move(request.abort_time)
    return request


def _divided(keys: BlockKeys, block_size: int) -> BlockKeys:
    if isinstance(keys, ScopedKeys):
        inner = _divided(keys.keys, block_size)
        return ScopedKeys(inner, keys.scope, is_salt=keys.is_salt)
    if isinstance(keys, ChunkKeys):
        ids, named = keys.ids, keys.num_prompt_tokens
        return ChunkKeys(ids, keys.chunk_size, block_size, named, keys.num_tokens, keys.output_id)
    if isinstance(keys, SegmentKeys):
        return SegmentKeys(keys.ids, keys.ends, block_size, keys.num_shareable_tokens)
    if isinstance(keys, TokenKeys):
        return TokenKeys(
            keys.tokens(0, len(keys) + 1),
            block_size,
            hash_function=keys.hash_function,
            lora=keys.lora,
            images=keys.images,
            salt=keys.salt,
        )
    raise ConfigError(f"BlockSize: keys of type {type(keys).__name__} cannot be divided anew")
