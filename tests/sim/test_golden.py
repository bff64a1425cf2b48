"""Recordings of real vLLM replay with no difference, and a broken manager does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.reference import ReferenceBlockManager
from sim.golden import find, replay_file

MANAGERS = ["reference"]
NOT_YET = {"h20", "h21", "h25", "h26", "h27", "h28", "t11"}


def supported(path: Path) -> bool:
    name = path.stem.split("_")[0]
    return name not in NOT_YET and not name.startswith("a0")


@pytest.mark.parametrize("manager", MANAGERS)
def test_every_recording_with_one_full_attention_group_replays(goldens, manager):
    """Both vLLM versions and the engine runs: same hits, ids, queues, evictions, events, stats."""
    verdicts = {path: replay_file(path, manager) for path in find([goldens])}
    differing = [str(v) for v in verdicts.values() if v.status == "differs"]
    assert differing == []
    assert {p.stem for p, v in verdicts.items() if v.status != "same"} == {
        p.stem for p in verdicts if not supported(p)
    }
    assert sum(v.status == "same" for v in verdicts.values()) == 133


def test_a_wrong_free_order_is_noticed(goldens, monkeypatch):
    """A manager that frees the shallowest block first differs from the recording."""
    free = ReferenceBlockManager.free

    def head_first(self, request, *, now=0.0):
        self.tables.get(request.request_id, []).reverse()
        free(self, request, now=now)

    monkeypatch.setattr(ReferenceBlockManager, "free", head_first)
    verdict = replay_file(goldens / "v0.23.0" / "h01_design_doc_example.json")
    assert verdict.status == "differs"
    assert "free" in verdict.detail


def test_a_wrong_eviction_is_noticed(goldens, monkeypatch):
    """A manager that keeps the hash of a block it reuses differs from the recording."""
    monkeypatch.setattr(ReferenceBlockManager, "_unhash", lambda self, block: None)
    assert replay_file(goldens / "v0.33.0" / "h05_lru_eviction.json").status == "differs"
