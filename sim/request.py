"""One prompt and its answer: what is asked for, and how far it has come."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum

from sim.keys import BlockKeys


class RequestStatus(Enum):
    """Where a request is in its life. Names are vLLM's; REFUSED is ours (vLLM raises instead)."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
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

    status: RequestStatus = RequestStatus.WAITING
    reason: str = ""  # why it was refused
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = -1  # hit tokens at the first admission; -1 before it
    num_preemptions: int = 0
    first_scheduled_time: float = math.nan
    first_token_time: float = math.nan
    finish_time: float = math.nan

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: the prompt and what has been sampled."""
        return self.num_prompt_tokens + self.num_output_tokens

    def fresh(self) -> Request:
        """The same request as its workload made it, nothing computed yet."""
        return Request(*(getattr(self, name) for name in _ASKED))


_ASKED = tuple(field.name for field in fields(Request))[:9]
