"""Dynamo's offline trace replay (Rust): a timed engine with prefix caching, like our engine runs.

Its step times come from a polynomial of its own, so its schedule is not ours. It reads its input
inside the measured call: there is no other way to run it.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.drivers import Job, drive
from benchmarks.measure import Outcome, repeated, timed


def run(job: Job) -> Outcome:
    """The prompts' tokens that its engine reused over the whole trace."""
    from dynamo import _core

    engine = {"block_size": job["block_size"], "num_gpu_blocks": job["num_blocks"]}
    settings = _core._normalize_mocker_config({"engine": engine})

    def replay() -> dict[str, Any]:
        done = _core.run_mocker_trace_replay(
            [job["path"]],
            extra_engine_args=settings,
            replay_mode="offline",
            trace_block_size=job["chunk"],
        )
        summary = done.summary
        return dict(json.loads(summary)) if isinstance(summary, str) else dict(summary)

    def once() -> tuple[float, dict[str, Any]]:
        seconds, summary = timed(replay)
        return seconds, {name: value for name, value in summary.items() if name in COUNTED}

    seconds, counted = repeated(once, job["repetitions"])
    work = (
        f"{counted['prefix_cache_reused_ratio']:.4f} of tokens hit, "
        f"{counted['total_output_tokens']:,} decoded, end at {counted['duration_ms'] / 1000:.3f} s"
    )
    return Outcome(counted["completed_requests"], None, seconds, work)


COUNTED = (
    "prefix_cache_reused_ratio",
    "total_output_tokens",
    "completed_requests",
    "duration_ms",
)

if __name__ == "__main__":
    drive("ai-dynamo-runtime", "trace replay", run)
