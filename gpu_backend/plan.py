"""What a calibration measures: a decoder, the sizes of its parts, and steps that are held out."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_backend.model import Shape
from gpu_backend.step_timer import Rows
from sim.hardware.model_profile import ModelProfile


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: tokens of products, prompts and contexts; then the steps held out."""

    shape: Shape
    tokens: tuple[int, ...]
    prompts: tuple[tuple[int, int], ...]  # (new, hit): prefill attention
    decodes: tuple[tuple[int, int], ...]  # (rows, context): decode attention
    whole: tuple[Rows, Rows]  # a small and a large step, for the overheads
    held_out: tuple[Rows, ...]
    num_blocks: int
    at_least: float  # seconds that repetitions of one measurement take together


def step_plan(shape: Shape, longest: int, num_blocks: int) -> Plan:
    """Measurements up to prompts of *longest* tokens; the held-out steps lie between them."""

    def at(*shares: float) -> list[int]:
        return [max(2, int(longest * share)) for share in shares]

    prefills: list[Rows] = [[(n, 0)] for n in at(0.09, 0.2, 0.4, 0.75, 1.0)]
    hits: list[Rows] = [
        [(n, p)] for n, p in zip(at(0.1, 0.2, 0.4, 0.1), at(0.1, 0.4, 0.6, 0.7), strict=True)
    ]
    decodes: list[Rows] = [
        [(1, context)] * rows
        for rows, context in zip(
            (1, 3, 6, 12, 24, 48), at(0.3, 0.6, 0.2, 0.5, 0.15, 0.3), strict=True
        )
    ]
    mixed: list[Rows] = [
        [*[(1, at(0.25)[0])] * rows, (n, 0)]
        for rows, n in zip((6, 20), at(0.15, 0.35), strict=True)
    ]
    return Plan(
        shape,
        tokens=tuple(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n <= longest),
        prompts=tuple((n, p) for n in at(0.12, 0.5) for p in (0, *at(0.5))),
        decodes=tuple((rows, context) for rows in (4, 16, 32) for context in at(0.2, 0.6)),
        whole=([(1, at(0.1)[0])], [(at(0.6)[0], 0)]),
        held_out=(*prefills, *hits, *decodes, *mixed),
        num_blocks=num_blocks,
        at_least=0.05 if longest > 200 else 0.005,  # a toy is to be quick, not exact
    )


def shape_for(device: str, *, quick: bool = False) -> tuple[Shape, int, int]:
    """A decoder to be measured on *device*, the longest prompt, and blocks of KV.

    On a GPU a quarter of Llama-3.1-8B's layers: all that matters is per layer.
    """
    if quick:
        return Shape(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32), 160, 400
    if device == "cpu":
        small = Shape(
            num_layers=4,
            hidden_size=1024,
            num_heads=16,
            num_kv_heads=4,
            head_dim=64,
            ffn_size=2816,
            vocab_size=4096,
        )
        return small, 1500, 6000
    large = Shape(
        num_layers=8,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        ffn_size=14336,
        vocab_size=128_256,
    )
    return large, 8192, 30_000


def model_profile(shape: Shape) -> ModelProfile:
    """*shape* as the latency model sees it."""
    return ModelProfile(
        source="the decoder that was measured",
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        ffn_size=shape.ffn_size,
        vocab_size=shape.vocab_size,
    )
