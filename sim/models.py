"""KV-cache bytes per token of well-known models.

A token's KV takes 2 * layers * KV heads * head dimension numbers of 2 bytes (bf16); with multi-head
latent attention, layers * (latent + rotary dimension). Dimensions are those of the models' public
Hugging Face `config.json`. An fp8 cache takes half.
"""

from __future__ import annotations

from sim.errors import ConfigError
from sim.place import did_you_mean

KV_BYTES_PER_TOKEN = {
    "llama-3.1-8b": 2 * 32 * 8 * 128 * 2,
    "llama-3.1-70b": 2 * 80 * 8 * 128 * 2,
    "llama-3.1-405b": 2 * 126 * 8 * 128 * 2,
    "qwen2.5-7b": 2 * 28 * 4 * 128 * 2,
    "qwen2.5-72b": 2 * 80 * 8 * 128 * 2,
    "qwen3-8b": 2 * 36 * 8 * 128 * 2,
    "qwen3-32b": 2 * 64 * 8 * 128 * 2,
    "qwen3-30b-a3b": 2 * 48 * 4 * 128 * 2,
    "qwen3-235b-a22b": 2 * 94 * 4 * 128 * 2,
    "mistral-7b": 2 * 32 * 8 * 128 * 2,
    "mixtral-8x7b": 2 * 32 * 8 * 128 * 2,
    "deepseek-v3": 61 * (512 + 64) * 2,
    "kimi-k2": 61 * (512 + 64) * 2,
}
"""For models in which every layer keeps every token: one pool of equal blocks."""


def kv_bytes_per_token(model: str) -> int:
    """The bytes that one token of *model* takes in a bf16 cache; ConfigError if it is unknown."""
    if model not in KV_BYTES_PER_TOKEN:
        raise ConfigError(
            f"--model is {model!r}{did_you_mean(model, KV_BYTES_PER_TOKEN)}; known are "
            f"{', '.join(KV_BYTES_PER_TOKEN)}; for another give --kv-bytes-per-token"
        )
    return KV_BYTES_PER_TOKEN[model]
