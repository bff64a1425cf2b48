"""L1: a decoder over paged KV computes what it computes densely, to the tolerance of its type."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'kvsim[torch]'")

import torch

from gpu_backend.attention.reference import Reference
from gpu_backend.cache import PagedKVCache
from gpu_backend.content import Content
from gpu_backend.metadata import capture_sizes
from gpu_backend.model import Shape, TinyDecoder, token_ids
from gpu_backend.mutants import MUTANTS
from gpu_backend.toy import toy_engine, toy_requests
from gpu_backend.trace import Event, StepTrace, TracedRequest, TracedRow, TracedStep
from gpu_backend.tracing import traced_run
from gpu_backend.verify import dense, verify_trace

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trace() -> StepTrace:
    """60 requests of 320 tokens that are chunked, preempted, evicted and hit."""
    return traced_run(toy_engine(num_blocks=60), toy_requests())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_paged_is_dense(trace, dtype, tolerance):
    """Outputs and cached KV of every request agree; the numbers are those that were measured."""
    verdict = verify_trace(trace, dtype=dtype, sizes=capture_sizes(16, 100))
    assert verdict.findings == []
    assert 0 < verdict.worst_output < tolerance
    assert 0 < verdict.worst_kv < tolerance
    assert verdict.num_kv > 30_000
    assert verdict.num_tokens == trace.num_tokens


def test_in_16_bits_the_kv_alone_is_compared(trace):
    """bf16 noise stays far below what a wrong block makes; the output is not judged."""
    verdict = verify_trace(trace.head(3000), dtype="bfloat16")
    assert verdict.findings == []
    assert 0.01 < verdict.worst_kv < 0.15
    assert verdict.worst_output == 0.0
    wrong = MUTANTS["hash without parent"].trace(num_blocks=60).head(3000)
    assert set(verify_trace(wrong, dtype="bfloat16").counts) == {"L1 KV"}


@pytest.mark.parametrize("free_order", ["tail", "unhashed_first"])
@pytest.mark.parametrize(("num_blocks", "budget"), [(40, 100), (120, 50), (300, 4096)])
def test_every_kind_of_traffic(free_order, num_blocks, budget):
    """Preempted, chunked, hit within a step; heads before tokens in memory."""
    engine = toy_engine(num_blocks=num_blocks, max_num_batched_tokens=budget, free_order=free_order)
    trace = traced_run(engine, toy_requests(10))
    verdict = verify_trace(trace, layout="HND", sizes=capture_sizes(16, budget))
    assert verdict.findings == []
    assert verdict.worst_output < 1e-9


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name):
    """What a layer should find it finds; what it cannot see it does not pretend to."""
    mutant = MUTANTS[name]
    trace = mutant.trace(num_blocks=60).head(2500)
    seen = set(verify_trace(trace, tamper=mutant.tamper).counts)
    expected = {layer for layer in mutant.found_by if layer.startswith("L1")}
    assert expected <= seen
    assert not seen & mutant.blind


def by_hand(*steps, contents, num_blocks=6, **fields) -> StepTrace:
    """Blocks of 4; a step is (events, request, computed, scheduled, blocks), all admissions."""
    made = [
        TracedStep(0.0, events, [TracedRow(i, computed, num, True, np.array(ids, np.int32))])
        for events, i, computed, num, ids in steps
    ]
    requests = [TracedRequest(i, len(t), Content(t, ())) for i, t in enumerate(contents)]
    return StepTrace(num_blocks, 4, requests, made, **fields)


def test_one_layer_does_not_see_a_wrong_history():
    """Its KV depends on token and position alone; so the decoder has two layers.

    Request 2 has request 1's first block and, in block 2, the tokens that request 0 had behind
    another first block.
    """
    a, b, same, rest = np.random.default_rng(0).integers(0, 1000, (4, 4))
    contents = [np.concatenate([a, same]), b, np.concatenate([b, same, rest])]
    steps = [([], 0, 0, 8, [1, 2]), ([], 1, 0, 4, [3]), ([], 2, 8, 4, [3, 2, 4])]
    trace = by_hand(*steps, contents=contents)
    assert verify_trace(trace, shape=Shape(num_layers=1)).is_clean
    assert set(verify_trace(trace, shape=Shape(num_layers=2)).counts) == {"L1 output", "L1 KV"}


class WritesLate(Reference):
    """Stores the KV of a layer after its attention: hits within a step read what is not there."""

    def write(self, cache, layer, slots, keys, values):
        self.pending = (slots, keys, values)

    def attend(self, cache, layer, queries, batch):
        out = super().attend(cache, layer, queries, batch)
        cache.write(layer, *self.pending)
        return out


def test_kv_is_written_before_it_is_read(trace):
    """A backend that does it the other way round reads poison."""
    assert not verify_trace(trace.head(500), backend=WritesLate()).is_clean


def test_an_offloaded_block_comes_back():
    """Request 0's first block goes to block 6 and is a hit in block 5; without the copy: poison."""
    contents = np.random.default_rng(0).integers(0, 1000, (2, 9))
    away, back = [Event("freed", 0), Event("copied", 6, 1)], Event("copied", 5, 6)
    steps = [
        ([], 0, 0, 9, [1, 2, 3]),
        (away, 1, 0, 9, [1, 2, 3]),
        ([Event("freed", 1), back], 0, 4, 5, [5, 2, 4]),
    ]
    assert verify_trace(by_hand(*steps, contents=contents, num_offload_blocks=1)).is_clean
    steps[2] = ([Event("freed", 1)], 0, 4, 5, [5, 2, 4])
    lost = by_hand(*steps, contents=contents, num_offload_blocks=1)
    assert set(verify_trace(lost).counts) == {"L1 output", "L1 KV"}


def test_dense_is_causal():
    """The first tokens come out the same whatever follows them."""
    model, tokens = TinyDecoder(), np.arange(20).reshape(10, 2)
    whole, part = dense(model, tokens).hidden, dense(model, tokens[:6]).hidden
    assert torch.allclose(whole[:6], part, atol=1e-12)
    assert not torch.allclose(whole[4], whole[5], atol=1e-3)


def test_images_and_loras_change_numbers_and_salts_do_not():
    """What isolates tenants is invisible to the model, as in reality."""
    content = Content(np.arange(8), ())
    plain = token_ids(content, 64)
    image = token_ids(content._replace(extras=(("image cat", 2, 5),)), 64)
    assert (plain != image).any(axis=1).tolist() == [False] * 2 + [True] * 3 + [False] * 3
    assert (plain == token_ids(content._replace(extras=(("salt a", 0, 1),)), 64)).all()
    assert plain[:, 0].max() < 64 <= plain[:, 1].min()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_the_cache_by_hand(layout):
    """Slot 5 of blocks of 4 is block 1, place 1; padding is not written; poison stays NaN."""
    cache = PagedKVCache(1, 3, 4, 1, 2, layout=layout)
    keys = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]], dtype=torch.float64)
    cache.write(0, torch.tensor([5, -1]), keys, keys + 10)
    found_keys, found_values = cache.gather(0, torch.tensor([1]))
    assert found_keys[1].tolist() == [[1.0, 2.0]]
    assert found_values[1].tolist() == [[11.0, 12.0]]
    assert int(torch.isnan(cache.memory).sum()) == cache.memory.numel() - 4
    cache.copy_block(1, 2)
    cache.poison(torch.tensor([1]))
    assert torch.isnan(cache.gather(0, torch.tensor([1]))[0]).all()
    assert cache.gather(0, torch.tensor([2]))[0][1].tolist() == [[1.0, 2.0]]
