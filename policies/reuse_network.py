"""The network of `policies.learned`: trained with torch, asked with numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.reuse_examples import Array, Features
from sim.extras import need

NUM_HIDDEN = 16
NUM_EPOCHS = 400
LEARNING_RATE = 0.02


class Network(NamedTuple):
    """A network with one hidden layer, trained: the probability of a reuse within the horizon."""

    shift: Array
    scale: Array
    hidden: Array
    hidden_bias: Array
    out: Array
    out_bias: float

    def probability(self, seen: Features) -> float:
        """0 to 1, of what `features` gives."""
        if not self.out.any():
            return 0.5
        inner = np.tanh((np.array(seen) - self.shift) * self.scale @ self.hidden + self.hidden_bias)
        return float(1 / (1 + np.exp(-(inner @ self.out) - self.out_bias)))

    @classmethod
    def ignorant(cls) -> Network:
        """One that says 0.5, whatever it sees."""
        nothing = np.zeros(1)
        return cls(nothing, nothing, np.zeros((1, 1)), nothing, nothing, 0.0)


def train(rows: Array, labels: Array, weights: Array, *, seed: int) -> Network:
    """A network for these examples; the same for the same *seed*, on one thread."""
    if not len(rows):
        return Network.ignorant()
    torch = need("torch")
    shift, scale = rows.mean(axis=0), 1 / np.maximum(rows.std(axis=0), 1e-6)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would add in another order
    try:
        generator = torch.Generator().manual_seed(seed)
        sizes = [(rows.shape[1], NUM_HIDDEN), (NUM_HIDDEN,), (NUM_HIDDEN,), ()]
        layers = [
            (torch.randn(size, generator=generator, dtype=torch.float64) / 4).requires_grad_()
            for size in sizes
        ]
        hidden, hidden_bias, out, out_bias = layers
        x = torch.from_numpy((rows - shift) * scale)
        y, weight = torch.from_numpy(labels), torch.from_numpy(weights / weights.mean())
        optimizer = torch.optim.Adam(layers, lr=LEARNING_RATE)
        for _ in range(NUM_EPOCHS):
            optimizer.zero_grad()
            logits = torch.tanh(x @ hidden + hidden_bias) @ out + out_bias
            torch.nn.functional.binary_cross_entropy_with_logits(logits, y, weight).backward()
            optimizer.step()
    finally:
        torch.set_num_threads(num_threads)
    arrays = [layer.detach().numpy() for layer in layers]
    return Network(shift, scale, arrays[0], arrays[1], arrays[2], float(arrays[3]))
