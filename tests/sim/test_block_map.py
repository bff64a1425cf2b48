from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim import plots
from sim.block_states import BLANK, CACHED, COLUMN, IN_USE, MOST_BLOCKS, SHARED, block_states
from sim.engine import Engine
from sim.errors import ConfigError
from sim.keys import TokenKeys
from sim.plots.block_maps import BlockMap
from sim.reports.report import Report
from sim.request import Request
from sim.studies.study import run
from workloads.shared_prefix import SharedPrefix


def tokens(request_id: int, ids: list[int]) -> Request:
    keys = TokenKeys(ids, 4)
    return Request(request_id, keys, len(ids), 1)


def test_states_by_hand() -> None:
    """9 tokens in blocks of 4: two full blocks and one begun; a second request shares the two."""
    manager = ReferenceBlockManager(8, 4, null_block=False)
    one, two = tokens(0, list(range(9))), tokens(1, [*range(8), 50])
    manager.allocate_slots(one, 9)
    assert sorted(block_states(manager, [0]).values()) == [BLANK] * 5 + [IN_USE] * 3
    hit = manager.get_computed_blocks(two)
    manager.allocate_slots(two, 9 - hit.num_tokens, hit)
    states = sorted(block_states(manager, [0, 1]).values())
    assert states == [BLANK] * 4 + [IN_USE] * 2 + [SHARED] * 2
    manager.free(one)
    manager.free(two)
    assert sorted(block_states(manager, []).values()) == [BLANK] * 6 + [CACHED] * 2


def test_the_map_agrees_with_the_series() -> None:
    """Blocks in use, cached and blank at every sample are those that the run recorded."""
    engine = Engine(ReferenceBlockManager(100, 16))
    found = BlockMap.of(engine, SharedPrefix(30, 40, num_prefixes=4, prefix_tokens=64))
    series = engine.recorder.series
    assert list(found.times) == series["time"]
    used = np.count_nonzero(found.states >= IN_USE, axis=0)
    assert list(used) == series["num_used_blocks"]
    assert list(np.count_nonzero(found.states == CACHED, axis=0)) == series["num_cached_blocks"]
    assert used.max() > 0
    assert (found.states == SHARED).any()
    ax = plots.block_map(found)
    assert ax.get_ylabel() == "block id"


def test_the_queue_is_drawn_in_its_order() -> None:
    """Below the blocks stand the free ones, the next first."""
    manager = ReferenceBlockManager(5, 4, null_block=False)
    manager.allocate_slots(tokens(0, [1, 2, 3, 4, 5]), 5)
    shown = [text.get_text() for text in plots.free_queue(manager, [0]).texts]
    assert shown == ["0", "1", "2", "3", "4", "2", "3", "4", "blocks", "free queue", "next"]


def test_managers_without_ids_are_refused() -> None:
    """The manager by spans counts blank blocks only."""
    with pytest.raises(ConfigError, match="VLLMBlockManager has no block ids to draw"):
        block_states(VLLMBlockManager(8, 4), [])


def test_small_pools_are_drawn_in_the_report(tmp_path: Path) -> None:
    """What a run notes is what a map of the same run shows; managers without ids note nothing."""
    workload = {"use": "shared_prefix", "num_requests": 60, "num_prefixes": 4, "rate": 20}
    config = {
        "workload": workload,
        "cache": {"num_blocks": 150, "block_size": 16},
        "policies": {"spans": "vllm", "blocks": "reference"},
    }
    results = run(config, out=tmp_path / "r")
    assert BlockMap.of_run(results.select("spans")) is None
    noted = BlockMap.of_run(results.select("blocks"))
    engine = Engine(ReferenceBlockManager(150, 16))
    drawn = BlockMap.of(engine, SharedPrefix(num_requests=60, num_prefixes=4, rate=20))
    assert noted is not None
    assert noted.block_ids == drawn.block_ids == list(range(1, 150))
    assert list(noted.times) == list(drawn.times)
    assert (noted.states == drawn.states).all()
    assert {BLANK, CACHED, IN_USE, SHARED} == set(np.unique(noted.states).tolist())
    figure = next(f for f in Report.of(tmp_path / "r").figures if f.name == "block_map")
    assert "the pool of blocks:" in figure.caption
    assert figure.axes.get_ylim() == (1, 150)


def test_large_pools_and_replays_note_nothing() -> None:
    """A map of more blocks would be too fine to see; without a clock nothing is in use."""
    config = {
        "workload": {"use": "shared_prefix", "num_requests": 10},
        "cache": {"num_blocks": MOST_BLOCKS + 2},
        "policies": {"blocks": "reference"},
    }
    assert COLUMN not in run(config).series
    small = {**config, "cache": {"num_blocks": MOST_BLOCKS + 1}}
    assert COLUMN in run(small).series
    assert COLUMN not in run({**small, "mode": "replay"}).series
