"""One engine step: who computes how many tokens, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sim.cache import Span
from sim.request import Request
from sim.stats import PrefixCacheStats


class Scheduled(NamedTuple):
    """One request's part of a step: *num_tokens* tokens after the *num_computed* before them."""

    request: Request
    num_tokens: int
    num_computed: int
    kind: Literal["new", "resumed", "running"]
    spans: list[Span]  # the memory newly given; for an admission the whole table


@dataclass(slots=True)
class Step:
    """What one call of `schedule` decided.

    *num_decodes* running requests, which attend to *decode_context* tokens in all, have no row of
    their own, since all they do is compute one token each (`sim.macro`).
    """

    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    sampled: list[Request] = field(default_factory=list)  # by `update`: got a token, in order
    finished: list[Request] = field(default_factory=list)  # by `update`: and those that ended
    stats: PrefixCacheStats | None = None  # None: nobody was admitted
    num_decodes: int = 0
    decode_context: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is computed."""
        return not self.scheduled and not self.num_decodes
