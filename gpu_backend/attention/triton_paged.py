"""Our own Triton kernels as a backend: on a GPU compiled, on a CPU run by Triton's interpreter.

One program per tile of a row's queries and KV head: right for prefill, decode and both in a step.
Decoding is not split along the context, so few long rows do not fill a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import torch

from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.cache import PagedKVCache
from sim.errors import ConfigError
from sim.extras import is_installed, need

Tensor = Any
TILE = 32  # KV tokens at a time
MIN_LINES = 16  # what a tensor core multiplies at least
MAX_LINES = 64
SWITCH = "TRITON_INTERPRET"


class Triton(Backend):
    """Kernels of our own, for every layout of a block; outputs in the type of the cache."""

    name = "triton"
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16", "float16")
    head_dims: ClassVar[str] = "16 32 64 128 256"

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        _claim(device)
        self._tiled: tuple[Batch, int, Tensor, Tensor] | None = None

    @classmethod
    def missing(cls, device: str) -> str:
        if not is_installed("triton"):
            return "triton is not installed; pip install 'kvsim[triton]'"
        return super().missing(device)

    def write(
        self, cache: PagedKVCache, layer: int, slots: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        num_tokens, num_heads, head_dim = keys.shape
        keys, values = keys.contiguous(), values.contiguous()
        key_cache, value_cache = cache.keys[layer], cache.values[layer]
        kernel = _kernel("write_kv", self.device)
        with _switched(self.device):
            kernel[(num_tokens, num_heads)](
                keys,
                values,
                key_cache,
                value_cache,
                slots,
                *keys.stride()[:2],
                *key_cache.stride()[:3],
                BLOCK_SIZE=cache.block_size,
                HEAD_DIM=head_dim,
            )

    def attend(self, cache: PagedKVCache, layer: int, queries: Tensor, batch: Batch) -> Tensor:
        queries = queries.contiguous()
        num_heads, head_dim = queries.shape[1:]
        key_cache = cache.keys[layer]
        num_kv_heads = key_cache.shape[2]
        group = num_heads // num_kv_heads
        lines = max(MIN_LINES, _power_of_two(group * min(batch.max_query_len, MAX_LINES // group)))
        tile_rows, tile_starts = self._tiles(batch, lines // group)
        out = torch.zeros_like(queries)
        with _switched(self.device):
            _kernel("paged_attention", self.device)[(len(tile_rows), num_kv_heads)](
                queries,
                key_cache,
                cache.values[layer],
                out,
                batch.block_table,
                batch.seq_lens,
                batch.query_start_loc,
                tile_rows,
                tile_starts,
                head_dim**-0.5,
                *queries.stride()[:2],
                *key_cache.stride()[:3],
                batch.block_table.stride(0),
                BLOCK_SIZE=cache.block_size,
                HEAD_DIM=head_dim,
                GROUP=group,
                QUERIES=lines // group,
                LINES=lines,
                TILE=TILE,
            )
        return out

    def _tiles(self, batch: Batch, num_queries: int) -> tuple[Tensor, Tensor]:
        """Row and first token of every tile of *num_queries* tokens: once per step."""
        if self._tiled is None or self._tiled[:2] != (batch, num_queries):
            found = [
                (row, first)
                for row, (start, stop) in enumerate(pairwise(batch.starts))
                for first in range(start, stop, num_queries)
            ]
            columns = torch.tensor(found, dtype=torch.int32, device=batch.seq_lens.device).T
            self._tiled = (batch, num_queries, *columns.contiguous())
        return self._tiled[2:]


def compiled(name: str, capability: int, dtype: str = "bf16") -> Any:
    """Kernel *name* compiled for compute *capability* (80, 90), without any GPU.

    Shapes are those of an 8B model: blocks of 16, heads of 128, four query heads per KV head.
    """
    _claim("cuda")
    triton, compiler = need("triton"), need("triton.compiler")
    backends = need("triton.backends.compiler")
    floats, ints, sizes = f"*{dtype}", "*i32", "i64"
    if name == "write_kv":
        types = [floats] * 4 + ["*i64"] + [sizes] * 5
        constants = {"BLOCK_SIZE": 16, "HEAD_DIM": 128}
    else:
        types = [floats] * 4 + [ints] * 5 + ["fp32"] + [sizes] * 6
        constants = {"BLOCK_SIZE": 16, "HEAD_DIM": 128, "GROUP": 4}
        constants |= {"QUERIES": 4, "LINES": 16, "TILE": TILE}
    kernel = _kernel(name, "cuda")
    given = dict(zip(kernel.arg_names, types, strict=False))
    source = compiler.ASTSource(
        fn=kernel,
        signature=given | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
    )
    return triton.compile(source, target=backends.GPUTarget("cuda", capability, 32))


_claimed: set[str] = set()


def _claim(device: str) -> None:
    """A process compiles or interprets: interpreting changes Triton for all that comes later."""
    _claimed.add(device)
    if len(_claimed) > 1:
        _claimed.discard(device)
        raise ConfigError(
            f"Triton {'interprets' if device == 'cuda' else 'compiles'} already in this process "
            "and cannot do the other too; start another"
        )


@cache
def _kernel(name: str, device: str) -> Any:
    """A kernel for *device*: whether it is interpreted is decided when it is made."""
    with _switched(device):
        kernels = need("gpu_backend.attention.kernels")
        if device == "cpu":
            for helper in ("row_max", "row_sum"):
                setattr(kernels, helper, _interpreted(getattr(kernels, helper)))
        return need("triton").jit(getattr(kernels, name))


def _interpreted(helper: Any) -> Any:
    """A function of Triton's own for the interpreter, whenever Triton was imported."""
    kind = need("triton.runtime.interpreter").InterpretedFunction
    return helper if isinstance(helper, kind) else kind(helper.fn)


@contextmanager
def _switched(device: str) -> Iterator[None]:
    """Triton's interpreter is on for CPU tensors and off for others."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1" if device == "cpu" else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def _power_of_two(n: int) -> int:
    return int(1 << (n - 1).bit_length())
