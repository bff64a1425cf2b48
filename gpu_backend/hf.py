"""A real architecture in the place of the tiny decoder: Hugging Face's Llama or Qwen3.

Needs the extra `hf` (transformers); weights are random, nothing is downloaded. The model's own code
runs, norms, rotary positions and all; only its attention is ours. Norms compute in float32 whatever
the type, so float32 is the type to use.
"""

from __future__ import annotations

from typing import Any

import torch

from gpu_backend.model import Attend, Shape
from sim.errors import ConfigError
from sim.extras import need

Tensor = Any
FAMILIES = {"llama": ("LlamaConfig", "LlamaModel"), "qwen3": ("Qwen3Config", "Qwen3Model")}
NAME = "kvsim"


class HFDecoder:
    """*family* from its configuration, in the dimensions of *shape*."""

    def __init__(
        self,
        family: str = "llama",
        shape: Shape | None = None,
        *,
        dtype: Any = torch.float32,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        library = need("transformers")
        if family not in FAMILIES:
            raise ConfigError(f"--model is {family!r}; it must be tiny, {', '.join(FAMILIES)}")
        self.shape = s = shape or Shape()
        self.dtype, self.device = dtype, device
        config_name, model_name = FAMILIES[family]
        config = getattr(library, config_name)(
            vocab_size=2 * s.vocab_size,
            hidden_size=s.hidden_size,
            intermediate_size=s.ffn_size,
            num_hidden_layers=s.num_layers,
            num_attention_heads=s.num_heads,
            num_key_value_heads=s.num_kv_heads,
            head_dim=s.head_dim,
            max_position_embeddings=8192,
            initializer_range=0.2,  # so that attention is sharp enough for every block to matter
        )
        library.AttentionInterface.register(NAME, self._attention)
        config._attn_implementation = NAME
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = getattr(library, model_name)(config).to(device=device, dtype=dtype).eval()

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, hidden_size] of *tokens* [T, 2], as `TinyDecoder.forward`."""
        embedded = self.model.get_input_embeddings()(tokens).sum(dim=1)
        done = self.model(
            inputs_embeds=embedded[None],
            position_ids=positions[None],
            use_cache=False,
            attend=attend,
        )
        return done.last_hidden_state[0]

    @staticmethod
    def _attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, attend: Attend, **__: Any
    ) -> tuple[Tensor, None]:
        """What the model calls: [1, H, T, D] in, [1, T, H, D] out."""
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        return attend(module.layer_idx, q, k, v)[None], None
