"""What both kinds of recordings share: versions, hash numbers, states and events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from sim.cache import BlockManager
from sim.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from sim.keys import Image, TokenKeys
from sim.request import Request


class Unsupported(Exception):
    """The recording uses a feature of vLLM that kvsim does not model yet."""


class Difference(Exception):
    """A replayed value is not the recorded one."""

    def __init__(self, step: int, what: str, ours: Any, recorded: Any) -> None:
        super().__init__(f"step {step}: {what}: ours {_short(ours)}, recorded {_short(recorded)}")
        self.step = step


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 300 else text[:300] + "..."


def require_same(step: int, what: str, ours: Any, recorded: Any) -> None:
    """Raise a `Difference` unless the two are equal (mappings: the first key that differs)."""
    if ours == recorded:
        return
    if isinstance(ours, dict) and isinstance(recorded, dict):
        for key in sorted(ours.keys() | recorded.keys(), key=str):
            require_same(step, f"{what}.{key}", ours.get(key), recorded.get(key))
    raise Difference(step, what, ours, recorded)


def check_supported(recording: dict[str, Any]) -> None:
    """Raise `Unsupported` for several KV groups and asynchronous scheduling."""
    config = recording["config"]
    if config.get("groups"):
        kinds = ", ".join(group["kind"] for group in config["groups"])
        raise Unsupported(f"KV groups ({kinds})")
    if config.get("async"):
        raise Unsupported("asynchronous scheduling")


def is_classic(recording: dict[str, Any]) -> bool:
    """Whether the recording vLLM is older than 0.24."""
    major, minor = recording["vllm"].split(".")[:2]
    return (int(major), int(minor)) < (0, 24)


class Hashes:
    """Numbers block hashes in the order in which blocks become known, as the recordings do."""

    def __init__(self, recording: dict[str, Any]) -> None:
        self._index: dict[Hashable, int] = {}
        self._recorded = recording.get("hashes")
        self._compare_digests = not is_classic(recording)  # older extra keys hash differently

    def learn(self, keys: TokenKeys, num_blocks: int) -> list[int]:
        """The numbers of the first *num_blocks* blocks of a request; new hashes get the next."""
        return [self._learn(keys[i]) for i in range(num_blocks)]

    def _learn(self, key: bytes) -> int:
        number = self._index.setdefault(key, len(self._index))
        if self._recorded and self._compare_digests:
            digest = self._recorded[number]["digest"]
            if digest != key.hex():
                raise Difference(-1, f"digest of hash {number}", key.hex(), digest)
        return number

    def known(self) -> Iterator[Hashable]:
        """Every hash seen so far."""
        return iter(self._index)

    def __getitem__(self, key: Hashable | None) -> int | None:
        return None if key is None else self._index[key]


def token_keys(op: dict[str, Any], config: dict[str, Any], token_ids: list[int]) -> TokenKeys:
    """The block keys of a recorded request."""
    lora = op.get("lora")
    images = [Image(mm["hash"], mm["offset"], mm["length"]) for mm in op.get("mm") or ()]
    return TokenKeys(
        token_ids,
        config["block_size"],
        hash_function=config.get("hash_algo", "sha256"),
        lora=(lora["name"], lora.get("path", f"/lora/{lora['name']}")) if lora else None,
        images=images,
        salt=op.get("salt"),
    )


class Observer:
    """Sees a manager as the recordings describe it."""

    def __init__(self, manager: BlockManager, hashes: Hashes) -> None:
        self.manager = manager
        self.hashes = hashes
        self.has_ids = next(manager.free_blocks()).block_id is not None
        self._events: list[KVEvent] = []
        self.manager.events = self._events.append

    def drain(self) -> list[KVEvent]:
        """The events since the last call."""
        events, self._events[:] = list(self._events), []
        return events

    def state(self, requests: Iterable[Request]) -> dict[str, Any]:
        """The part of the state that lies in the manager, with ids."""
        free = list(self.manager.free_blocks())
        requests = list(requests)
        used = {b.block_id: b for r in requests for b in self.manager.table(r.request_id)}
        hashed = [block for block in (*free, *used.values()) if block.key is not None]
        number = self.hashes
        copies = {key: self.manager.copies(key) for key in dict.fromkeys(b.key for b in hashed)}
        return {
            "free": [block.block_id for block in free],
            "ref": {str(block.block_id): block.ref_cnt for block in used.values()},
            "hash": {str(block.block_id): number[block.key] for block in hashed},
            "lookup": {
                str(number[key]): [block.block_id for block in blocks]
                for key, blocks in copies.items()
                if len(blocks) > 1
            },
            "usage": self.manager.usage,
        }

    def view(self, requests: Iterable[Request]) -> dict[str, Any]:
        """What remains of the state without block ids: contents, their users and their order."""
        number = self.hashes
        tables = {r.request_id: self.manager.table(r.request_id) for r in requests}
        return {
            "free": [number[block.key] for block in self.manager.free_blocks()],
            "tables": {
                name: [(number[block.key], block.ref_cnt) for block in table]
                for name, table in tables.items()
            },
            "usage": self.manager.usage,
        }


def require_same_usage(step: int, ours: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Usage is recorded to twelve digits; it is taken out of both states."""
    a, b = ours.pop("usage"), recorded["usage"]
    if abs(a - b) > 1e-9:
        raise Difference(step, "usage", a, b)


def digest(state: dict[str, Any]) -> str:
    """The fingerprint that stands for a full state in long recordings."""
    text = json.dumps(state, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def evicted(events: list[KVEvent], number: Hashes) -> list[list[int | None]]:
    """[block id, hash number] of every block whose hash was removed, in order."""
    return [
        [event.block_id, number[event.block_hash]]
        for event in events
        if isinstance(event, BlockRemoved)
    ]


def as_recorded(events: list[KVEvent], number: Hashes) -> list[dict[str, Any]]:
    """Events in the words of the recordings."""
    return [_event(event, number) for event in events]


def _event(event: KVEvent, number: Hashes) -> dict[str, Any]:
    if isinstance(event, AllBlocksCleared):
        return {"type": "AllBlocksCleared"}
    if isinstance(event, BlockRemoved):
        return {"type": "BlockRemoved", "hashes": [number[event.block_hash]]}
    assert isinstance(event, BlockStored)
    return {
        "type": "BlockStored",
        "hashes": [number[key] for key in event.block_hashes],
        "parent": number[event.parent_block_hash],
        "tokens": list(event.token_ids or ()),
        "block_size": event.block_size,
        "extra_keys": [_untagged(extra) for extra in event.extra_keys or ()],
    }


def _untagged(extra: tuple[Any, ...] | None) -> list[Any] | None:
    """Events carry extra keys bare: (id, offset) of an image, the name of a LoRA, the salt."""
    if extra is None:
        return None
    return [[*key[1:]] if key[0] == "mm" else key[1] for key in extra]


def comparable_events(recorded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Recorded events without the fields that kvsim's events do not have."""
    fields = ("type", "hashes", "parent", "tokens", "block_size", "extra_keys")
    return [{key: event[key] for key in fields if key in event} for event in recorded]
