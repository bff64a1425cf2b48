"""kvcache-simulator (C++ core): LRU over the leaves of a trie, without a clock.

Its core runs as a child process; the CPU time of that child is counted, reading the file is not.
"""

from __future__ import annotations

from typing import Any

from benchmarks.drivers import Job, drive
from benchmarks.measure import Outcome, repeated, timed

MODEL, PRECISION, BYTES_PER_TOKEN = "llama-3.1-8b", "bf16_fp16", 131072
GIB = 2**30


def run(job: Job) -> Outcome:
    """The hits of its LRU: it counts those of the last half of the requests only."""
    from kvcache_sim.simulator import run_sweep
    from kvcache_sim.trace import parse_trace_file

    parse_seconds, trace = timed(lambda: parse_trace_file(job["path"]))
    budget = job["num_blocks"] * job["block_size"] * BYTES_PER_TOKEN / GIB

    def sweep() -> dict[str, Any]:
        result: dict[str, Any] = run_sweep(
            trace,
            model_id=MODEL,
            precision=PRECISION,
            budgets_gib=[budget],
            policies=["lru"],
        )
        return result

    def once() -> tuple[float, dict[str, Any]]:
        seconds, result = timed(sweep)
        return seconds, result["points"][0]["results"]["lru"]

    sweep()  # the first call compiles its core
    seconds, lru = repeated(once, job["repetitions"])
    num_hits, num_queries = (lru[f"{n}Tokens"] // job["block_size"] for n in ("hit", "total"))
    work = (
        f"last half: {num_hits:,} of {num_queries:,} blocks hit in {job['num_blocks']:,}; "
        f"reading its input took {parse_seconds:.1f} s more"
    )
    return Outcome(trace.request_count, len(trace.ids), seconds, work)


if __name__ == "__main__":
    drive("kvcache-simulator", "LRU, trie", run)
