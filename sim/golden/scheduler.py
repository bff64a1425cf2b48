"""Recordings of the scheduler: arrivals in, schedules, evictions and statistics out."""

from __future__ import annotations

from typing import Any

from sim.cache import BlockManager
from sim.events import KVEvent
from sim.golden.recording import (
    Hashes,
    Observer,
    as_recorded,
    check_supported,
    comparable_events,
    evicted,
    is_classic,
    require_same,
    require_same_usage,
    token_keys,
)
from sim.keys import TokenKeys
from sim.request import Request
from sim.scheduler import Scheduler
from sim.scheduler_config import SchedulerConfig
from sim.spec.build import build
from sim.stats import PrefixCacheStats
from sim.step import Step


def replay_scheduler(recording: dict[str, Any], manager: str) -> int:
    """Replay every step; the number of steps, or `Difference`.

    A manager without block ids follows the reference manager, which has them, step by step.
    """
    check_supported(recording)
    replay = SchedulerReplay(recording, "reference")
    follower = None if manager == "reference" else SchedulerReplay(recording, manager)
    for step in recording["steps"]:
        replay.step(step)
        if follower:
            follower.do(step["step"])
            what = f"{manager} beside reference"
            require_same(step["step"], what, follower.view(), replay.view())
    for each in filter(None, (replay, follower)):
        each.manager.check()
        if "engine" in recording:
            each.compare_engine(recording["engine"])
    return len(recording["steps"])


