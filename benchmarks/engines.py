"""Full engine runs: every arrival, step, prefill chunk and decoded token of the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.inputs import CONVERSATION, Settings
from benchmarks.measure import Outcome, Row, in_fresh_process, repeated, timed
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.cache import BlockManager
from sim.engine import Engine
from sim.latency import Linear
from sim.recorder import RunRecord
from sim.request import Request

NEEDS = CONVERSATION
TITLE = "Engine, LRU, Linear latency model"

POOLS = {16: 320_000, 512: 10_000}  # blocks: 5.12 million tokens either way
PREFILL_US = {"saturated": 45.0, "decode-bound": 5.0}  # per token; 45 is Linear's default


class Job(NamedTuple):
    """One way to run the engine."""

    block_size: int
    load: str
    manager: Callable[..., BlockManager]
    macro_steps: bool
    repetitions: int


def name(block_size: int, load: str, variant: str = "macro steps") -> str:
    """What a row is called."""
    return f"{variant}, {block_size}-token blocks, {load}"


def rows(settings: Settings) -> Iterator[Row]:
    """Macro steps at both block sizes and loads; every step one by one, where that is bearable."""
    for block_size in POOLS:
        for load in PREFILL_US:
            job = Job(block_size, load, VLLMBlockManager, True, settings.repetitions)
            yield _row(settings, "macro steps", job)
            if block_size == 16:
                plain = job._replace(macro_steps=False, repetitions=1)
                yield _row(settings, "every step", plain)
    reference = Job(16, "saturated", ReferenceBlockManager, False, 1)
    yield _row(settings, "every step, blocks (reference)", reference)


def _row(settings: Settings, variant: str, job: Job) -> Row:
    label = name(job.block_size, job.load, variant)
    return in_fresh_process(label, f"{job.block_size} {job.load}", conversation, settings, job)


def conversation(settings: Settings, job: Job) -> Outcome:
    """The conversation trace through a fresh engine, several times."""
    requests = list(settings.conversation(job.block_size))

    def once() -> tuple[float, str]:
        seconds, record = timed(lambda: _engine(job).run(requests))
        return seconds, _work(record)

    seconds, work = repeated(once, job.repetitions)
    return Outcome(len(requests), _num_blocks(requests), seconds, work)


def _engine(job: Job) -> Engine:
    manager = job.manager(POOLS[job.block_size], job.block_size)
    latency = Linear(prefill_us_per_token=PREFILL_US[job.load])
    return Engine(manager, latency=latency, macro_steps=job.macro_steps)


def _num_blocks(requests: list[Request]) -> int:
    return sum(r.num_prompt_tokens // r.keys.block_size for r in requests)


def _work(record: RunRecord) -> str:
    """What the run did, in numbers that two equal runs share."""
    totals, columns = record.totals, record.requests
    hit = totals["prefix_cache_hits"] / totals["prefix_cache_queries"]
    running = record.series["num_running"]
    return (
        f"{hit:.4f} of tokens hit, {sum(columns['num_output_tokens']):,} decoded in "
        f"{totals['num_steps']:,} steps, {totals['num_preemptions']:,} preemptions, "
        f"{sum(running) / len(running):.0f} running on average, end at {totals['end_time']:.3f} s"
    )
