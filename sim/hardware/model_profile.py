"""A model's shape as far as time and memory depend on it: dense, MoE, MLA, sliding windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sim.errors import ConfigError
from sim.hardware.profiles import read_profile

Matrix = tuple[int, int]  # input and output size


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """The dimensions of a decoder; names follow Hugging Face's `config.json`, `source` says whose.

    MoE: *num_experts*, *experts_per_token*, *expert_ffn_size*, *num_shared_experts*; the first
    *num_dense_layers* layers have a dense FFN of *ffn_size*. MLA: *kv_lora_rank* and *rope_dim* are
    what is cached, *q_lora_rank*, *nope_dim* and *v_head_dim* the rest. *window*: tokens that the
    last *num_window_layers* layers keep. *weight_bits*: per parameter of the linear layers, as the
    model is published (16; MXFP4 experts count 4.25).
    """

    source: str
    num_layers: int
    hidden_size: int
    num_heads: int
    head_dim: int
    vocab_size: int
    num_kv_heads: int = 0
    ffn_size: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_ffn_size: int = 0
    num_shared_experts: int = 0
    num_dense_layers: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    v_head_dim: int = 0
    window: int = 0
    num_window_layers: int = 0
    weight_bits: float = 16.0
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        if not self.kv_lora_rank and not self.num_kv_heads:
            raise ConfigError("num_kv_heads is 0; give it, or kv_lora_rank for latent attention")
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads is {self.num_heads}; it must be a multiple of num_kv_heads, "
                f"{self.num_kv_heads}"
            )
        if self.num_experts and not 0 < self.experts_per_token <= self.num_experts:
            raise ConfigError(
                f"experts_per_token is {self.experts_per_token}; it must be 1 to num_experts, "
                f"{self.num_experts}"
            )
        if not self.num_experts and not self.ffn_size:
            raise ConfigError("ffn_size is 0; give it, or num_experts for a mixture of experts")
        if self.num_window_layers > self.num_layers or bool(self.window) != bool(
            self.num_window_layers
        ):
            raise ConfigError(
                "window and num_window_layers must be given together, for some layers"
            )

    @classmethod
    def read(cls, name: str) -> ModelProfile:
        """The profile called *name*, or in the file *name*."""
        return read_profile("models", name, cls)

    def checked_shards(self, shards: int) -> int:
        """*shards* (GPUs), if vLLM can cut the heads so; ConfigError if not."""
        if shards < 1 or self.num_heads % shards:
            raise ConfigError(
                f"tensor_parallel is {shards}; it must divide the {self.num_heads} heads of the "
                "model"
            )
        fewer, more = sorted((shards, 1 if self.is_latent else self.num_kv_heads))
        if more % fewer:
            raise ConfigError(
                f"tensor_parallel is {shards}; it must divide the {self.num_kv_heads} KV heads of "
                "the model, or be a multiple of them"
            )
        return shards

    # Memory

    @property
    def is_latent(self) -> bool:
        """Whether one latent vector is cached per token (MLA), not keys and values per head."""
        return self.kv_lora_rank > 0

    def kv_bytes_per_token_and_layer(self, kv_bytes: float = 2.0) -> float:
        """Bytes that one token takes in one layer that keeps it."""
        if self.is_latent:
            return (self.kv_lora_rank + self.rope_dim) * kv_bytes
        return 2 * self.num_kv_heads * self.head_dim * kv_bytes

    def kv_bytes_per_token(self, kv_bytes: float = 2.0) -> float:
        """Bytes that one token takes while every layer keeps it; *kv_bytes*: 2 bf16, 1 fp8."""
        return self.num_layers * self.kv_bytes_per_token_and_layer(kv_bytes)

    @property
    def num_params(self) -> int:
        """Parameters of linear layers, embedding and output head; norms and biases left out."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return embeddings + self.num_linear_params

    @property
    def num_linear_params(self) -> int:
        """Parameters of the layers: attention, FFNs, all experts, routers."""
        attention = sum(n * k for n, k in self.attention_matrices())
        dense = sum(n * k for n, k in self.ffn_matrices())
        expert = sum(n * k for n, k in self.expert_matrices())
        experts = (self.num_experts + self.num_shared_experts) * expert
        router = self.hidden_size * self.num_experts
        return (
            self.num_layers * attention
            + self.num_dense_ffns * dense
            + self.num_moe_layers * (experts + router)
        )

    def weight_bytes(self, weight_bits: float | None = None) -> float:
        """Bytes of all weights; embedding and output head stay in 16 bits."""
        bits = self.weight_bits if weight_bits is None else weight_bits
        return self.num_linear_params * bits / 8 + (self.num_params - self.num_linear_params) * 2

    # Matrices of a layer

    @property
    def num_dense_ffns(self) -> int:
        """Layers with a dense FFN."""
        return self.num_dense_layers if self.num_experts else self.num_layers

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts."""
        return self.num_layers - self.num_dense_ffns

    def attention_matrices(self, shards: int = 1) -> Iterator[Matrix]:
        """The projections of one layer as one of *shards* GPUs holds them."""
        h, heads = self.hidden_size, max(1, self.num_heads // shards)
        if not self.is_latent:
            kv_heads = max(1, self.num_kv_heads // shards)
            yield h, (heads + 2 * kv_heads) * self.head_dim
            yield heads * self.head_dim, h
            return
        queries = heads * (self.nope_dim + self.rope_dim)
        if self.q_lora_rank:
            yield h, self.q_lora_rank
        yield self.q_lora_rank or h, queries
        yield h, self.kv_lora_rank + self.rope_dim
        yield self.kv_lora_rank, heads * (self.nope_dim + self.v_head_dim)
        yield heads * self.v_head_dim, h

    def ffn_matrices(self, shards: int = 1) -> Iterator[Matrix]:
        """Gate and up together, and down."""
        if self.ffn_size:
            size = max(1, self.ffn_size // shards)
            yield self.hidden_size, 2 * size
            yield size, self.hidden_size

    def expert_matrices(self, shards: int = 1) -> Iterator[Matrix]:
        """The same for one expert; *shards* cut it (tensor parallelism)."""
        if self.num_experts:
            size = max(1, self.expert_ffn_size // shards)
            yield self.hidden_size, 2 * size
            yield size, self.hidden_size
