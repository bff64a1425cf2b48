"""Recordings of a block manager: one operation after the other, the whole state after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.cache import NO_HIT, BlockManager, Hit
from sim.golden.recording import (
    Hashes,
    Observer,
    as_recorded,
    check_supported,
    comparable_events,
    digest,
    evicted,
    is_classic,
    require_same,
    require_same_usage,
    token_keys,
)
from sim.keys import TokenKeys
from sim.request import Request, RequestStatus
from sim.spec.build import build


def replay_manager(recording: dict[str, Any], manager: str) -> int:
    """Replay every operation; the number of operations, or `Difference`.

    A manager without block ids follows the reference manager, which has them, step by step.
    """
    check_supported(recording)
    replay = ManagerReplay(recording, "reference")
    follower = None if manager == "reference" else ManagerReplay(recording, manager)
    for i, step in enumerate(recording["steps"]):
        if follower:
            follower.do_same(i, step["op"], replay)
        replay.step(i, step)
        if follower:
            require_same(i, f"{manager} beside reference", follower.view(), replay.view())
    for each in filter(None, (replay, follower)):
        each.manager.check()
    return len(recording["steps"])


class ManagerReplay:
    """A manager driven by recorded operations."""

    def __init__(self, recording: dict[str, Any], manager: str) -> None:
        self.config = config = recording["config"]
        self.manager: BlockManager = build(
            "manager",
            manager,
            known={
                "num_blocks": config["num_blocks"],
                "block_size": config["block_size"],
                "free_order": "tail" if is_classic(recording) else "unhashed_first",
                "null_block": True,
                "enable_caching": config.get("enable_caching", True),
                "watermark": config.get("watermark", 0.0),
                "use_eagle": config.get("use_eagle", False),
                "max_model_len": 2**20,
            },
            where="--manager",
        )
        self.hashes = Hashes(recording)
        self.observer = Observer(self.manager, self.hashes)
        self.requests: dict[str, Request] = {}
        self.hits: dict[str, Hit] = {}
        self.has_events = "hashes" in recording  # long runs are recorded without either
        self.last: tuple[Any, Any] = (None, [])  # result and events of the last operation

    def do(self, op: dict[str, Any]) -> Any:
        """Do one operation; its result with block ids."""
        result = getattr(self, f"_{op['op']}")(op)
        events = self.observer.drain()
        if op["op"] == "evict":  # vLLM goes through a set of ids: any order is right
            events.sort(key=str)
        self.last = _idless_result(result), events
        return result

    def step(self, i: int, step: dict[str, Any]) -> None:
        """Do one operation and compare its result, its events and the state after it."""
        op = step["op"]
        require_same(i, op["op"], self.do(op), step["result"])
        self._compare_events(i, step)
        ours = self._state()
        if "state" in step:
            recorded = dict(step["state"])
            require_same_usage(i, ours, recorded)
            del recorded["usage"]
            require_same(i, "state", ours, recorded)
        else:
            del ours["usage"]
            require_same(i, "digest of the state", digest(ours), step["digest"])

    def _compare_events(self, i: int, step: dict[str, Any]) -> None:
        removed = evicted(self.last[1], self.hashes)
        happened = as_recorded(self.last[1], self.hashes)
        recorded = comparable_events(step.get("events", []))
        if step["op"]["op"] == "evict":
            removed.sort()
            happened.sort(key=str)
            recorded.sort(key=str)
        require_same(i, "evicted", removed, step.get("evicted", []))
        if self.has_events:
            require_same(i, "events", happened, recorded)

    def _state(self) -> dict[str, Any]:
        state = self.observer.state(self.requests.values())
        state["req"] = self._request_states()
        for name in self.requests:
            state["req"][name]["blocks"] = [block.block_id for block in self.manager.table(name)]
        return state

    def _request_states(self) -> dict[str, Any]:
        return {
            name: {
                "tokens": request.num_tokens,
                "computed": request.num_computed_tokens,
                "cached": self.manager.num_stored_blocks(name),
                "hashes": request.num_tokens // self.manager.block_size,
            }
            for name, request in self.requests.items()
        }

    def view(self) -> dict[str, Any]:
        """What the last operation did and left, in everything but block ids."""
        view = self.observer.view(self.requests.values())
        result, events = self.last
        happened = as_recorded(events, self.hashes)
        return {**view, "req": self._request_states(), "result": result, "events": happened}

    def do_same(self, i: int, op: dict[str, Any], replay: ManagerReplay) -> None:
        """Do what *replay* is about to do; blocks to evict are named by their content."""
        if op["op"] == "evict":
            op = {**op, "contents": replay.contents(op["blocks"])}
        self.do(op)

    def contents(self, block_ids: list[int]) -> list[tuple[Any, int]]:
        """(key, which copy) of these blocks, in an order in which they can be taken out."""
        found = {}
        for key in self.hashes.known():
            for nth, block in enumerate(self.manager.copies(key)):
                found[block.block_id] = (key, nth)
        chosen = [found[block_id] for block_id in block_ids if block_id in found]
        return sorted(chosen, key=lambda content: -content[1])

    # One method per recorded operation

    def _new(self, op: dict[str, Any]) -> dict[str, Any]:
        prompt = op["prompt"]
        if isinstance(prompt, dict):
            prompt = list(range(*prompt["range"]))
        request = Request(
            request_id=op["id"],
            keys=token_keys(op, self.config, prompt),
            num_prompt_tokens=len(prompt),
            max_tokens=2**20,
            skip_reading_prefix_cache=op.get("skip_read", False),
        )
        self.requests[op["id"]] = request
        return self._chain(request)

    def _chain(self, request: Request) -> dict[str, Any]:
        assert isinstance(request.keys, TokenKeys)
        return {"chain": self.hashes.learn(request.keys, len(request.keys))}

    def _get_computed(self, op: dict[str, Any]) -> dict[str, Any]:
        hit = self.manager.get_computed_blocks(self.requests[op["id"]])
        self.hits[op["id"]] = hit
        num_blocks = hit.num_tokens // self.manager.block_size
        return {"blocks": self._ids(hit.spans, num_blocks), "tokens": hit.num_tokens}

    def _allocate(self, op: dict[str, Any]) -> dict[str, Any] | None:
        request = self.requests[op["id"]]
        hit = self.hits.pop(op["id"], NO_HIT)
        options = {key: value for key, value in op.items() if key not in ("op", "id")}
        allocation = self.manager.allocate_slots(request, hit=hit, **options)
        if allocation is None:
            return None
        request.num_computed_tokens += hit.num_tokens + op["num_new_tokens"]
        request.status = RequestStatus.RUNNING
        return {"new_blocks": self._ids(allocation.spans, allocation.num_new_blocks)}

    def _append(self, op: dict[str, Any]) -> dict[str, Any]:
        request = self.requests[op["id"]]
        assert isinstance(request.keys, TokenKeys)
        request.keys.append(op["tokens"])
        request.num_output_tokens += len(op["tokens"])
        return self._chain(request)

    def _free(self, op: dict[str, Any]) -> bool:
        self.manager.free(self.requests.pop(op["id"]))
        self.hits.pop(op["id"], None)
        return True

    def _preempt(self, op: dict[str, Any]) -> bool:
        request = self.requests[op["id"]]
        request.status = RequestStatus.PREEMPTED
        self.manager.free(request)
        request.num_computed_tokens = 0
        return True

    def _reject_tokens(self, op: dict[str, Any]) -> bool:
        self.requests[op["id"]].num_computed_tokens -= op["n"]
        return True

    def _cache_blocks(self, op: dict[str, Any]) -> bool:
        self.manager.cache_blocks(self.requests[op["id"]], op["num_tokens"])
        return True

    def _reset(self, op: dict[str, Any]) -> bool:
        return self.manager.reset_prefix_cache()

    def _evict(self, op: dict[str, Any]) -> bool:
        manager: Any = self.manager
        if self.observer.has_ids:
            manager.evict_blocks(op["blocks"])
        else:
            for key, nth_copy in op["contents"]:
                manager.evict_content(key, nth_copy)
        return True

    def _ids(self, spans: Sequence[Any], num_blocks: int) -> list[int | None]:
        if self.observer.has_ids:
            return [span.block_id for span in spans]
        return [None] * num_blocks


def _idless_result(result: Any) -> Any:
    if not isinstance(result, dict):
        return result
    return {
        key: len(value) if key in ("blocks", "new_blocks") else value
        for key, value in result.items()
    }
