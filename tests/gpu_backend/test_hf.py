"""Hugging Face's own model code over paged KV: the same comparison, with real architectures."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'kvsim[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'kvsim[hf]'")

import torch

from gpu_backend.hf import FAMILIES, HFDecoder
from gpu_backend.mutants import MUTANTS
from gpu_backend.toy import toy_engine, toy_requests
from gpu_backend.tracing import traced_run
from gpu_backend.verify import verify_trace

torch.set_num_threads(1)


@pytest.mark.parametrize("family", FAMILIES)
def test_paged_is_dense(family):
    """Outputs and cached KV of every request agree, to float32."""
    trace = traced_run(toy_engine(num_blocks=60), toy_requests(12))
    verdict = verify_trace(trace, model=HFDecoder(family), dtype="float32")
    assert verdict.findings == []
    assert 0 < verdict.worst_output < 1e-4
    assert 0 < verdict.worst_kv < 1e-4


@pytest.mark.parametrize("name", ["hash without parent", "wrong slot"])
def test_bugs_are_found(name):
    """As with the tiny decoder."""
    mutant = MUTANTS[name]
    trace = mutant.trace(num_blocks=60).head(4000)
    verdict = verify_trace(trace, model=HFDecoder(), dtype="float32", tamper=mutant.tamper)
    assert set(verdict.counts) == {"L1 output", "L1 KV"}
