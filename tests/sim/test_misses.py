from __future__ import annotations

from typing import Any

import pytest

from policies.ranked import Ranked
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.analysis.explain import explain
from sim.analysis.misses import CLASSES, attribution, by_request
from sim.keys import BlockKeys, ChunkKeys, TokenKeys
from sim.latency import LatencyModel, StepLoad
from sim.request import Request
from sim.results import Results
from sim.studies.experiment import Experiment
from sim.studies.study import run
from sim.workload import Workload

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
    assert small["evicted"] > 0
    assert large["evicted"] == large["orphan"] == 0
    assert off["not_looked_up"] == large["hit"] + large["not_computed"]
    assert table["isolation"].sum() == 0
    if mode != "engine":
        assert table["not_computed"].sum() == 0


def test_the_reasons_by_hand() -> None:
    """Blocks of 4: 10 tokens are new, again 8 of them hit; 8 tokens exactly recompute a block."""

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
    found = {name: row[name] for name in CLASSES if row[name]}
    new = 8 + 16
    assert found == {"hit": 8 + 4, "evicted": 8, "last_token": 4, "partial": 6, "compulsory": new}


class Prompts(Workload):
    """Requests as they are given: (keys, tokens, arrival)."""

    def __init__(self, *prompts: tuple[BlockKeys, int, float]) -> None:
        self.block_size = 4
        self.prompts = prompts

    def __iter__(self) -> Any:
        for i, (keys, length, arrival) in enumerate(self.prompts):
            yield Request(i, keys, length, 1, arrival)

    def __len__(self) -> int:
        return len(self.prompts)


def missed(mode: str, manager: Any, workload: Workload, **config: Any) -> list[dict[str, int]]:
    """The classes of every request that are not 0."""
    cache = {"num_blocks": manager.num_blocks, "block_size": 4}
    whole = {"mode": mode, "cache": cache, "workload": workload, "policies": {"one": manager}}
    results = Experiment.load({**whole, **config}).run_one("one")
    rows = by_request(results.requests, 4).to_dict("records")
    for row, request in zip(rows, workload, strict=True):
        assert sum(row.values()) == request.num_prompt_tokens
    return [{str(name): n for name, n in row.items() if n} for row in rows]


@pytest.mark.parametrize("mode", ["engine", "replay"])
@pytest.mark.parametrize("make", [VLLMBlockManager, ReferenceBlockManager])
def test_orphans_by_hand(mode: str, make: Any) -> None:
    """A's first block goes to a new one, what follows is kept: 8 tokens behind a gap."""
    a = ChunkKeys([1, 2, 3, 9], 4, 4, 13, 14, -1)
    others = [(ChunkKeys([20 + i], 4, 4, 4, 5, -2 - i), 4, 1.0 + i) for i in range(4)]

    class Shallow(Ranked):
        """The start of a prompt goes first."""

        max_span = 1

        def rank(self, span: Any, request: Request, now: float) -> int:
            return int(span.start)

    manager = make(6, 4, null_block=False, eviction=Shallow())
    found = missed(mode, manager, Prompts((a, 13, 0.0), *others, (a, 13, 10.0)))
    assert found[-1] == {"evicted": 4, "orphan": 8, "partial": 1}
    table = explain(
        make(6, 4, null_block=False, eviction=Shallow()),
        Prompts((a, 13, 0.0), *others, (a, 13, 10.0)),
    ).requests
    assert dict(table.iloc[-1][["evicted", "orphan", "partial"]]) == found[-1]


@pytest.mark.parametrize("mode", ["engine", "replay"])
def test_isolation_by_hand(mode: str) -> None:
    """Another salt and another LoRA have nothing of 8 tokens; then 4 of 8."""
    tokens = list(range(10))
    chains = [
        TokenKeys(tokens, 4, salt="a"),
        TokenKeys(tokens, 4, salt="b"),
        TokenKeys(tokens, 4, salt="b"),
        TokenKeys(tokens, 4, lora=("x", "path")),
        TokenKeys([*tokens[:4], 99, 98, 97, 96, 1], 4),
    ]
    workload = Prompts(*((keys, len(tokens) - (i == 4), float(i)) for i, keys in enumerate(chains)))
    assert missed(mode, VLLMBlockManager(50, 4), workload) == [
        {"compulsory": 8, "partial": 2},
        {"isolation": 8, "partial": 2},
        {"hit": 8, "partial": 2},
        {"isolation": 8, "partial": 2},
        {"isolation": 4, "compulsory": 4, "partial": 1},
    ]


def test_tenants_are_isolated() -> None:
    """What `tenants` takes from the hits is isolation; with one tenant there is none."""
    base = {"use": "shared_prefix", "num_requests": 200, "num_prefixes": 6}
    config = {"mode": "replay", "cache": {"num_blocks": 100_000}, "policies": {"lru": "vllm"}}
    (one, many) = (
        run({**config, "workload": {"use": "tenants", "of": base, "num_tenants": n}})
        .misses()
        .iloc[0]
        for n in (1, 5)
    )
    assert one["isolation"] == 0
    assert many["isolation"] == one["hit"] - many["hit"] > 0


def test_not_computed_by_hand() -> None:
    """A computes 40 tokens in chunks of 8, B comes with the fourth: it hits 32, A computes 4 more.

    The last 4 cannot be hit; C comes when all is there and hits 36.
    """
    keys = TokenKeys(range(40), 4)
    workload = Prompts((keys, 40, 0.0), (keys, 40, 2.5), (keys, 40, 100.0))
    engine = {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 8, "rules": "0.23"}

    class Seconds(LatencyModel):
        """Every step takes 1 s."""

        def step_time(self, load: StepLoad) -> float:
            return 1.0

    found = missed("engine", VLLMBlockManager(50, 4), workload, engine=engine, latency=Seconds())
    assert found[0] == {"compulsory": 40}
    assert found[1] == {"hit": 32, "not_computed": 4, "last_token": 4}
    assert found[2] == {"hit": 36, "last_token": 4}


def test_what_is_not_looked_up() -> None:
    """A request that skips the cache misses what is there for that reason alone."""

    class Skipping(Prompts):
        def __iter__(self) -> Any:
            for request in super().__iter__():
                request.skip_reading_prefix_cache = request.request_id == 1
                yield request

    keys = TokenKeys(range(10), 4)
    workload = Skipping(*((keys, 10, float(i)) for i in range(3)))
    for mode in ("engine", "replay"):
        found = missed(mode, VLLMBlockManager(50, 4), workload)
        assert found[1:] == [{"not_looked_up": 8, "partial": 2}, {"hit": 8, "partial": 2}]
    table = explain(VLLMBlockManager(50, 4), workload).requests
    assert list(table["not_looked_up"]) == [0, 8, 0]
