"""Whole runs of engine and replay on small random conversations, compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time

import numpy as np

from sim.cache import BlockManager, EvictionPolicy
from sim.checks.contract import ContractBroken, NotPrepared, require
from sim.checks.trials import Hints
from sim.checks.twins import MakeManager
from sim.engine import Engine
from sim.errors import KvsimError
from sim.keys import SegmentKeys
from sim.latency import Constant
from sim.recorder import SERIES, RunRecord
from sim.replay import replay
from sim.request import Request
from sim.scheduler_config import SchedulerConfig

SIZES = (1, 2, 3, 5, 8, 13, 20, 30, 40)  # requests
RUNS_PER_SIZE = 12
TIMES = ("arrival_time", "first_scheduled_time", "first_token_time", "finish_time")


class WholeRuns:
    """Engine with and without macro steps, and replay: everyone is served, and all agree.

    *makes*: managers that must decide the same, each with its name.
    """

    def __init__(self, makes: Sequence[tuple[str, MakeManager]], hints: Hints | None) -> None:
        self.makes = makes
        self.hints = hints
        self._call = "the constructor"
        self._program: list[str] = []

    def __call__(self, end: float) -> None:
        for size in SIZES:
            for seed in range(RUNS_PER_SIZE):
                if process_time() > end:
                    return
                self._compare(np.random.default_rng((size, seed)), size)

    def program(self) -> list[str]:
        """What runs now."""
        return self._program

    def running(self) -> str:
        """What runs now, in words."""
        return self._call

    def _compare(self, rng: np.random.Generator, num_requests: int) -> None:
        num_blocks, block_size = int(rng.integers(6, 40)), int(rng.integers(1, 6))
        usable = min(make(num_blocks, block_size).num_blocks for _, make in self.makes)
        requests = conversations(rng, num_requests, block_size, usable * block_size, self.hints)
        config = SchedulerConfig(
            max_num_batched_tokens=int(rng.choice([4, 16, 64])),
            max_num_seqs=int(rng.choice([1, 3, 16])),
            scheduler_reserve_full_isl=bool(rng.random() < 0.7),
        )
        self._program = [
            f"block_size {block_size}, num_blocks {num_blocks}",
            f"max_num_batched_tokens {config.max_num_batched_tokens}",
            f"max_num_seqs {config.max_num_seqs}",
            f"scheduler_reserve_full_isl {config.scheduler_reserve_full_isl}",
            *map(_shown, requests),
        ]
        try:
            self._engines(requests, config, num_blocks, block_size)
            self._replays(requests, num_blocks, block_size)
        except ContractBroken as broken:
            raise ContractBroken(broken.rule, broken.seen, self._program) from broken
        except NotPrepared:
            raise
        except KvsimError as error:
            rule = "every request that fits into the pool is served"
            raise ContractBroken(rule, f"{self._call}: {error}", self._program) from error
        except Exception as error:
            seen = f"{self._call}: {type(error).__name__}: {error}"
            raise ContractBroken("a run ends without an error", seen, self._program) from error

    def _engines(
        self, requests: list[Request], config: SchedulerConfig, num_blocks: int, block_size: int
    ) -> None:
        records: list[tuple[str, RunRecord]] = []
        for name, make in self.makes:
            for macro_steps in (False, True):
                self._call = f"engine with {name}, macro_steps={macro_steps}"
                manager = _prepared(make(num_blocks, block_size), requests)
                engine = Engine(
                    manager, latency=Constant(0.5), scheduler=config, macro_steps=macro_steps
                )
                record = engine.run(requests)
                records.append((self._call, record))
                left = [status for status in record.requests["status"] if status != "finished"]
                require(not left, "every request that fits is served to its end", f"{left}")
                free = manager.num_free_blocks
                require(
                    manager.usage == 0 and free == manager.num_blocks,
                    "usage returns to 0 when the last request has ended",
                    f"usage {manager.usage}, {free} of {manager.num_blocks} blocks free",
                )
        (first, one), *others = records
        for name, other in others:
            difference = _difference(one, other)
            require(
                not difference,
                "a run is the same with and without macro steps, and for managers that claim the "
                "same decisions",
                f"{first} and {name}: {difference}",
            )

    def _replays(self, requests: list[Request], num_blocks: int, block_size: int) -> None:
        results = []
        for name, make in (*self.makes, *self.makes):
            self._call = f"replay with {name}"
            results.append(replay(_prepared(make(num_blocks, block_size), requests), requests))
        require(
            all(result == results[0] for result in results),
            "a replay is the same every time, and for managers that claim the same decisions",
            f"{results}",
        )
        served = results[0]
        require(served.refused == 0, "every request that fits is served", f"{served}")


def conversations(
    rng: np.random.Generator,
    num_requests: int,
    block_size: int,
    num_slots: int,
    hints: Hints | None,
) -> list[Request]:
    """Requests that continue earlier ones or share their beginnings; each fits into the slots."""
    chains: list[tuple[list[int], list[int]]] = []
    requests: list[Request] = []
    arrival = 0.0
    for i in range(num_requests):
        arrival += float(rng.random() * 4)
        ids, ends = ([int(rng.integers(3))], [7])
        if chains and rng.random() < 0.7:
            ids, ends = chains[rng.integers(len(chains))]
        num_prompt = ends[-1] + int(rng.integers(1, 12))
        num_answer = int(rng.integers(1, 12))
        if num_prompt + num_answer > num_slots:
            num_prompt = max(1, min(num_slots // 2, 12))
            ids, ends, num_answer = [], [], max(1, min(num_answer, num_slots - num_prompt))
        ids, ends = [*ids, 10 + 2 * i, 11 + 2 * i], [*ends, num_prompt, num_prompt + num_answer]
        chains.append((ids, ends))
        request = Request(i, SegmentKeys(ids, ends, block_size), num_prompt, num_answer, arrival)
        request.hints = hints(rng) if hints else None
        requests.append(request)
    return requests


def _prepared(manager: BlockManager, requests: list[Request]) -> BlockManager:
    """*manager*, its policy shown the future if it asks for it."""
    policy = getattr(manager, "policy", None)
    if isinstance(policy, EvictionPolicy) and policy.is_offline:
        policy.prepare(requests)
    return manager


def _difference(one: RunRecord, other: RunRecord) -> str:
    """The first thing that both say and in which they differ, or ""; not all have block ids."""
    columns = {**other.requests, **other.series, **other.totals}
    for name, column in {**one.requests, **one.series, **one.totals}.items():
        theirs = columns.get(name, column)
        is_float = name in (*TIMES, *SERIES, "end_time")
        same = np.allclose(column, theirs) if is_float else column == theirs
        if not same:
            return f"{name} is {column} and {theirs}"
    return ""


def _shown(request: Request) -> str:
    keys = request.keys
    assert isinstance(keys, SegmentKeys)
    parts = ", ".join(f"{i} to token {end}" for i, end in zip(keys.ids, keys.ends, strict=True))
    return (
        f"request {request.request_id} at {request.arrival_time:.2f} s: content {parts}; "
        f"the last {request.max_tokens} tokens are the answer"
    )