class SchedulerReplay:
    """A scheduler and its manager driven by recorded arrivals and outputs."""

    def __init__(self, recording: dict[str, Any], manager: str) -> None:
        self.config = config = recording["config"]
        classic = is_classic(recording)
        self.manager: BlockManager = build(
            "manager",
            manager,
            known={
                "num_blocks": config["num_blocks"],
                "block_size": config["block_size"],
                "free_order": "tail" if classic else "unhashed_first",
                "null_block": True,
                "enable_caching": config.get("enable_caching", True),
                "watermark": config.get("watermark", 0.0),
                "max_model_len": config["max_model_len"],
            },
            where="--manager",
        )
        self.scheduler = Scheduler(
            self.manager,
            SchedulerConfig(
                max_num_batched_tokens=config["max_num_batched_tokens"],
                max_num_seqs=config["max_num_seqs"],
                max_model_len=config["max_model_len"],
                enable_chunked_prefill=config.get("enable_chunked_prefill", True),
                long_prefill_token_threshold=config.get("long_prefill_token_threshold", 0),
                policy=config.get("policy", "fcfs"),
                scheduler_reserve_full_isl=config.get("reserve_full_isl", True),
                rules="0.23" if classic else "0.33",
            ),
        )
        self.hashes = Hashes(recording)
        self.observer = Observer(self.manager, self.hashes)
        self.arrivals: dict[str, dict[str, Any]] = {}
        self.all_arrivals = recording["arrivals"]
        self.actions = recording["actions"]
        self.requests: dict[str, Request] = {}  # those still in the system
        self.totals = PrefixCacheStats()
        self.num_preemptions = 0
        self.num_cached_tokens: dict[str, int] = {}
        self.last: tuple[Step, list[KVEvent]] = (Step(), [])

    def do(self, k: int) -> Step:
        """One step of the scheduler: arrivals, actions, schedule, outputs."""
        for arrival in self.all_arrivals:
            if arrival["step"] == k:
                self._arrive(arrival)
        for action in self.actions:
            if action["step"] == k:
                self._act(action)
        step = self.scheduler.schedule()
        self.scheduler.update(step)
        self.totals.add(step.stats or PrefixCacheStats())
        self.num_preemptions += len(step.preempted)
        for request in step.finished:
            name = str(request.request_id)
            del self.requests[name]
            self.num_cached_tokens[name] = request.num_cached_tokens
        for row in step.scheduled:
            self._learn(row.request)
        self.last = step, self.observer.drain()
        return step

    def step(self, recorded: dict[str, Any]) -> None:
        """Do one step and compare everything with the recording."""
        k = recorded["step"]
        step = self.do(k)
        self._compare_schedule(k, step, recorded)
        self._compare_state(k, recorded)

    def view(self) -> dict[str, Any]:
        """What the last step did and left, in everything but block ids."""
        step, events = self.last
        return {
            **self.observer.view(self.requests.values()),
            **self._queues(),
            "scheduled": [{**row, "blocks": None} for row in self._rows(step)],
            "preempted": [request.request_id for request in step.preempted],
            "stats": step.stats or PrefixCacheStats(),
            "events": as_recorded(events, self.hashes),
        }

    def _arrive(self, arrival: dict[str, Any]) -> None:
        self.arrivals[arrival["id"]] = arrival
        prompt = arrival["prompt"]
        request = Request(
            request_id=arrival["id"],
            keys=token_keys(arrival, self.config, prompt + arrival["output"]),
            num_prompt_tokens=len(prompt),
            max_tokens=arrival["max_tokens"],
            arrival_time=arrival["arrival"],
            priority=arrival.get("priority", 0),
        )
        self.requests[arrival["id"]] = request
        self._learn(request)
        self.scheduler.add(request)

    def _learn(self, request: Request) -> None:
        assert isinstance(request.keys, TokenKeys)
        num_known = request.num_tokens // self.manager.block_size
        self.hashes.learn(request.keys, min(num_known, len(request.keys)))

    def _act(self, action: dict[str, Any]) -> None:
        if action["do"] == "reset":
            self.scheduler.reset_prefix_cache()
        elif action["id"] in self.requests:
            self.scheduler.abort(self.requests.pop(action["id"]))

    def _compare_schedule(self, k: int, step: Step, recorded: dict[str, Any]) -> None:
        require_same(k, "scheduled", self._rows(step), recorded["scheduled"])
        require_same(k, "preempted", [r.request_id for r in step.preempted], recorded["preempted"])
        names = [r.request_id for r in step.finished]
        require_same(k, "finished", names, [name for name, _ in recorded["finished"]])
        require_same(k, "sampled", self._sampled(step), recorded["sampled"])
        if "stats" in recorded:
            stats = step.stats or PrefixCacheStats()
            ours = {key: getattr(stats, key) for key in recorded["stats"]}
            require_same(k, "stats", ours, recorded["stats"])

    def _rows(self, step: Step) -> list[dict[str, Any]]:
        return [
            {
                "id": row.request.request_id,
                "n": row.num_tokens,
                "computed": row.num_computed,
                "kind": row.kind,
                "blocks": [getattr(span, "block_id", None) for span in row.spans],
            }
            for row in step.scheduled
        ]

    def _queues(self) -> dict[str, Any]:
        return {
            "running": [r.request_id for r in self.scheduler.running],
            "waiting": [r.request_id for r in self.scheduler.waiting],
            "req": {
                name: [r.num_tokens, r.num_computed_tokens, r.num_preemptions]
                for name, r in self.requests.items()
            },
        }

    def _sampled(self, step: Step) -> dict[str, int]:
        """The token that each request got, from the recorded outputs."""
        names = {str(request.request_id): request for request in step.sampled}
        return {
            name: self.arrivals[name]["output"][request.num_output_tokens - 1]
            for name, request in names.items()
        }

    def _compare_state(self, k: int, recorded: dict[str, Any]) -> None:
        events = self.last[1]
        require_same(k, "evicted", evicted(events, self.hashes), recorded.get("evicted", []))
        recorded_events = comparable_events(recorded.get("events", []))
        require_same(k, "events", as_recorded(events, self.hashes), recorded_events)
        queues = self._queues()
        require_same(k, "queues", queues, {key: recorded[key] for key in queues})
        state = self.observer.state(self.requests.values())
        del state["lookup"]
        pool = {key: recorded[key] for key in state}
        require_same_usage(k, state, pool)
        del pool["usage"]
        require_same(k, "state", state, pool)

    def compare_engine(self, engine: dict[str, Any]) -> None:
        """What the whole engine reported: preemptions and hits of the run."""
        hits = [self.num_cached_tokens[name] for name in self.arrivals]
        require_same(-1, "num_cached_tokens", hits, engine["num_cached_tokens"])
        metrics = engine["metrics"]
        ours = {
            "vllm:prefix_cache_queries": self.totals.queries,
            "vllm:prefix_cache_hits": self.totals.hits,
            "vllm:num_preemptions": self.num_preemptions,
        }
        require_same(-1, "metrics", ours, {name: metrics[name] for name in ours})
