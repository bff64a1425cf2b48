"""Backends: those that can run here agree with dense computation; the others say why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'kvsim[torch]'")

import torch

from gpu_backend.attention import BACKENDS, backend_class, capabilities, make_backend
from gpu_backend.attention.batch import Batch, CudaBackend
from gpu_backend.attention.reference import Reference
from gpu_backend.cache import PagedKVCache
from gpu_backend.metadata import Row, build_metadata
from gpu_backend.toy import toy_engine, toy_requests
from gpu_backend.tracing import traced_run
from gpu_backend.verify import verify_trace
from sim.errors import ConfigError
from sim.extras import is_installed

torch.set_num_threads(1)
HERE = [one.name for one in capabilities("cpu") if not one.missing]


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_runs_or_says_why_not(name):
    """What is missing is one line; to ask for it all the same is an error that says it."""
    (one,) = (one for one in capabilities("cpu") if one.name == name)
    if one.missing:
        assert "\n" not in one.missing
        with pytest.raises(ConfigError, match=f"backend {name} is not available on cpu: "):
            make_backend(name, "cpu")
        pytest.skip(f"{name} is not available: {one.missing}")
    assert make_backend(name, "cpu").name == name


def test_unknown_names_and_types_are_one_line():
    with pytest.raises(ConfigError, match=r"called 'trition'; did you mean 'triton'\?"):
        backend_class("trition")
    with pytest.raises(ConfigError, match="flex has no float64; it has float32"):
        make_backend("flex", "cpu", "float64")


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("name", [name for name in HERE if name != "reference"])
def test_a_run_agrees_with_dense_computation(name, layout):
    """Chunks, hits within a step, decodes and padding, in both layouts of a block."""
    trace = traced_run(toy_engine(num_blocks=60), toy_requests(8, 64)).head(200)
    verdict = verify_trace(
        trace,
        dtype="float32",
        backend=make_backend(name, "cpu"),
        layout=layout,
        sizes=(1, 2, 4, 8, 104),
    )
    assert verdict.findings == []
    assert 0 < verdict.worst_output < 1e-5


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize("name", HERE)
def test_one_step_of_everything(name, group):
    """Long and short rows, decodes at block borders, several heads per KV head, blocks of 8."""
    rng = np.random.default_rng(group)
    lengths = [(0, 37), (16, 1), (15, 1), (8, 9), (63, 1), (0, 1)]
    free = iter(rng.permutation(np.arange(1, 40)).tolist())
    rows = [Row(c, n, [next(free) for _ in range(-(-(c + n) // 8))]) for c, n in lengths]
    batch = Batch.of(build_metadata(rows, 8, pad_to=56), "cpu")
    expected, found = (
        attended(kind, batch, group) for kind in (Reference("cpu"), make_backend(name, "cpu"))
    )
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[:50], expected[:50], rtol=1e-5, atol=1e-6)


def attended(backend, batch, group):
    """What *backend* makes of a cache in which nothing but what may be read is written."""
    generator = torch.Generator().manual_seed(0)
    cache = PagedKVCache(1, 40, 8, 2, 16, dtype=torch.float32, poison=backend.poison)
    for row, length in enumerate(batch.lengths):
        places = torch.arange(length)
        slots = batch.block_table[row, places // 8].long() * 8 + places % 8
        kv = torch.randn(2, length, 2, 16, generator=generator)
        backend.write(cache, 0, slots, kv[0], kv[1])
    queries = torch.randn(56, 2 * group, 16, generator=generator)
    return backend.attend(cache, 0, queries, batch)


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("triton"), reason="triton is not installed")
def test_our_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    """For sm_80 and sm_90, in bf16 and fp32, with the shared memory that is there."""
    done = subprocess.run(
        [sys.executable, "-m", "gpu_backend.attention.compile_check", "80", "90"],
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert all(line.endswith("of shared memory: fits") for line in lines)


@pytest.mark.skipif(not is_installed("triton"), reason="triton is not installed")
def test_after_the_interpreter_nothing_is_compiled():
    """Triton is changed by it; the error says what to do."""
    make_backend("triton", "cpu")
    with pytest.raises(ConfigError, match=r"interprets already in this process .* start another"):
        backend_class("triton")("cuda")


class Pages(CudaBackend):
    """Looks like a library's kernel: takes no padding and pages of every layer alone."""

    name = "pages"

    def attend_pages(self, queries, keys, values, batch):
        cache = PagedKVCache(1, *keys.shape, dtype=keys.dtype)
        cache.keys[0].copy_(keys)
        cache.values[0].copy_(values)
        return Reference("cpu").attend(cache, 0, queries, batch)


def test_what_the_adapters_of_libraries_share():
    """Padding is taken off and put back; without a GPU they say so."""
    rows = [Row(0, 5, [1]), Row(7, 1, [2])]
    batch = Batch.of(build_metadata(rows, 8, pad_to=56), "cpu")
    expected, found = (attended(kind, batch, 2) for kind in (Reference("cpu"), Pages("cpu")))
    assert found.shape == expected.shape
    torch.testing.assert_close(found[:6], expected[:6])
    assert not found[6:].any()
    assert Pages.missing("cpu") == "runs on cuda only"
    if not torch.cuda.is_available():
        assert Pages.missing("cuda") == "there is no CUDA device"
