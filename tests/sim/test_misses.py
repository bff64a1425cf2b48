from __future__ import annotations

from typing import Any

import pytest

from policies.vllm import VLLMBlockManager
from sim.misses import CLASSES, attribution
from sim.results import Results
from sim.study import run

CONFIG: dict[str, Any] = {
    "cache": {"block_size": 4},
    "workload": {
        "use": "shared_prefix",
        "num_requests": 200,
        "num_prefixes": 12,
        "prefix_tokens": 24,
        "suffix_tokens": 8,
        "output_tokens": 6,
    },
    "policies": {"lru": "vllm", "off": {"use": "vllm", "enable_caching": False}},
    "sweep": {"cache.num_blocks": [60, 100_000]},
}


@pytest.mark.parametrize("mode", ["engine", "replay", "replay_with_answers"])
def test_every_token_has_one_reason(mode: str) -> None:
    """The classes add up to the prompts; only the pool's size moves tokens from lost to hit."""
    results = run({**CONFIG, "mode": mode})
    table = attribution(results)
    prompts = results.summary["prompt_tokens"]
    assert (table[list(CLASSES)].sum(axis=1) == prompts).all()
    assert (table[list(CLASSES)] >= 0).all(axis=None)
    assert list(table["hit"]) == list(results.summary["prefix_cache_hits"])
    assert table["compulsory"].nunique() == table["partial"].nunique() == 1
    small, large, off, _ = table.to_dict("records")
    assert small["lost"] > 0
    assert large["lost"] == 0
    assert off["lost"] == large["hit"]


def test_the_reasons_by_hand() -> None:
    """Blocks of 4: 10 tokens are new, again 8 of them hit; 8 tokens exactly recompute a block."""
    from sim.experiment import Experiment
    from sim.keys import ChunkKeys
    from sim.request import Request
    from sim.workload import Workload

    class Three(Workload):
        """The same ids with 10, 10 and 8 tokens, then others, then the first again."""

        def __init__(self) -> None:
            self.block_size = 4

        def __iter__(self) -> Any:
            prompts = [([1, 2, 3], 10), ([1, 2, 3], 10), ([1, 2], 8), ([7, 8, 9, 10], 16)]
            for i, (ids, length) in enumerate([*prompts, ([1, 2, 3], 10)]):
                yield Request(i, ChunkKeys(ids, 4, 4, length, length + 1, -1 - i), length, 1, i)

        def __len__(self) -> int:
            return 5

    config = {"mode": "replay", "cache": {"num_blocks": 5, "block_size": 4}, "workload": Three()}
    experiment = Experiment.load({**config, "policies": {"lru": VLLMBlockManager(5, 4)}})
    results: Results = experiment.run_one("lru")
    (row,) = attribution(results).to_dict("records")
    assert [row[name] for name in CLASSES] == [8 + 4, 8, 4, 2 + 2 + 2, 8 + 16]
