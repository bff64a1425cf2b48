"""The limits of a scheduler, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.errors import ConfigError

SchedulingPolicy = Literal["fcfs", "priority"]
Rules = Literal["0.23", "0.33"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The scheduler's limits, under vLLM's names.

    *max_num_batched_tokens*: tokens computed in one step. *max_num_seqs*: running requests.
    *max_model_len*: prompt and answer together, in tokens; None for no limit.
    *long_prefill_token_threshold*: most tokens of one prompt in a step; 0 for no cap.
    *scheduler_reserve_full_isl*: admit only if every token known so far would fit now.
    *rules*: "0.33" or "0.23", the vLLM release where the two differ: 0.23 caps a long prefill even
    when it is the only request, ends the loop when a request preempts itself under priority
    scheduling, and counts every lookup instead of every admission.
    """

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: SchedulingPolicy = "fcfs"
    scheduler_reserve_full_isl: bool = True
    rules: Rules = "0.33"

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"max_model_len is {self.max_model_len} tokens; it must be 2 or more")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError(
                f"long_prefill_token_threshold is {self.long_prefill_token_threshold} tokens; "
                "it must be 0 (no cap) or more"
            )
