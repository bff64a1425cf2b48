"""One serving replica in simulated time: requests arrive, steps are scheduled, computed, ended.

SimPy keeps the clock. One process brings the arrivals; one process serves them step by step. At
one and the same instant arrivals and aborts come first, then a step ends and the next begins; a
request is data, not a process.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any

import simpy
from simpy.events import EventPriority

from sim.cache import BlockManager
from sim.errors import ConfigError, KvsimError
from sim.follow_ups import FollowUps
from sim.garbage import no_cycle_collection
from sim.latency import LatencyModel, Linear, StepLoad
from sim.macro import MacroScheduler
from sim.recorder import Recorder, RunRecord
from sim.request import Request, RequestStatus
from sim.scheduler import Scheduler
from sim.scheduler_config import SchedulerConfig
from sim.step import Step
from sim.workload import LATEST, Workload

Process = Generator[simpy.Event, Any, None]

NUM_SAMPLES = 1000


class EndOfInstant(simpy.Event):
    """Happens *delay* seconds from now, after everything else that happens at that instant."""

    PRIORITY = EventPriority(2)  # SimPy's own: URGENT 0, NORMAL 1

    def __init__(self, env: simpy.Environment, delay: float = 0.0) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, self.PRIORITY, delay)


class Engine:
    """Continuous batching on one replica, with the vLLM v1 scheduler.

    *until*: stop at this moment, in seconds; what would happen at that very moment does not
    (SimPy's rule), and requests still in the system are reported as unfinished.
    *series_interval*: seconds between samples of the state; by default a thousandth of the time
    over which requests arrive.
    *macro_steps*: False schedules every request in every step; the results are the same.

    An engine runs once: its manager holds what the run has cached.
    """

    def __init__(
        self,
        manager: BlockManager,
        *,
        latency: LatencyModel | None = None,
        scheduler: SchedulerConfig | None = None,
        until: float | None = None,
        series_interval: float | None = None,
        macro_steps: bool = True,
    ) -> None:
        if until is not None and not until > 0:
            raise ConfigError(f"until is {until} s; it must be greater than 0")
        if series_interval is not None and not series_interval > 0:
            raise ConfigError(f"series_interval is {series_interval} s; it must be greater than 0")
        self.manager = manager
        self.latency = latency or Linear()
        self.scheduler = (MacroScheduler if macro_steps else Scheduler)(manager, scheduler)
        self.until = until
        self.series_interval = series_interval

    @no_cycle_collection()
    def run(self, workload: Iterable[Request]) -> RunRecord:
        """Serve every request of *workload* (in arrival order) and record what happens.

        The requests themselves are left as they are: the run works on fresh copies (a `Workload`
        yields fresh ones anyway).
        """
        fresh = isinstance(workload, Workload)
        requests = list(workload) if fresh else [request.fresh() for request in workload]
        self._check(requests)
        self.env = env = simpy.Environment()
        self.recorder = Recorder(self.manager, self._interval(requests))
        self._wake_up = env.event()
        self._arrivals_left = len(requests)
        self._follow_ups = FollowUps(requests)
        env.process(self._arrive([request for request in requests if not request.follows]))
        env.process(self._serve())
        for request in requests:
            if request.abort_time is not None:
                env.process(self._abort(request, request.abort_time))
        env.run(until=self.until)
        self.scheduler.settle()
        self._follow_ups.settle()
        self._sample(env.now)
        self.manager.check()
        return self.recorder.finish(requests, env.now)

    def _check(self, requests: Sequence[Request]) -> None:
        last = 0.0
        for request in requests:
            if not request.arrival_time <= LATEST:
                raise KvsimError(
                    f"request {request.request_id} arrives at {request.arrival_time:g} s; it must "
                    f"be at most {LATEST:g} s, or the clock tells no microseconds; count from the "
                    "start of the traffic"
                )
            if request.arrival_time < last and not request.follows:
                raise KvsimError(
                    f"request {request.request_id} arrives at {request.arrival_time} s, before the "
                    f"one ahead of it ({last} s); a workload yields requests in arrival order"
                )
            last = max(last, 0.0 if request.follows else request.arrival_time)
            if request.keys.block_size != self.manager.block_size:
                raise ConfigError(
                    f"the workload's block_size is {request.keys.block_size} tokens, the "
                    f"manager's {self.manager.block_size}; give both the same"
                )

    def _interval(self, requests: Sequence[Request]) -> float:
        if self.series_interval is not None:
            return self.series_interval
        return (requests[-1].arrival_time / NUM_SAMPLES if requests else 0.0) or 1.0

    # Processes

    def _arrive(self, requests: Sequence[Request]) -> Process:
        """Bring each request at its time."""
        for request in requests:
            if request.arrival_time > self.env.now:
                yield self.env.timeout(request.arrival_time - self.env.now)
            self._admit(request)

    def _follow(self, request: Request) -> Process:
        """Bring a request that waited for others, once its user has thought."""
        yield self.env.timeout(request.think_time)
        self._admit(request)

    def _admit(self, request: Request) -> None:
        """Queue a request now, or refuse it with a reason."""
        if request.follows:
            self._follow_ups.arrived(request, self.env.now)
        self._arrivals_left -= 1
        request.reason = self.refusal(request)
        if request.reason:
            request.status = RequestStatus.REFUSED
            self._ended([request])
        else:
            self.scheduler.add(request)
        if not self._wake_up.triggered:
            self._wake_up.succeed()

    def _ended(self, requests: Sequence[Request]) -> bool:
        """*requests* finished, or never will; whether anything that waited comes now."""
        released = self._follow_ups.released_by(requests)
        for request in released:
            self.env.process(self._follow(request))
        return bool(released)

    def _abort(self, request: Request, abort_time: float) -> Process:
        yield self.env.timeout(max(abort_time, request.arrival_time))
        self.scheduler.abort(request, now=self.env.now)
        self._ended([request])

    def _serve(self) -> Process:
        """Step after step while there is work; sleep until an arrival when there is none."""
        scheduler, recorder = self.scheduler, self.recorder
        while True:
            if not (scheduler.running or scheduler.waiting):
                self._sample(self.env.now)
                if not self._arrivals_left:
                    return
                self._wake_up = self.env.event()
                yield self._wake_up
                yield EndOfInstant(self.env)
                continue
            now = self._skip_steps()
            step = scheduler.schedule(now)
            recorder.scheduled(step)
            if now >= recorder.next_sample:
                self._sample(now)
            if step.is_empty and not step.preempted:
                raise self._stuck()
            end = now + self._step_time(step)
            yield EndOfInstant(self.env, end - self.env.now)
            scheduler.update(step, self.env.now)
            if self._ended(step.finished):
                yield EndOfInstant(self.env)  # who follows at once is there for the next step

    def _skip_steps(self) -> float:
        """Compute the steps in which nothing happens; when the next one begins."""
        scheduler, recorder, now = self.scheduler, self.recorder, self.env.now
        if isinstance(scheduler, MacroScheduler):
            now, num_steps = scheduler.skip_steps(
                now, self.env.peek(), recorder.next_sample, self.latency
            )
            recorder.skipped(num_steps)
        return now

    def _step_time(self, step: Step) -> float:
        load = StepLoad(step.num_decodes, step.decode_context)
        for row in step.scheduled:
            load.add(row.num_tokens, row.num_computed)
        return 0.0 if step.is_empty else self.latency.step_time(load)

    def _sample(self, now: float) -> None:
        self.recorder.sample(now, self.scheduler.running, len(self.scheduler.waiting))

    # What cannot be served

    def refusal(self, request: Request) -> str:
        """Why *request* can never be served here, or "".

        Real vLLM refuses what exceeds max_model_len and would wait for ever for the rest.
        """
        config, manager = self.scheduler.config, self.manager
        if request.num_prompt_tokens < 1:
            return "the prompt is empty; it needs at least 1 token"
        if request.max_tokens < 1:
            return f"max_tokens is {request.max_tokens}; a request samples at least 1 token"
        limit = config.max_model_len
        if limit is not None and request.num_prompt_tokens >= limit:
            return (
                f"the prompt has {request.num_prompt_tokens} tokens; "
                f"max_model_len {limit} leaves room for {limit - 1}"
            )
        num_slots = request.num_prompt_tokens + request.max_tokens - 1  # the last token needs none
        if limit is not None:
            num_slots = min(num_slots, limit - 1)
        num_blocks = -(-num_slots // manager.block_size)
        if num_blocks > manager.num_blocks:
            return (
                f"prompt and answer need {num_blocks} blocks of {manager.block_size} tokens; "
                f"the pool has {manager.num_blocks}"
            )
        if not config.enable_chunked_prefill and num_slots > config.max_num_batched_tokens:
            return (
                f"prompt and answer have {num_slots} tokens to compute; without chunked prefill "
                f"a step computes at most max_num_batched_tokens {config.max_num_batched_tokens}"
            )
        return ""

    def _stuck(self) -> KvsimError:
        return KvsimError(
            f"at {self.env.now} s nothing can be scheduled although "
            f"{len(self.scheduler.running)} requests run, {len(self.scheduler.waiting)} wait and "
            f"{self.manager.num_free_blocks} of {self.manager.num_blocks} blocks are free; "
            "the block manager refuses what it has room for"
        )
