"""What an unbounded cache would hold of every prompt: the part that was computed before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan
from typing import Any

from sim.footprint import prompt, with_answer
from sim.parts import Parts
from sim.request import Request


def admission_times(columns: Mapping[str, Sequence[Any]]) -> list[float]:
    """When each request of a run was admitted, NaN if never; without a clock, when it arrived."""
    rows = zip(
        columns["first_scheduled_time"],
        columns["arrival_time"],
        columns["num_cached_tokens"],
        strict=True,
    )
    return [
        (arrival if scheduled != scheduled else scheduled) if cached >= 0 else nan
        for scheduled, arrival, cached in rows
    ]


def reusable_tokens(
    requests: Iterable[Request],
    admitted: Sequence[float],
    *,
    decode: bool,
    before: Iterable[Request] = (),
) -> list[int]:
    """Tokens in the full blocks of each prompt that earlier admissions stored, in one order.

    *admitted*: when each request was scheduled first (NaN: never, 0 tokens are then reported).
    With *decode* answers are stored too, as if at once. The last token counts here, although it is
    always computed again. *before*: requests that were served ahead of all others.
    """
    everyone = list(requests)
    counted = [0] * len(everyone)
    times = [(time if time == time else inf) for time in admitted]
    parts = Parts()
    footprint = with_answer if decode else prompt
    for request in before:
        parts.add(request.keys, footprint(request).num_stored)
    for i in sorted(range(len(everyone)), key=times.__getitem__):
        request = everyone[i]
        if times[i] == inf:
            continue
        keys = request.keys
        num_full = request.num_prompt_tokens // keys.block_size
        known = parts.add(keys, max(footprint(request).num_stored, num_full))
        counted[i] = min(known, num_full) * keys.block_size
    return counted
