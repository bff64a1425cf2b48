"""One prompt and its answer: what is asked for, and how far it has come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from operator import attrgetter
from typing import Any

from sim.keys import BlockKeys


class RequestStatus(Enum):
    """Where a request is in its life. Names are vLLM's; REFUSED is ours (vLLM raises instead)."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"
    REFUSED = "refused"


@dataclass(eq=False)
class Request:
    """One prompt and its answer.

    The first group of fields is the workload's and never changes; the second is the run's. Times
    are in seconds, NaN until they happen. The answer's length is known beforehand, as in a
    recorded trace: the request ends when *max_tokens* tokens have been sampled.
    """

    request_id: int | str
    keys: BlockKeys
    num_prompt_tokens: int
    max_tokens: int
    arrival_time: float = 0.0
    priority: int = 0  # smaller is served first (priority scheduling only)
    skip_reading_prefix_cache: bool = False  # vLLM sets it for prompt_logprobs
    abort_time: float | None = None  # the client hangs up at this moment
    session: int | str | None = None
    hints: Mapping[str, Any] | None = None  # what the workload knows besides: turn, type, ...
    follows: tuple[int | str, ...] = ()  # arrives only when these requests have ended ...
    think_time: float = 0.0  # ... and so many seconds later; arrival_time is then a guess

    status: RequestStatus = field(default=RequestStatus.WAITING, init=False)
    reason: str = field(default="", init=False)  # why it was refused
    num_output_tokens: int = field(default=0, init=False)
    num_computed_tokens: int = field(default=0, init=False)
    num_cached_tokens: int = field(default=-1, init=False)  # hit at the first admission, -1 before
    num_orphan_tokens: int = field(default=0, init=False)  # cached then, behind a gap; -1: unread
    num_preemptions: int = field(default=0, init=False)
    first_scheduled_time: float = field(default=math.nan, init=False)
    first_token_time: float = field(default=math.nan, init=False)
    finish_time: float = field(default=math.nan, init=False)

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: the prompt and what has been sampled."""
        return self.num_prompt_tokens + self.num_output_tokens

    def fresh(self) -> Request:
        """The same request as its workload made it, nothing computed yet."""
        return Request(*_asked(self))


_asked = attrgetter(*(f.name for f in fields(Request) if f.init))
