"""Profiles of models and GPUs: what is in them, and the times and memory that follow."""

from __future__ import annotations

import math

import pytest

from sim.errors import ConfigError
from sim.hardware.dynamo_polynomial import DynamoPolynomial
from sim.hardware.gpu_profile import GpuProfile
from sim.hardware.kv_memory import GIB, kv_memory
from sim.hardware.model_profile import ModelProfile
from sim.hardware.profiled import Profiled
from sim.hardware.profiles import profile_names
from sim.latency import Roofline, StepLoad
from sim.spec.build import build


def load(*rows: tuple[int, int]) -> StepLoad:
    """The load of rows (tokens, tokens computed before)."""
    step = StepLoad()
    for num_tokens, num_computed in rows:
        step.add(num_tokens, num_computed)
    return step


PARAMS = {  # billions, as their publishers count them
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.6,
    "llama-3.1-405b": 405.9,
    "qwen2.5-7b": 7.62,
    "qwen2.5-72b": 72.7,
    "qwen3-8b": 8.19,
    "qwen3-32b": 32.8,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.1,
    "mistral-7b": 7.25,
    "mixtral-8x7b": 46.7,
    "deepseek-v3": 671.0,
    "kimi-k2": 1026.0,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
}


@pytest.mark.parametrize("name", profile_names("models"))
def test_a_models_dimensions_give_its_parameters(name):
    """Within half a percent of the published count: no dimension can be far off."""
    assert ModelProfile.read(name).num_params / 1e9 == pytest.approx(PARAMS[name], rel=0.005)


@pytest.mark.parametrize("kind", ["models", "gpus"])
def test_every_profile_names_its_source(kind):
    """Whose numbers, and when they were read; the GPU's fits say to what."""
    read = {"models": ModelProfile.read, "gpus": GpuProfile.read}[kind]
    assert len(profile_names(kind)) == {"models": 15, "gpus": 7}[kind]
    for name in profile_names(kind):
        source = read(name).source
        assert "2026" in source, name
        assert "read" in source, name
    if kind == "gpus":
        fitted = [name for name in profile_names(kind) if GpuProfile.read(name).fits]
        assert fitted == ["a100", "b200", "h100", "h200", "l40s"]
        assert all("aiconfigurator-core 0.12" in GpuProfile.read(n).fits["tables"] for n in fitted)


def test_the_dense_formula_is_that_of_the_plain_roofline():
    """With the same constants, up to the writing of KV, which `roofline` leaves out."""
    g = GpuProfile.read("h100")
    plain = Roofline(
        gemm_efficiency=g.gemm_efficiency,
        memory_efficiency=g.memory_efficiency,
        prefill_attention_efficiency=g.prefill_attention_efficiency,
        decode_attention_efficiency=g.decode_attention_efficiency,
    )
    profiled = Profiled("llama-3.1-8b", "h100")
    for rows in ([(1, 1000)] * 32, [(4096, 0)], [(512, 8000), (1, 100)]):
        step = load(*rows)
        written = sum(n for n, _ in rows) * 131_072 / (g.memory_efficiency * 3350e9)
        assert profiled.step_time(step) == pytest.approx(plain.step_time(step) + written, rel=1e-9)


def test_two_gpus_halve_the_weights_and_pay_for_all_reduces():
    """One decode row is bound by weights; 160 all-reduces of 8 us come on top of half of them."""
    one, two = (Profiled("llama-3.1-70b", "h200", tensor_parallel=n) for n in (1, 2))
    fixed = 80 * 25e-6
    whole, half = (m.step_time(load((1, 0))) - fixed for m in (one, two))
    assert half == pytest.approx(whole / 2 + 2 * 80 * 8e-6, rel=0.01)


def test_all_reduces_move_every_token():
    """8,192 tokens: twice per layer half of 2 bytes x 8,192 each way over 450 GB/s, and 8 us."""
    two = Profiled("llama-3.1-70b", "h200", tensor_parallel=2)
    moved = 2 * 80 * (2 * (1 / 2) * 8192 * 8192 * 2 / 450e9)
    assert two._reduce_s == pytest.approx(2 * 80 * 8e-6)
    assert 8192 * two._reduce_token_s == pytest.approx(moved)
    eight = Profiled("llama-3.1-70b", "h200", tensor_parallel=8)
    assert eight._reduce_token_s / two._reduce_token_s == pytest.approx((7 / 8) / (1 / 2))


