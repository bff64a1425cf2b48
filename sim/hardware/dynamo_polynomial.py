"""The step times of NVIDIA Dynamo's mocker: polynomials, for comparisons with it.

Prefill: 4.209989e-7 n^2 + 1.518344e-2 n + 16.50142 ms for n new tokens in the step. Decode:
-25.74 u^2 + 54.01 u + 5.74 ms, at least 1 ms, where u is the share of the KV pool in use. Source:
the mocker's defaults (Dynamo, read 2026-11); of no particular model or GPU, and without an error
claim. Differs from it: a step that prefills and decodes takes both times together.
"""

from __future__ import annotations

from sim.errors import ConfigError
from sim.latency import LatencyModel, StepLoad


class DynamoPolynomial(LatencyModel):
    """Dynamo's default polynomials; *num_kv_tokens*: what the whole KV pool holds."""

    def __init__(self, num_kv_tokens: int = 65_536) -> None:
        if num_kv_tokens < 1:
            raise ConfigError(f"num_kv_tokens is {num_kv_tokens}; it must be at least 1")
        self.num_kv_tokens = num_kv_tokens

    def step_time(self, load: StepLoad) -> float:
        milliseconds, n = 0.0, load.prefill_tokens
        if n:
            milliseconds += (4.209989e-7 * n + 1.518344e-2) * n + 16.50142
        if load.num_decodes:
            used = min(1.0, load.decode_context / self.num_kv_tokens)
            milliseconds += max(1.0, (-25.74 * used + 54.01) * used + 5.74)
        return max(milliseconds, 1.0) * 1e-3
