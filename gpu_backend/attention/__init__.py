"""Paged-attention backends behind one registry: what each can do, and why not where it cannot."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from sim.errors import ConfigError
from sim.extras import is_installed
from sim.spec.place import did_you_mean

if TYPE_CHECKING:
    from gpu_backend.attention.batch import Backend

BACKENDS = {
    "reference": "gpu_backend.attention.reference:Reference",
    "triton": "gpu_backend.attention.triton_paged:Triton",
    "flex": "gpu_backend.attention.flex:Flex",
    "flashinfer": "gpu_backend.attention.flashinfer:FlashInfer",
    "fa3": "gpu_backend.attention.fa3:FlashAttention3",
    "varlen": "gpu_backend.attention.varlen:Varlen",
}
NO_TORCH = "torch is not installed; pip install 'kvsim[torch]'"


class Capabilities(NamedTuple):
    """What a backend can do, and *missing*: why it cannot run on this device here, "" if it can."""

    name: str
    devices: str
    dtypes: str
    block_sizes: str
    head_dims: str
    missing: str


def backend_class(name: str) -> type[Backend]:
    """The class of a backend; ConfigError if there is none of that name."""
    if name not in BACKENDS:
        raise ConfigError(
            f"no attention backend is called {name!r}{did_you_mean(name, BACKENDS)} "
            f"(known: {', '.join(BACKENDS)})"
        )
    if not is_installed("torch"):
        raise ConfigError(f"backend {name}: {NO_TORCH}")
    module, _, attribute = BACKENDS[name].partition(":")
    found: type[Backend] = getattr(import_module(module), attribute)
    return found


def capabilities(device: str) -> list[Capabilities]:
    """All backends, those that run on *device* and those that do not."""
    if not is_installed("torch"):
        return [Capabilities(name, "", "", "", "", NO_TORCH) for name in BACKENDS]
    found = []
    for name in BACKENDS:
        kind = backend_class(name)
        missing = "" if device_exists(device) else "there is no CUDA device"
        found.append(
            Capabilities(
                name,
                " ".join(kind.devices),
                " ".join(kind.dtypes),
                kind.block_sizes,
                kind.head_dims,
                kind.missing(device) or missing,
            )
        )
    return found


def make_backend(name: str, device: str, dtype: str = "float32") -> Backend:
    """Backend *name* on *device*; ConfigError that says why not."""
    kind = backend_class(name)
    missing = kind.missing(device)
    if missing:
        raise ConfigError(f"backend {name} is not available on {device}: {missing}")
    if dtype not in kind.dtypes:
        raise ConfigError(f"backend {name} has no {dtype}; it has {', '.join(kind.dtypes)}")
    return kind(device)


def device_exists(device: str) -> bool:
    """Whether torch sees *device*."""
    if device == "cpu":
        return True
    import torch

    return bool(torch.cuda.is_available())


def choose_device(wish: str) -> str:
    """`auto` is a CUDA device if there is one; ConfigError if `cuda` is wished for in vain."""
    if not is_installed("torch"):
        raise ConfigError(f"this needs torch: {NO_TORCH}")
    if wish == "auto":
        return "cuda" if device_exists("cuda") else "cpu"
    if wish not in ("cpu", "cuda"):
        raise ConfigError(f"--device is {wish!r}; it must be auto, cpu or cuda")
    if not device_exists(wish):
        raise ConfigError("--device is cuda; torch sees no CUDA device here, use cpu or auto")
    return wish