def test_a_mixture_reads_the_experts_that_are_touched():
    """128 experts, 8 per token: 1 token reads 8, 48 tokens 128 (1 - (15/16)^48) = 122.2."""
    model = Profiled("qwen3-30b-a3b", "h200")
    expert = 3 * 2048 * 768 * 2 / (model.gpu.memory_efficiency * 4800e9)
    for num_tokens, touched in ((1, 8), (48, 122.2)):
        assert model._experts(num_tokens) == pytest.approx(touched * expert, rel=0.02)
    many = 2 * 3 * 2048 * 768 * 8 * 8192 / (model.gpu.gemm_efficiency * 989e12)
    assert model._experts(8192) == pytest.approx(many, rel=0.01)


def test_latent_attention_is_not_simply_bound_by_memory():
    """DeepSeek-V3: 278,528 FLOPs per token of context and layer beside 1,152 bytes."""
    model = Profiled("deepseek-v3", "h200")
    assert model._decode_pair == 278_528
    assert model.model.kv_bytes_per_token_and_layer() == 1152
    more = model.step_time(load((1, 20_000))) - model.step_time(load((1, 10_000)))
    bound = (
        61
        * 10_000
        * max(
            278_528 / (model.gpu.gemm_efficiency * 989e12),
            1152 / (model.gpu.decode_attention_efficiency * 4800e9),
        )
    )
    assert more == pytest.approx(bound, rel=1e-6)
    per_hit = 2 * 512 * 128 * 256  # the latent is expanded again: 33.6 MFLOP per token and layer
    assert model._hit_s * model._head_flops == per_hit == 33_554_432
    warm, cold = (model._attention(load((512, hit)), 0) for hit in (4096, 0))
    pairs, read = 512 * 4096 * model._pair_s, 4096 * model._kv_read_s
    assert warm - cold == pytest.approx(pairs + read + 4096 * model._hit_s, rel=1e-9)


def test_windowed_layers_stop_paying_for_context():
    """gpt-oss: beyond 128 tokens only 18 of 36 layers read more; rows of equal length are exact."""
    model = Profiled("gpt-oss-120b", "h100")
    near, far = (model.step_time(load((1, n - 1), (1, n - 1))) for n in (10_000, 20_000))
    kv = 2 * 8 * 64 * 2 / (model.gpu.decode_attention_efficiency * 3350e9)
    assert far - near == pytest.approx(18 * 2 * 10_000 * kv, rel=1e-6)
    chunk = model._attention(load((1000, 50_000)), 128)
    assert chunk == pytest.approx(1000 * 128 * model._pair_s + 1128 * model._kv_read_s, rel=1e-9)


def test_fp8_weights_halve_a_decode_and_speed_up_a_prefill():
    """Where there is fp8; A100 has none, so only the bytes shrink there."""
    for gpu, prefill_gains in (("h200", True), ("a100", False)):
        wide, narrow = (Profiled("llama-3.1-8b", gpu, weights=w) for w in ("bf16", "fp8"))
        assert narrow.step_time(load((1, 0))) < 0.7 * wide.step_time(load((1, 0)))
        gain = wide.step_time(load((8192, 0))) / narrow.step_time(load((8192, 0)))
        assert (gain > 1.3) == prefill_gains


