from __future__ import annotations

from typing import Any

import pytest

from policies.vllm import VLLMBlockManager
from sim.errors import ConfigError
from sim.replay import replay
from sim.state.warm_start import Before, warm_up
from sim.studies.study import Study, run
from workloads.shared_prefix import SharedPrefix

REQUESTS = {"use": "shared_prefix", "num_requests": 300, "num_prefixes": 20}
CONFIG: dict[str, Any] = {
    "mode": "replay",
    "cache": {"num_blocks": 2000, "block_size": 16},
    "workload": REQUESTS,
    "policies": {
        "lru": "vllm",
        "sieve": {"use": "vllm", "eviction": "sieve"},
        "MIN": {"use": "vllm", "eviction": "belady"},
    },
}


@pytest.mark.parametrize("eviction", [None, "sieve", "s3fifo", "lfu"])
def test_a_warm_start_is_the_second_half(eviction: str | None) -> None:
    """Warmed with the first 200 requests, the other 100 hit what they hit in one long replay."""
    from sim.spec.build import build

    everyone = list(SharedPrefix(num_requests=300, num_prefixes=20))
    first = SharedPrefix(num_requests=200, num_prefixes=20)  # the same 200

    def made() -> Any:
        spec = {"use": "vllm", **({"eviction": eviction} if eviction else {})}
        return build("manager", spec, known={"num_blocks": 800, "block_size": 16})

    hits: list[int] = []
    replay(made(), everyone, hits=hits)
    warm = made()
    warm_up(warm, Before(first), decode=False)
    assert warm.num_evicted_blocks == 0
    assert warm.num_cached_blocks > 0
    later: list[int] = []
    replay(warm, everyone[200:], hits=later)
    assert later == hits[200:]


@pytest.mark.parametrize("mode", ["engine", "replay", "replay_with_answers"])
def test_a_warm_run_hits_more(mode: str) -> None:
    """The same traffic twice: the second time content is there; nothing else is counted."""
    cold = run({**CONFIG, "mode": mode, "bounds": False})
    warm = run({**CONFIG, "mode": mode, "warm_start": REQUESTS})
    assert list(warm.summary["num_requests"]) == [300] * 3
    assert (warm.summary["hit_rate"] > cold.summary["hit_rate"]).all()
    assert (warm.misses()["compulsory"] < cold.misses()["compulsory"]).all()


def test_time_goes_on() -> None:
    """The last of the warm requests arrives at time 0, so nothing lies in the future."""
    seen: list[float] = []

    class Listening(VLLMBlockManager):
        def serve(self, request: Any, num_tokens: int, *, now: float = 0.0) -> int | None:
            seen.append(now)
            return super().serve(request, num_tokens, now=now)

    warm_up(Listening(4096), Before(SharedPrefix(num_requests=20)), decode=True)
    assert seen == sorted(seen)
    assert seen[-1] == 0.0
    assert seen[0] < 0


def test_a_warm_start_is_part_of_the_run() -> None:
    """It is in the resolved configuration and in the key of every run."""
    warm = Study.load({**CONFIG, "warm_start": REQUESTS})
    cold = Study.load({**CONFIG, "bounds": False})
    assert warm.first.resolved()["warm_start"]["num_requests"] == 300
    assert not {unit.key for unit in warm.units()} & {unit.key for unit in cold.units()}


def test_bounds_are_of_cold_runs() -> None:
    """MIN from an empty pool bounds no run that begins with a full one."""
    assert not Study.load({**CONFIG, "warm_start": REQUESTS}).first.bounds
    with pytest.raises(ConfigError, match="bounds: bounds are of runs that begin empty"):
        Study.load({**CONFIG, "warm_start": REQUESTS, "bounds": True})
    with pytest.raises(ConfigError, match=r"warm_start\.num_request: unknown to shared_prefix"):
        Study.load({**CONFIG, "warm_start": {"use": "shared_prefix", "num_request": 3}})
