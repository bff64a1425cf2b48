"""The latency models: sums of a step's shape turned into seconds."""

from __future__ import annotations

import pytest

from sim.errors import ConfigError
from sim.latency import Constant, Linear, Roofline, StepLoad


def load(*rows: tuple[int, int]) -> StepLoad:
    """The load of rows (tokens, tokens computed before)."""
    step = StepLoad()
    for num_tokens, num_computed in rows:
        step.add(num_tokens, num_computed)
    return step


def test_load_sums_prefill_and_decode_rows():
    """A decode row attends to its context and itself; a prefill row to a causal triangle."""
    step = load((1, 9), (1, 19), (3, 10))
    assert (step.num_decodes, step.decode_context) == (2, 30)
    assert (step.num_prefills, step.prefill_tokens, step.prefill_context) == (1, 3, 10)
    assert step.prefill_pairs == 11 + 12 + 13


def test_constant_and_linear_by_hand():
    """10 ms + 100 tokens x 50 us + 1000 tokens of context x 20 ns = 15.02 ms."""
    assert Constant(2.5).step_time(load((1, 5))) == 2.5
    model = Linear(decode_ms=10, prefill_us_per_token=50, context_ns_per_token=20)
    assert model.step_time(load((100, 0), (1, 999))) == pytest.approx(0.01502)


def test_roofline_decode_is_bound_by_memory():
    """One decode row reads 7.5 G weights (15 GB) at .87 x 3350 GB/s and pays 32 x 25 us."""
    seconds = Roofline().step_time(load((1, 0)))
    layer_params = 4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336
    weights = 2 * (32 * layer_params + 4096 * 128256)
    assert seconds == pytest.approx(weights / (0.87 * 3350e9) + 32 * 25e-6, rel=1e-3)


def test_roofline_prefill_is_bound_by_arithmetic():
    """8192 tokens take at least their GEMM FLOPs at .81 x 989 TFLOP/s, and no more than twice."""
    layer_params = 4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336
    floor = 2 * 8192 * 32 * layer_params / (0.81 * 989e12)
    assert floor < Roofline().step_time(load((8192, 0))) < 2 * floor


def test_a_hit_saves_time_and_context_costs_it():
    """Computing 100 tokens after 900 hit ones is cheaper than 1000, dearer than 100 alone."""
    for model in (Linear(), Roofline()):
        assert model.step_time(load((100, 900))) < model.step_time(load((1000, 0)))
    roofline = Roofline()
    assert roofline.step_time(load((100, 900))) > roofline.step_time(load((100, 0)))
    assert roofline.step_time(load((1, 9000))) > roofline.step_time(load((1, 10)))


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (Constant, {"step_s": 0}),
        (Linear, {"decode_ms": 0}),
        (Linear, {"prefill_us_per_token": -1}),
        (Roofline, {"gb_per_s": 0}),
        (Constant, {"step_s": float("nan")}),
    ],
)
def test_impossible_constants_are_refused(model, arguments):
    """Time must move: the error names the argument."""
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        model(**arguments)
