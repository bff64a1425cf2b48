"""The largest public trace: 67 million block references of agent sessions, and their memory."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

from benchmarks.inputs import SESSIONS, Settings
from benchmarks.measure import Outcome, Row, in_fresh_process
from benchmarks.replays import replayed
from policies.vllm import VLLMBlockManager

NEEDS = SESSIONS
TITLE = "WEKA agent sessions, 64-token blocks, LRU"

STARTS = {0.0: "all sessions at once", 600.0: "a session every 600 s"}
POOLS = (100_000, 1_000_000)  # blocks


def name(num_blocks: int, session_gap: float) -> str:
    """What a row is called."""
    return f"replay, {num_blocks:,} blocks, {STARTS[session_gap]}"


def rows(settings: Settings) -> Iterator[Row]:
    """Reading the file, and replays for both arrival models."""
    yield in_fresh_process("reading and checking the file", "", reading, settings)
    for session_gap in STARTS:
        for num_blocks in POOLS:
            label = name(num_blocks, session_gap)
            yield in_fresh_process(label, "", replays, settings, num_blocks, session_gap)


def reading(settings: Settings) -> Outcome:
    """Read the trace once."""
    start = process_time()
    workload = settings.sessions(0.0)
    seconds = process_time() - start
    num_blocks = sum(r.num_prompt_tokens // workload.block_size for r in workload)
    return Outcome(len(workload), num_blocks, [seconds], f"{num_blocks:,} block references")


def replays(settings: Settings, num_blocks: int, session_gap: float) -> Outcome:
    """Read the trace and replay it; only the replay is timed."""
    workload = settings.sessions(session_gap)
    size = workload.block_size
    return replayed(workload, lambda: VLLMBlockManager(num_blocks, size), settings.repetitions)
