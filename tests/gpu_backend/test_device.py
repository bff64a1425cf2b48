"""The one script for a GPU, run whole on a CPU at toy size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'kvsim[torch]'")

from gpu_backend import device
from sim.errors import ConfigError


@pytest.mark.slow
def test_every_part_runs_at_toy_size(tmp_path):
    """In a process of its own, as on the device; each part leaves a file and says how it went."""
    done = subprocess.run(
        [sys.executable, "-m", "gpu_backend.device", "--toy", "--device", "cpu", "--out", tmp_path],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    states = json.loads((tmp_path / "summary.json").read_text())
    assert set(states.values()) == {"done"}
    assert {"correct_reference", "mutants", "profile", "steps", "memory"} <= set(states)
    correct = json.loads((tmp_path / "correct_reference.json").read_text())
    assert correct["worst_output"] < 1e-5
    assert correct["one_step_error"] == 0
    mutants = json.loads((tmp_path / "mutants.json").read_text())
    assert len(mutants) == 2  # one and the seconds


def test_a_part_that_fails_does_not_take_the_others_along(tmp_path, monkeypatch, capsys):
    """It says why; what has no time left says that; the exit code is 1."""

    def broken(self):
        raise RuntimeError("no kernel image\nfor this device")

    def refused():
        raise ConfigError("backend fa3 has no float32; it has bfloat16")

    parts = {"environment": None, "broken": None, "refused": refused, "late": None}

    def few(self):
        parts["environment"] = self.environment
        parts["broken"] = lambda: broken(self)
        parts["late"] = lambda: {"findings": ["L0: wrong"]}
        return parts

    monkeypatch.setattr(device.Session, "parts", few)
    assert device.main(["--toy", "--device", "cpu", "--out", str(tmp_path)]) == 1
    states = json.loads((tmp_path / "summary.json").read_text())
    assert states == {
        "environment": "done",
        "broken": "failed: RuntimeError: no kernel image for this device",
        "refused": "failed: ConfigError: backend fa3 has no float32; it has bfloat16",
        "late": "wrong: see its file",
    }
    arguments = ["--toy", "--device", "cpu", "--minutes", "0", "--out", str(tmp_path)]
    assert device.main(arguments) == 1
    states = json.loads((tmp_path / "summary.json").read_text())
    assert states["broken"] == "skipped: no time was left"
