"""L1: a decoder over paged KV must compute what it computes without pages.

Each request is computed once more, densely and alone. Then, in every step, the hidden states of
what was scheduled are compared, and the cached keys and values of a whole request when it is
admitted (so: all it hit) and when it lets go (so: what others may have done to it). Comparing KV
shows a wrong block however long the context is; an output hides it behind thousands of right ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from gpu_backend.attention.batch import Backend
from gpu_backend.attention.reference import Reference
from gpu_backend.cache import Layout
from gpu_backend.check import Report, Tamper
from gpu_backend.invariants import Finding
from gpu_backend.model import Decoder, Shape, TinyDecoder
from gpu_backend.replay import Computed, PagedReplay
from gpu_backend.trace import StepTrace

Tensor = Any

TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
KV_TOLERANCE_16_BIT = 0.3  # of the mean |K|: bf16 noise is 0.02, a wrong block 2 and more
"""Outputs are not compared in 16 bits: noise hides a wrong block from 1 to 4 k tokens on."""


@dataclass(slots=True)
class Verdict(Report):
    """What L1 compared; errors are relative, the largest difference over the largest value."""

    worst_output: float = 0.0
    worst_kv: float = 0.0
    num_kv: int = 0  # positions whose keys and values were compared
    dtype: str = ""
    backend: str = ""


@dataclass(slots=True)
class Dense:
    """One request computed without pages: hidden [T, hidden], keys and values [L, T, K, D]."""

    hidden: Tensor
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


def dense(model: Decoder, tokens: Any) -> Dense:
    """Compute *tokens* [T, 2] at once: attention is causal, so this is every prefix at once."""
    made = Dense(None)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made.keys.append(k)
        made.values.append(v)
        group = q.shape[1] // k.shape[1]
        wide = [part.repeat_interleave(group, dim=1) for part in (k, v)]
        queries, keys, values = (part.transpose(0, 1)[None] for part in (q, *wide))
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return attended[0].transpose(0, 1)

    with torch.inference_mode():
        given = torch.from_numpy(tokens).to(model.device)
        positions = torch.arange(len(tokens), device=model.device)
        made.hidden = model.forward(given, positions, attend)
    return made


class Verifier:
    """Compares a paged replay with dense computation."""

    def __init__(self, replay: PagedReplay, verdict: Verdict) -> None:
        self.replay, self.verdict = replay, verdict
        self.is_16_bit = verdict.dtype not in TOLERANCES
        self.tolerance = TOLERANCES.get(verdict.dtype, KV_TOLERANCE_16_BIT)
        self._dense: dict[int, Dense] = {}
        self._held: dict[int, tuple[Any, int]] = {}  # request -> its table, its computed tokens
        self._last_step = {
            row.request: i for i, step in enumerate(replay.trace.steps) for row in step.rows
        }

    def before(self, number: int) -> Iterator[Finding]:
        """Compare the KV of those that let go before step *number* runs, or behind the last."""
        steps, trace = self.replay.trace.steps, self.replay.trace
        events = steps[number].events if number < len(steps) else trace.trailing
        for event in events:
            if event.kind == "freed" and event.number in self._held:
                table, num_tokens = self._held.pop(event.number)
                yield from self._compare_kv(number, event.number, table, num_tokens)
                if self._last_step[event.number] < number:
                    self._dense.pop(event.number, None)

    def after(self, done: Computed) -> Iterator[Finding]:
        """Compare what a step computed."""
        start = 0
        for row in done.step.rows:
            stop = start + row.num_scheduled_tokens
            end = row.num_computed_tokens + row.num_scheduled_tokens
            table = done.tables[row.request]
            self._held[row.request] = (table, end)
            if not self.is_16_bit:
                expected = self._expected(row.request).hidden[row.num_computed_tokens : end]
                error, where = _relative(done.hidden[start:stop], expected)
                self.verdict.worst_output = max(self.verdict.worst_output, error)
                if error > self.tolerance:
                    position = row.num_computed_tokens + where
                    message = f"the output is off by {error:.1e}"
                    yield Finding("L1 output", done.number, row.request, position, -1, message)
            if row.is_admission:
                yield from self._compare_kv(done.number, row.request, table, end)
            start = stop

    def _expected(self, request: int) -> Dense:
        if request not in self._dense:
            self._dense[request] = dense(self.replay.model, self.replay.tokens[request])
        return self._dense[request]

    def _compare_kv(
        self, number: int, request: int, table: Any, num_tokens: int
    ) -> Iterator[Finding]:
        expected, cache = self._expected(request), self.replay.cache
        blocks = torch.from_numpy(table).long().to(self.replay.model.device)
        for layer in range(len(expected.keys)):
            pairs = zip(
                cache.gather(layer, blocks),
                (expected.keys[layer], expected.values[layer]),
                strict=True,
            )
            for cached, right in pairs:
                error, where = _relative(cached[:num_tokens], right[:num_tokens], self.is_16_bit)
                self.verdict.worst_kv = max(self.verdict.worst_kv, error)
                if error > self.tolerance:
                    block = int(table[where // cache.block_size])
                    message = f"the KV of layer {layer} is off by {error:.1e}"
                    yield Finding("L1 KV", number, request, where, block, message)
                    return
        self.verdict.num_kv += num_tokens


def _relative(found: Tensor, right: Tensor, to_mean: bool = False) -> tuple[float, int]:
    """The largest difference over the largest (or mean) value, and in which row it is."""
    difference = (found.double() - right.double()).abs().flatten(1).amax(dim=1)
    difference = torch.nan_to_num(difference, nan=float("inf"))
    size = right.double().abs()
    scale = float(size.mean() if to_mean else size.max())
    return float(difference.max()) / scale, int(difference.argmax())


def verify_trace(
    trace: StepTrace,
    *,
    backend: Backend | None = None,
    dtype: str = "float64",
    device: str = "cpu",
    shape: Shape | None = None,
    model: Decoder | None = None,
    layout: Layout = "NHD",
    sizes: Sequence[int] = (),
    tamper: Tamper | None = None,
) -> Verdict:
    """Run a decoder over *trace* with *backend* and compare it with dense computation.

    *model*: a decoder of *dtype* on *device*, by default the tiny one, of *shape*.
    """
    backend = backend or Reference(device)
    model = model or TinyDecoder(shape, dtype=getattr(torch, dtype), device=device)
    replay = PagedReplay(trace, model, backend, layout=layout)
    verdict = Verdict(dtype=dtype, backend=backend.name)
    verifier = Verifier(replay, verdict)
    steps = replay.steps(sizes=sizes, tamper=tamper)
    for number in range(len(trace.steps)):
        verdict.add(verifier.before(number))
        done = next(steps)
        verdict.num_steps += 1
        verdict.num_rows += len(done.step.rows)
        verdict.num_tokens += done.metadata.num_actual_tokens
        verdict.add(verifier.after(done))
    verdict.add(verifier.before(len(trace.steps)))
    return verdict
