"""The same schedule without looking at every request in every step.

Requests that only decode are kept in a `Calendar`; only the others are scheduled one by one. While
nothing but decoding can happen, whole steps are skipped over in a tight loop. Wherever the closed
form does not hold (no room for all that need a block, more decodes than the budget, priorities
with a prefill under way) the plain scheduler decides that step. `Engine(macro_steps=False)` runs
every step the plain way, with the same results.
"""

from __future__ import annotations

from sim.cache import BlockManager
from sim.calendar import Calendar
from sim.latency import LatencyModel, StepLoad
from sim.request import Request
from sim.scheduler import Scheduler
from sim.scheduler_config import SchedulerConfig
from sim.step import Step


class MacroScheduler(Scheduler):
    """A `Scheduler` whose steps cost what changes in them, not what runs.

    The first requests of `running` are those in the calendar, in the same order. A decoding
    request behind a prefill stays out of it until the prefill is done.
    """

    def __init__(self, manager: BlockManager, config: SchedulerConfig | None = None) -> None:
        super().__init__(manager, config)
        self.calendar = Calendar(manager.block_size)
        self._head_is_blocked = False  # the head found no room, and nothing has changed since
        self._in_step = False

    def add(self, request: Request) -> None:
        super().add(request)
        if self.config.policy == "priority":
            self._head_is_blocked = False

    def abort(self, request: Request, *, now: float = 0.0) -> bool:
        if request in self.calendar.entries:
            self.calendar.leave(request)
            request.num_computed_tokens += self._in_step
            self._store(request)
        self._head_is_blocked = False
        return super().abort(request, now=now)

    def settle(self) -> None:
        for request in self.calendar.entries:
            self.calendar.settle(request)
            request.num_computed_tokens += self._in_step

    # One step

    def schedule(self, now: float = 0.0) -> Step:
        self._in_step = True
        calendar, config, num_running = self.calendar, self.config, len(self.running)
        num_decodes, budget = len(calendar.entries), config.max_num_batched_tokens
        if num_decodes > budget or (num_running > num_decodes and config.policy != "fcfs"):
            return self._plain_step(now)
        if not self._give_blocks(now):
            return self._plain_step(now)
        step, cap = self._new_step(), self._prefill_cap()
        step.num_decodes, step.decode_context = num_decodes, calendar.context
        budget -= num_decodes
        if num_running > num_decodes:
            self._head_is_blocked = False
            budget = self._schedule_running(step, cap, budget, now, first=num_decodes)
        if self.waiting and not step.preempted and not self._head_is_blocked:
            self._admit_waiting(step, cap, budget, now)
            # 0.23 counts every lookup, so there the head must be tried in every step.
            self._head_is_blocked = not step.scheduled and config.rules == "0.33"
        for row in step.scheduled:
            row.request.num_computed_tokens += row.num_tokens
        return step

    def _plain_step(self, now: float) -> Step:
        """Let the plain scheduler decide this step."""
        for request in list(self.calendar.entries):
            self.calendar.leave(request)
            self._store(request)
        self._head_is_blocked = False
        return super().schedule(now)

    def _give_blocks(self, now: float) -> bool:
        """What the requests in the calendar need in this step; False, and no change, if no room."""
        calendar, manager = self.calendar, self.manager
        needing, filling = calendar.needing(), calendar.filling()
        if needing and len(needing) > manager.num_free_blocks:
            return False
        if needing:
            if not manager.grows_blindly:
                for request in needing:
                    calendar.settle(request)
            manager.grow(needing, now=now)
            if not self.config.scheduler_reserve_full_isl:
                self._head_is_blocked = False  # evictions may have cut its hit, and its first chunk
        for request in filling:  # behind the growth: with block_size 1 it is the same block
            self._head_is_blocked = False  # it may hit what is stored now
            calendar.settle(request)
            manager.cache_blocks(request, request.num_computed_tokens + 1)
        return True

    def update(self, step: Step, now: float = 0.0) -> None:
        calendar = self.calendar
        calendar.advance()
        if calendar.next_end < calendar.step:
            for request in calendar.ending():
                self._store(request)
                self._finish(step, request, now)
        if step.scheduled:
            super().update(step, now)
            self._join_calendar()
        if step.finished:
            self._head_is_blocked = False
        self._in_step = False

    def _join_calendar(self) -> None:
        """Requests that now only decode join, as far as no prefill runs ahead of them."""
        running, entries = self.running, self.calendar.entries
        while len(entries) < len(running) and _decodes(running[len(entries)]):
            self._join(running[len(entries)])

    def _join(self, request: Request) -> None:
        private = request.keys.private_from
        own = (
            private is not None
            and request.num_computed_tokens // self.manager.block_size >= private
        )
        stores = not self.manager.caches_when_computed and not (own and self.manager.events is None)
        self.calendar.join(request, self._num_outputs(request), stores)

    def _store(self, request: Request) -> None:
        """Make findable what was computed in the calendar and nobody else could hit before."""
        if not self.manager.caches_when_computed:
            self.manager.cache_blocks(request, request.num_computed_tokens)

    # Many steps

    def skip_steps(
        self, now: float, before: float, sample_at: float, latency: LatencyModel
    ) -> tuple[float, int]:
        """Compute every step from *now* on in which requests only decode and none of them ends.

        Stops in front of the first step that ends at or after *before*, begins at or after
        *sample_at*, has no room or could admit a request. Returns when that step begins, and how
        many steps were computed.
        """
        calendar, first_step = self.calendar, self.calendar.step
        num_decodes, next_end = len(calendar.entries), calendar.next_end
        if len(self.running) > num_decodes or first_step >= next_end or self._may_admit():
            return now, 0
        load, step_time = StepLoad(num_decodes), latency.step_time
        while calendar.step < next_end and now < sample_at:
            load.decode_context = calendar.context
            end = now + step_time(load)
            if end >= before or not self._give_blocks(now):
                break
            calendar.step += 1
            calendar.context += num_decodes
            now = end
            if self.waiting and self._may_admit():
                break
        return now, calendar.step - first_step

    def _may_admit(self) -> bool:
        """Whether the next step must be scheduled with care."""
        num_running, config = len(self.running), self.config
        if num_running > config.max_num_batched_tokens or self._was_reset:
            return True
        return (
            bool(self.waiting)
            and not self._head_is_blocked
            and num_running < config.max_num_seqs
            and num_running < config.max_num_batched_tokens
        )


def _decodes(request: Request) -> bool:
    """Whether all known tokens but the one sampled last are computed."""
    return request.num_output_tokens > 0 and (request.num_computed_tokens == request.num_tokens - 1)
