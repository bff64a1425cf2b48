"""Cost per request as the number of requests grows, on synthetic traffic."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.inputs import Settings
from benchmarks.measure import Outcome, Row, in_fresh_process, repeated, timed
from benchmarks.replays import replayed
from policies.vllm import VLLMBlockManager
from sim.engine import Engine
from workloads.shared_prefix import SharedPrefix

NEEDS = None
TITLE = "Growth: synthetic requests with shared prefixes, 16-token blocks, pool of 32,768 blocks"

BLOCK_SIZE = 16
NUM_BLOCKS = 32_768
SIZES = (10_000, 100_000, 1_000_000)


def name(kind: str, num_requests: int) -> str:
    """What a row is called."""
    return f"{kind} of {num_requests:,} requests"


def rows(settings: Settings) -> Iterator[Row]:
    """Replays of 10^4 to 10^6 requests, engine runs of 10^4 and 10^5."""
    sizes = [size // 100 for size in SIZES] if settings.quick else SIZES
    for size in sizes:
        repetitions = settings.repetitions if size < SIZES[-1] else 1
        yield in_fresh_process(name("replay", size), "replay", replays, size, repetitions)
    for size in sizes:
        if size < sizes[-1]:
            yield in_fresh_process(name("engine run", size), "engine", runs, size)


def replays(num_requests: int, repetitions: int) -> Outcome:
    """Replay the traffic; making the requests counts."""
    workload = SharedPrefix(num_requests=num_requests, block_size=BLOCK_SIZE)
    return replayed(workload, lambda: VLLMBlockManager(NUM_BLOCKS, BLOCK_SIZE), repetitions)


def runs(num_requests: int) -> Outcome:
    """One engine run of the traffic."""
    workload = SharedPrefix(num_requests=num_requests, block_size=BLOCK_SIZE)

    def once() -> tuple[float, str]:
        engine = Engine(VLLMBlockManager(NUM_BLOCKS, BLOCK_SIZE))
        seconds, record = timed(lambda: engine.run(workload))
        hit = record.totals["prefix_cache_hits"] / record.totals["prefix_cache_queries"]
        return seconds, f"{hit:.4f} of tokens hit, {record.totals['num_steps']:,} steps"

    seconds, work = repeated(once, 1)
    return Outcome(num_requests, None, seconds, work)
