"""The vLLM v1 scheduler: which requests compute how many tokens in the next step.

One step: running requests first, in list order, then waiting ones, under one token budget. A
request that finds no memory preempts the last of the running list (by recompute). Source: vLLM
0.33.0 `v1/core/sched/scheduler.py`, synchronous scheduling, one full-attention group; replays the
recorded schedules of vLLM 0.23, 0.32 and 0.33 with no difference (docs/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from sim.cache import BlockManager, Hit
from sim.needs import policy_of
from sim.request import Request, RequestStatus
from sim.scheduler_config import SchedulerConfig
from sim.stats import PrefixCacheStats
from sim.step import Scheduled, Step
from sim.waiting import FCFSQueue, PriorityQueue, WaitingQueue


class Scheduler:
    """Decides step by step; the caller computes each step and reports back with `update`."""

    def __init__(self, manager: BlockManager, config: SchedulerConfig | None = None) -> None:
        self.manager = manager
        self.config = config or SchedulerConfig()
        self.waiting: WaitingQueue = (
            PriorityQueue() if self.config.policy == "priority" else FCFSQueue()
        )
        if (policy := policy_of(manager)) is not None:
            policy.waiting = cast("Collection[Request]", self.waiting)
        self.running: list[Request] = []
        self._was_reset = False

    def add(self, request: Request) -> None:
        """*request* arrives and waits for its turn."""
        request.status = RequestStatus.WAITING
        self.waiting.add(request)

    def abort(self, request: Request, *, now: float = 0.0) -> bool:
        """The client hung up: *request* leaves and its blocks are freed. False if it was gone."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.manager.free(request, now=now)
        elif request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            self.waiting.remove(request)
        else:
            return False
        request.status = RequestStatus.ABORTED
        request.finish_time = now
        return True

    def settle(self) -> None:
        """Bring the counters of every running request up to date."""

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; False while any request holds memory."""
        done = self.manager.reset_prefix_cache()
        self._was_reset = self._was_reset or done
        return done

    def schedule(self, now: float = 0.0) -> Step:
        """Plan the next step and give its requests their memory."""
        step = self._new_step()
        cap = self._prefill_cap()
        budget = self._schedule_running(step, cap, self.config.max_num_batched_tokens, now)
        if not step.preempted:
            self._admit_waiting(step, cap, budget, now)
        for row in step.scheduled:
            row.request.num_computed_tokens += row.num_tokens
        return step

    def _new_step(self) -> Step:
        step = Step()
        if self._was_reset:
            step.stats = PrefixCacheStats(reset=True)
            self._was_reset = False
        return step

    def _prefill_cap(self) -> int:
        """The most tokens that one request may compute in this step."""
        config = self.config
        alone = len(self.running) + len(self.waiting) <= 1
        if config.long_prefill_token_threshold and not (alone and config.rules == "0.33"):
            return config.long_prefill_token_threshold
        return config.max_num_batched_tokens

    def _schedule_running(
        self, step: Step, cap: int, budget: int, now: float, first: int = 0
    ) -> int:
        """Running requests from the *first* on, in list order; the token budget that is left."""
        running, config = self.running, self.config
        i = first
        while i < len(running) and budget > 0:
            request = running[i]
            computed = request.num_computed_tokens
            num_tokens = min(request.num_tokens - computed, cap, budget)
            if config.max_model_len is not None:
                num_tokens = min(num_tokens, config.max_model_len - 1 - computed)
            if num_tokens <= 0:
                i += 1
                continue
            allocation = self.manager.allocate_slots(request, num_tokens, now=now)
            while allocation is None:
                victim, given_back = self._preempt(step, now)
                i -= given_back > 0
                budget += given_back
                if victim is request:
                    break
                allocation = self.manager.allocate_slots(request, num_tokens, now=now)
            if allocation is None:  # it preempted itself
                if config.policy == "priority" and config.rules == "0.33":
                    continue
                break
            step.scheduled.append(
                Scheduled(request, num_tokens, computed, "running", list(allocation.spans))
            )
            budget -= num_tokens
            i += 1
        return budget

    def _preempt(self, step: Step, now: float) -> tuple[Request, int]:
        """Stop one running request; the tokens it had already been given in this step."""
        if self.config.policy == "priority":
            victim = max(self.running, key=lambda r: (r.priority, r.arrival_time))
            self.running.remove(victim)
        else:
            victim = self.running.pop()
        victim.status = RequestStatus.PREEMPTED
        self.manager.free(victim, now=now)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.give_back(victim)
        step.preempted.append(victim)
        for row in step.scheduled:
            if row.request is victim:
                step.scheduled.remove(row)
                return victim, row.num_tokens
        return victim, 0

    def _admit_waiting(self, step: Step, cap: int, budget: int, now: float) -> None:
        """Waiting requests from the head, until one does not fit: nothing overtakes it."""
        config, running, waiting = self.config, self.running, self.waiting
        while waiting and budget > 0 and len(running) < config.max_num_seqs:
            request = waiting.head()
            hit = self.manager.get_computed_blocks(request)
            if config.rules == "0.23":
                self._count(step, request, hit)
            num_tokens = min(request.num_tokens - hit.num_tokens, cap)
            if num_tokens > budget and not config.enable_chunked_prefill:
                return
            num_tokens = min(num_tokens, budget)
            if request.num_cached_tokens < 0:
                self._note_orphans(request, hit)
            allocation = self.manager.allocate_slots(
                request,
                num_tokens,
                hit,
                now=now,
                full_sequence_must_fit=config.scheduler_reserve_full_isl,
                has_scheduled_reqs=bool(running),
            )
            if allocation is None:
                return
            waiting.pop()
            running.append(request)
            if config.rules == "0.33":
                self._count(step, request, hit)
            resumed = request.status is RequestStatus.PREEMPTED
            self._admit(request, hit, now)
            spans = [*hit.spans, *allocation.spans]
            step.scheduled.append(
                Scheduled(
                    request,
                    num_tokens,
                    hit.num_tokens,
                    "resumed" if resumed else "new",
                    spans,
                )
            )
            budget -= num_tokens

    def _count(self, step: Step, request: Request, hit: Hit) -> None:
        if self.manager.enable_caching and not request.skip_reading_prefix_cache:
            if step.stats is None:
                step.stats = PrefixCacheStats()
            step.stats.record(request, hit.num_tokens)

    def _note_orphans(self, request: Request, hit: Hit) -> None:
        """Note what is cached but cannot be hit, before memory is given out."""
        cached = self.manager.num_cached_of(request)
        request.num_orphan_tokens = max(0, cached - hit.num_tokens) if cached >= 0 else -1

    @staticmethod
    def _admit(request: Request, hit: Hit, now: float) -> None:
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = hit.num_tokens
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = hit.num_tokens
            request.first_scheduled_time = now

    def update(self, step: Step, now: float = 0.0) -> None:
        """*step* was computed at *now*: tokens are sampled, requests finish.

        A request samples a token if all its known tokens are computed. The last token of an answer
        never gets a slot: the request ends before it could be computed.
        """
        for row in step.scheduled:
            request = row.request
            if request.status is not RequestStatus.RUNNING:  # aborted while it was computed
                continue
            decodes = request.num_output_tokens and row.num_computed == request.num_tokens - 1
            if self.manager.caches_when_computed and not decodes:
                self.manager.cache_blocks(request, request.num_computed_tokens)
            if request.num_computed_tokens < request.num_tokens:
                continue
            step.sampled.append(request)
            request.num_output_tokens += 1
            if request.num_output_tokens == 1:
                request.first_token_time = now
            if request.num_output_tokens >= self._num_outputs(request):
                self._finish(step, request, now)

    def _num_outputs(self, request: Request) -> int:
        """How many tokens *request* samples in the end."""
        limit = self.config.max_model_len
        if limit is None:
            return request.max_tokens
        return min(request.max_tokens, limit - request.num_prompt_tokens)

    def _finish(self, step: Step, request: Request, now: float) -> None:
        self.manager.free(request, now=now)
        request.status = RequestStatus.FINISHED
        request.finish_time = now
        self.running.remove(request)
        step.finished.append(request)
