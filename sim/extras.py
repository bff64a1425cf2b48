"""Libraries that kvsim does without: imported when needed, one line when they are missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sim.errors import ConfigError

EXTRAS = {
    "torch": "torch",
    "triton": "triton",
    "flashinfer": "flashinfer",
    "transformers": "hf",
    "aiconfigurator_core": "latency-data",
}


def need(library: str) -> Any:
    """The module *library*; ConfigError that names kvsim's extra if it is not installed."""
    try:
        return import_module(library)
    except ImportError:
        raise ConfigError(f"this needs {library}; pip install 'kvsim[{EXTRAS[library]}]'") from None


def is_installed(library: str) -> bool:
    """Whether *library* can be imported, without importing it."""
    return find_spec(library) is not None
