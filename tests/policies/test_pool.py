"""What no pool may be: too small to hold anything, or too large to be built."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sim.cli import main
from sim.errors import ConfigError
from sim.spec.build import build

MANY = 10**23


@pytest.mark.parametrize("use", ["vllm", "radix", "uncached"])
def test_a_pool_has_a_largest_size(use: str) -> None:
    """2**40 blocks can be counted; more is a typing error, and numbers stay in 64 bits."""
    assert build("manager", {"use": use, "num_blocks": 2**40}).num_free_blocks >= 2**40 - 1
    with pytest.raises(ConfigError, match=f"num_blocks is {MANY}; it must be at most {2**40}$"):
        build("manager", {"use": use, "num_blocks": MANY})


def test_the_reference_takes_what_fits_into_memory() -> None:
    """It has an object per block; the error names the manager that has none."""
    said = f"num_blocks is {2**24 + 1}; it must be at most {2**24}; for more use the manager vllm"
    with pytest.raises(ConfigError, match=re.escape(said)):
        build("manager", {"use": "reference", "num_blocks": 2**24 + 1})


@pytest.mark.parametrize("block_size", [0, 2**20 + 1])
def test_a_block_has_1_to_a_million_tokens(block_size: int) -> None:
    """An engine with larger ones would be years in the making."""
    said = f"block_size is {block_size} tokens; it must be at least 1 and at most {2**20}"
    with pytest.raises(ConfigError, match=said):
        build("manager", {"use": "vllm", "num_blocks": 9, "block_size": block_size})


def test_validate_refuses_a_pool_that_cannot_be_built(tmp_path: Any, capsys: Any) -> None:
    """As `run` would."""
    path = tmp_path / "c.yaml"
    path.write_text(f"cache: {{num_blocks: {MANY}}}\nworkload: shared_prefix\n")
    assert main(["validate", str(path)]) == 2
    said = f"c.yaml:1: cache.num_blocks is {MANY}; it must be at most {2**40}\n"
    assert capsys.readouterr().err.endswith(said)
