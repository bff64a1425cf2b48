"""Recordings that are not runs: block-hash vectors and the hit-rate window."""

from __future__ import annotations

import sys
from typing import Any

from sim.golden.recording import require_same
from sim.hashing import NONE_SEED, block_hash, none_hash
from sim.stats import HitRateWindow, PrefixCacheStats


def replay_hashes(recording: dict[str, Any]) -> int:
    """Recompute every block hash from its parent, tokens and extra keys."""
    size, num_hashes = recording["block_size"], 0
    for vector in recording["vectors"]:
        function, seed = vector["algo"], vector["pythonhashseed"]
        # An xxhash vector without a seed started from a random parent, which is in the recording.
        parent = bytes.fromhex(vector["none_hash"])
        if seed is not None or function.startswith("sha256"):
            ours = none_hash(function, NONE_SEED if seed is None else str(seed))
            require_same(num_hashes, "none_hash", ours.hex(), vector["none_hash"])
        for i, recorded in enumerate(vector["hashes"]):
            token_ids = tuple(vector["prompt"][i * size : (i + 1) * size])
            parent = block_hash(function, parent, token_ids, _tuples(vector["extra_keys"][i]))
            require_same(num_hashes, vector["case"], parent.hex(), recorded)
            num_hashes += 1
    return num_hashes


def _tuples(value: Any) -> Any:
    """JSON lists as the tuples they were; equal names as one object, which pickle can tell."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return sys.intern(value) if isinstance(value, str) else value


def replay_hit_rate_window(recording: dict[str, Any]) -> int:
    """Feed the recorded steps to our window and compare every rate."""
    num_updates = 0
    for series in recording["series"]:
        window = HitRateWindow(series["max_recent_requests"])
        for update in series["updates"]:
            step = PrefixCacheStats(reset=update["reset"])
            for num_tokens, num_hits, preempted in update["record"]:
                if not preempted:
                    step.requests += 1
                    step.queries += num_tokens
                    step.hits += num_hits
            window.observe(step)
            counts = [step.requests, step.queries, step.hits, window.requests, window.hit_rate]
            names = ("requests", "queries", "hits", "window_requests", "hit_rate")
            require_same(num_updates, "window", counts, [update[name] for name in names])
            num_updates += 1
    return num_updates
