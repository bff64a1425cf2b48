"""The latency model against published measurements: time per output token in a closed loop.

*concurrency* requests are always in the system; each has *prompt* tokens and *answer* tokens, and a
new one arrives when one ends. In the long run every step decodes all of them, and the prefill of
one request is spread over `answer / concurrency` steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.latency import LatencyModel, StepLoad

LENGTHS = 0.9
"""Mean length over the nominal one: these benchmarks draw lengths from 80 % to 100 % of it."""


class Published(NamedTuple):
    """One row of a published table; times in milliseconds."""

    gpus: str
    concurrency: int
    prompt: int
    answer: int
    tpot_ms: float


def closed_loop_tpot(
    latency: LatencyModel,
    concurrency: int,
    prompt: int,
    answer: int,
    *,
    num_kv_tokens: float = float("inf"),
) -> float:
    """Seconds per output token; no more requests run than *num_kv_tokens* hold."""
    running = max(1, int(min(concurrency, num_kv_tokens // (prompt + answer))))
    load = StepLoad()
    for _ in range(running):
        load.add(1, prompt + answer // 2)
    decode = latency.step_time(load)
    load.add(prompt, 0)
    prefill = latency.step_time(load) - decode
    return decode + running / answer * prefill


def predicted_ms(latency: LatencyModel, row: Published, num_kv_tokens: float) -> float:
    """What *latency* says about *row*, in milliseconds."""
    prompt, answer = int(row.prompt * LENGTHS), int(row.answer * LENGTHS)
    tpot = closed_loop_tpot(latency, row.concurrency, prompt, answer, num_kv_tokens=num_kv_tokens)
    return tpot * 1e3


def mean_error(predicted: Sequence[float], rows: Sequence[Published]) -> float:
    """The mean absolute error over *rows*, a share."""
    pairs = zip(predicted, rows, strict=True)
    return sum(abs(ours / row.tpot_ms - 1) for ours, row in pairs) / len(rows)