def test_memory_becomes_blocks():
    """Llama-3.1-8B on H100: 72 GiB less 15 GiB of weights and 2: 28,182 blocks of 2 MiB."""
    memory = kv_memory("llama-3.1-8b", "h100")
    assert memory.block_bytes == 2 * 2**20
    assert memory.weights == 2 * ModelProfile.read("llama-3.1-8b").num_params
    assert memory.num_blocks == int((72 * GIB - memory.weights - 2 * GIB) // (2 * 2**20)) == 28_182
    two = kv_memory("llama-3.1-70b", "h200", tensor_parallel=2)
    assert two.block_bytes == 5 * 2**20 / 2
    wide = kv_memory("llama-3.1-8b", "h100", tensor_parallel=16)
    assert wide.block_bytes == 2 * 2**20 / 8  # two GPUs each keep the same KV head
    latent = kv_memory("deepseek-v3", "h200", tensor_parallel=8)
    assert latent.block_bytes == 70_272 * 16  # every GPU keeps the latent of every token


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kv_memory("llama-3.1-405b", "h200"), "leaves no memory for KV on 1 x h200"),
        (lambda: kv_memory("llama-3.1-8b", "h200", utilization=1.5), "utilization is 1.5"),
        (lambda: kv_memory("qwen3-8b", "h100", kv_bytes=0), "kv_bytes is 0; it must be above 0"),
        (lambda: kv_memory("qwen3-8b", "h100", kv_bytes=-1), "kv_bytes is -1; it must be above 0"),
        (
            lambda: kv_memory("qwen3-8b", "h100", kv_bytes=math.nan),
            "kv_bytes is nan; it must be above",
        ),
        (
            lambda: kv_memory("qwen3-8b", "h100", weight_bits=0),
            "weight_bits is 0; it must be above",
        ),
        (lambda: kv_memory("qwen3-8b", "h100", activation_gib=-1), "activation_gib is -1; it must"),
        (
            lambda: kv_memory("qwen3-8b", "h100", block_size=0),
            "block_size is 0; it must be at leas",
        ),
        (
            lambda: kv_memory("qwen3-8b", "h100", tensor_parallel=3),
            "tensor_parallel is 3; it must divide the 32 heads",
        ),
        (
            lambda: kv_memory("qwen2.5-7b", "h100", tensor_parallel=7),
            "tensor_parallel is 7; it must divide the 4 KV heads of the model, or be a multiple",
        ),
        (lambda: Profiled("lama-3.1-8b"), r"did you mean 'llama-3.1-8b'\? \(known: deepseek"),
        (lambda: Profiled(gpu="h300"), r"gpu is 'h300'.*did you mean"),
        (lambda: Profiled(tensor_parallel=3), "must divide the 32 heads"),
        (lambda: Profiled(tensor_parallel=16), "all_reduce_us has no value for it"),
        (lambda: Profiled(gpu="l4", tensor_parallel=2), "all_reduce_us has no value .* has: none"),
        (lambda: DynamoPolynomial(0), "num_kv_tokens is 0"),
    ],
)
def test_what_cannot_be_is_one_line(call, message):
    """The value, the rule and what there is."""
    with pytest.raises(ConfigError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source: x\nnum_layers: 2\nlayers: 3\n", r"own\.yaml:3: layers: unknown"),
        ("source: x\nnum_layers: two\n", r"own\.yaml:2: num_layers is 'two'; it must be a whole"),
        ("source: x\n", r"own\.yaml: needs num_layers, hidden_size"),
        (
            "{source: x, num_layers: 2, hidden_size: 8, num_heads: 3, num_kv_heads: 2, "
            "head_dim: 4, ffn_size: 8, vocab_size: 9}",
            r"own\.yaml: num_heads is 3; it must be a multiple",
        ),
    ],
)
def test_own_profiles_are_checked(tmp_path, text, message):
    """A file of one's own, with file, line and rule."""
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Profiled(str(path))


def test_dynamos_polynomials():
    """1,000 new tokens: 0.42 + 15.18 + 16.50 ms; half the pool in use: 26.31 ms; together both."""
    model = DynamoPolynomial(num_kv_tokens=1000)
    assert model.step_time(load((1000, 5))) == pytest.approx(0.0321058, rel=1e-4)
    assert model.step_time(load((1, 499))) == pytest.approx(0.02631, rel=1e-4)
    assert model.step_time(load((1000, 5), (1, 499))) == pytest.approx(0.0584158, rel=1e-4)


def test_a_configuration_names_them():
    """By short name, with their arguments."""
    spec = {"use": "profile", "model": "qwen3-8b", "gpu": "a100", "kv": "fp8"}
    assert build("latency", spec).step_time(load((1, 10))) > 0
    assert math.isfinite(build("latency", "dynamo").step_time(load((1, 10))))
    with pytest.raises(ConfigError, match="one of fp8, bf16"):
        build("latency", {"use": "profile", "kv": "fp4"})
