"""Recordings of a block manager: one operation after the other, the whole state after each."""

from __future__ import annotations

from typing import Any

from sim.build import build
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
    without_ids,
)
from sim.keys import TokenKeys
from sim.request import Request, RequestStatus


def replay_manager(recording: dict[str, Any], manager: str) -> int:
    """Replay every operation; the number of operations, or `Difference`."""
    check_supported(recording)
    replay = ManagerReplay(recording, manager)
    for i, step in enumerate(recording["steps"]):
        replay.step(i, step)
    replay.manager.check()
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

    def step(self, i: int, step: dict[str, Any]) -> None:
        """Do one operation and compare its result, its events and the state after it."""
        op, has_ids = step["op"], self.observer.has_ids
        if op["op"] == "evict" and not has_ids:
            raise NotImplementedError
        result = getattr(self, f"_{op['op']}")(op)
        recorded = step["result"]
        require_same(i, op["op"], result, recorded if has_ids else _idless_result(recorded))
        self._compare_evictions(i, step)
        if "state" in step:
            self._compare(i, dict(step["state"]))
        elif has_ids:
            state = self._state()
            del state["usage"]
            require_same(i, "digest of the state", digest(state), step["digest"])

    def _compare_evictions(self, i: int, step: dict[str, Any]) -> None:
        events, has_ids = self.observer.drain(), self.observer.has_ids
        removed, recorded = evicted(events, self.hashes), step.get("evicted", [])
        happened = as_recorded(events, self.hashes)
        recorded_events = comparable_events(step.get("events", []))
        if step["op"]["op"] == "evict":  # vLLM goes through a set of ids: any order is right
            removed.sort(key=str)
            recorded = sorted(recorded, key=str)
            happened.sort(key=str)
            recorded_events.sort(key=str)
        require_same(i, "evicted", _drop_ids(removed, has_ids), _drop_ids(recorded, has_ids))
        if self.has_events:
            require_same(i, "events", happened, recorded_events)

    def _compare(self, i: int, recorded: dict[str, Any]) -> None:
        if self.observer.has_ids:
            ours = self._state()
        else:
            ours = self.observer.idless_state(self.requests.values())
            ours["req"] = self._request_states(ids=False)
            tables = {name: request["blocks"] for name, request in recorded["req"].items()}
            recorded["req"] = {
                name: {**request, "blocks": len(request["blocks"])}
                for name, request in recorded["req"].items()
            }
            recorded = {**without_ids(recorded, tables), "req": recorded["req"]}
        require_same_usage(i, ours, recorded)
        del recorded["usage"]
        require_same(i, "state", ours, recorded)

    def _state(self) -> dict[str, Any]:
        state = self.observer.state(self.requests.values())
        state["req"] = self._request_states(ids=True)
        return state

    def _request_states(self, ids: bool) -> dict[str, Any]:
        states = {}
        for name, request in self.requests.items():
            table = self.manager.table(name)
            states[name] = {
                "tokens": request.num_tokens,
                "computed": request.num_computed_tokens,
                "blocks": [block.block_id for block in table] if ids else len(table),
                "cached": self.manager.num_stored_blocks(name),
                "hashes": request.num_tokens // self.manager.block_size,
            }
        return states

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
        if not self.observer.has_ids:
            return {"blocks": hit.num_tokens // self.manager.block_size, "tokens": hit.num_tokens}
        return {"blocks": [_block_id(span) for span in hit.spans], "tokens": hit.num_tokens}

    def _allocate(self, op: dict[str, Any]) -> dict[str, Any] | None:
        request = self.requests[op["id"]]
        hit = self.hits.pop(op["id"], NO_HIT)
        options = {key: value for key, value in op.items() if key not in ("op", "id")}
        allocation = self.manager.allocate_slots(request, hit=hit, **options)
        if allocation is None:
            return None
        request.num_computed_tokens += hit.num_tokens + op["num_new_tokens"]
        request.status = RequestStatus.RUNNING
        if not self.observer.has_ids:
            return {"new_blocks": allocation.num_new_blocks}
        return {"new_blocks": [_block_id(span) for span in allocation.spans]}

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
        self.manager.free(request)
        request.num_computed_tokens = 0
        request.status = RequestStatus.PREEMPTED
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
        self.manager.evict_blocks(op["blocks"])  # type: ignore[attr-defined]
        return True


def _block_id(span: Any) -> int:
    block_id: int = span.block_id
    return block_id


def _idless_result(result: Any) -> Any:
    if not isinstance(result, dict):
        return result
    return {
        key: len(value) if key in ("blocks", "new_blocks") else value
        for key, value in result.items()
    }


def _drop_ids(evictions: list[list[int | None]], has_ids: bool) -> list[Any]:
    return evictions if has_ids else [number for _, number in evictions]
