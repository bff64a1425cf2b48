"""What an unbounded cache would hold of every prompt, and what kept a cache from holding it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, nan
from typing import Any

from sim.footprint import prompt, with_answer
from sim.parts import Parts
from sim.request import Request

Times = Sequence[float]


def reuse(
    requests: Iterable[Request],
    columns: Mapping[str, Sequence[Any]],
    *,
    decode: bool,
    before: Iterable[Request] = (),
) -> dict[str, list[int]]:
    """Columns about the prompts of a run, in tokens of full blocks; 0 if never admitted.

    *columns*: those of `sim.recorder.request_columns`, a row for each of *requests*. With *decode*
    answers are stored too, as if at once. *before*: requests that were served ahead of all others.

    - `num_reusable_tokens`: earlier admissions stored them. The last token counts here, although it
      is always computed again.
    - `num_isolated_tokens`: beyond these, stored under another salt, LoRA or tenant, as far as the
      keys know of such.
    - `num_pending_tokens`: of the reusable, neither hit nor computed yet: an earlier request was
      computing them. 0 without a clock.
    """
    everyone = list(requests)
    times = admission_times(columns)
    order = [i for i in range(len(everyone)) if times[i] == times[i]]
    order.sort(key=times.__getitem__)
    known = _known(everyone, order, before, decode)
    found = {
        "num_reusable_tokens": known,
        "num_isolated_tokens": _isolated(everyone, order, before, decode, known),
        "num_pending_tokens": _pending(everyone, order, times, columns, decode, known),
    }
    sizes = [request.keys.block_size for request in everyone]
    return {
        name: [n * size for n, size in zip(blocks, sizes, strict=True)]
        for name, blocks in found.items()
    }


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


def _known(
    everyone: Sequence[Request], order: Sequence[int], before: Iterable[Request], decode: bool
) -> list[int]:
    """The leading full blocks of each prompt that were stored before."""
    parts, counted = Parts(), [0] * len(everyone)
    for request in before:
        parts.add(request.keys, _num_stored(request, decode))
    for i in order:
        request = everyone[i]
        num_full = request.num_prompt_tokens // request.keys.block_size
        known = parts.add(request.keys, max(_num_stored(request, decode), num_full))
        counted[i] = min(known, num_full)
    return counted


def _isolated(
    everyone: Sequence[Request],
    order: Sequence[int],
    before: Iterable[Request],
    decode: bool,
    known: Sequence[int],
) -> list[int]:
    """The blocks after *known* that were stored under another salt and might have been hit."""
    counted = [0] * len(everyone)
    if all(everyone[i].keys.shared is None for i in order):
        return counted
    parts = Parts()
    for request in before:
        parts.add(request.keys.shared or request.keys, _num_stored(request, decode))
    for i in order:
        request = everyone[i]
        num_stored = max(_num_stored(request, decode), known[i])
        anywhere = parts.add(request.keys.shared or request.keys, num_stored)
        num_hittable = (request.num_prompt_tokens - 1) // request.keys.block_size
        counted[i] = max(0, min(anywhere, num_hittable) - known[i])
    return counted


def _pending(
    everyone: Sequence[Request],
    order: Sequence[int],
    times: Times,
    columns: Mapping[str, Sequence[Any]],
    decode: bool,
    known: Sequence[int],
) -> list[int]:
    """The blocks of each prompt that another request was computing when it was admitted."""
    counted = [0] * len(everyone)
    first_token = columns["first_token_time"]
    if all(time != time for time in first_token):
        return counted
    parts = Parts()
    for i in order:
        for length in _lengths(everyone[i], decode):
            parts.add(everyone[i].keys, length)
    for i in order:
        request = everyone[i]
        size = request.keys.block_size
        num_full, num_stored = _lengths(request, decode)
        start = columns["num_cached_tokens"][i] // size
        stop = min(known[i], (request.num_prompt_tokens - 1) // size)
        ends = [_or(time[i], inf) for time in (first_token, columns["finish_time"])]
        ends[0] = min(ends)
        for part in parts.path(request.keys, max(num_full, num_stored)):
            overlap = min(part.start + part.num_blocks, stop) - max(part.start, start)
            if overlap > 0 and part.state is not None and part.state > times[i]:
                counted[i] += overlap
            part.state = max(part.state or 0.0, ends[part.start >= num_full])
    return counted


def _lengths(request: Request, decode: bool) -> Iterator[int]:
    """Full blocks of the prompt, and blocks stored in the end."""
    yield request.num_prompt_tokens // request.keys.block_size
    yield _num_stored(request, decode)


def _num_stored(request: Request, decode: bool) -> int:
    return (with_answer if decode else prompt)(request).num_stored


def _or(time: float, other: float) -> float:
    return other if time != time else time
