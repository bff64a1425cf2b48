"""A decoder small enough to run beside every test, with all that matters to a KV cache.

Pre-norm, rotary positions, grouped-query attention, SwiGLU. Two layers at least: the KV of a first
layer depends on token and position alone, so one layer cannot tell a wrong history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from gpu_backend.content import Content, number, scrambled

Tensor = Any
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [T, H, D], k [T, K, D], v [T, K, D]) -> [T, H, D]: where KV is kept and read."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The decoder's dimensions."""

    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    ffn_size: int = 128
    vocab_size: int = 1024


class Decoder(Protocol):
    """What a replay needs of a decoder."""

    shape: Shape
    dtype: Any
    device: str

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, hidden_size] of *tokens* [T, 2] at *positions* [T]."""
        ...


class TinyDecoder:
    """A decoder with random weights, the same for equal *shape* and *seed*."""

    def __init__(
        self,
        shape: Shape | None = None,
        *,
        dtype: Any = torch.float64,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.shape = s = shape or Shape()
        self.dtype, self.device = dtype, device
        # Small ones are the same on every device; large ones, to be timed, are made where they are.
        place, kind = ("cpu", torch.float64) if s.hidden_size < 512 else (device, torch.float32)
        generator = torch.Generator(place).manual_seed(seed)

        def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
            made = torch.randn(rows, columns, generator=generator, dtype=kind, device=place)
            return (made * gain / rows**0.5).to(device=device, dtype=dtype)

        num_qkv = (s.num_heads + 2 * s.num_kv_heads) * s.head_dim
        self.embedding = matrix(2 * s.vocab_size, s.hidden_size, (2 * s.vocab_size) ** 0.5)
        self.layers = [
            (
                matrix(s.hidden_size, num_qkv, 2.0),  # sharp attention: every block matters
                matrix(s.num_heads * s.head_dim, s.hidden_size),
                matrix(s.hidden_size, 2 * s.ffn_size),
                matrix(s.ffn_size, s.hidden_size),
            )
            for _ in range(s.num_layers)
        ]
        half = torch.arange(0, s.head_dim, 2, dtype=torch.float64) / s.head_dim
        self._frequencies = (10_000.0**-half).to(device)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary for each of *hidden* [R, hidden_size]."""
        return hidden @ self.embedding[: self.shape.vocab_size].T

    def embed(self, tokens: Tensor) -> Tensor:
        """The sum of the embeddings in each row of *tokens* [T, 2], as `token_ids` gives them."""
        return self.embedding[tokens].sum(dim=1)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, hidden_size] of *tokens* [T, 2] at *positions* [T]."""
        s, x = self.shape, self.embed(tokens)
        angles = positions[:, None].to(self._frequencies.dtype) * self._frequencies
        cos, sin = (f(angles).to(self.dtype)[:, None] for f in (torch.cos, torch.sin))
        sizes = [n * s.head_dim for n in (s.num_heads, s.num_kv_heads, s.num_kv_heads)]
        for i, (qkv, out, up, down) in enumerate(self.layers):
            parts = (_normed(x) @ qkv).split(sizes, dim=-1)
            q, k, v = (part.unflatten(-1, (-1, s.head_dim)) for part in parts)
            y = attend(i, _rotated(q, cos, sin), _rotated(k, cos, sin), v)
            x = x + y.flatten(1) @ out
            gate, value = (_normed(x) @ up).chunk(2, dim=-1)
            x = x + (torch.nn.functional.silu(gate) * value) @ down
        return _normed(x)


def token_ids(content: Content, vocab_size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[T, 2]: each token folded into the vocabulary, and what an image or a LoRA adds to it.

    A salt adds nothing: it isolates tenants and does not change a number.
    """
    tokens = scrambled(content.tokens.astype(np.uint64)) % np.uint64(vocab_size)
    added = np.full(len(tokens), vocab_size, dtype=np.uint64)
    for label, start, stop in content.extras:
        if not label.startswith("salt "):
            places = np.arange(len(tokens[start:stop]), dtype=np.uint64)
            words = scrambled(np.uint64(number(label)) ^ scrambled(places))
            added[start:stop] = np.uint64(vocab_size) + words % np.uint64(vocab_size)
    return np.stack([tokens, added], axis=1).astype(np.int64)


def _normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
