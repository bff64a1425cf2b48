"""KV-cache bytes per token of well-known models, from their profiles in `configs/models`.

A token's KV takes 2 * layers * KV heads * head dimension numbers of 2 bytes (bf16); with multi-head
latent attention, layers * (latent + rotary dimension). An fp8 cache takes half.
"""

from __future__ import annotations

from sim.errors import ConfigError
from sim.hardware.model_profile import ModelProfile
from sim.hardware.profiles import profile_names
from sim.spec.place import did_you_mean

_MODELS = {name: ModelProfile.read(name) for name in profile_names("models")}

KV_BYTES_PER_TOKEN = {
    name: int(model.kv_bytes_per_token())
    for name, model in _MODELS.items()
    if not model.num_window_layers
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
