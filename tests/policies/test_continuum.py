"""What Continuum remembers is bounded: times, programs, and nothing of requests that are alone."""

from __future__ import annotations

import numpy as np
import pytest

from policies import continuum
from policies.continuum import Continuum, Durations
from policies.vllm import VLLMBlockManager
from sim.keys import SegmentKeys
from sim.replay import replay
from sim.request import Request


def calls(sessions, tool="x"):
    """One request per entry, a second apart, each of one block that it shares with its session."""
    return [
        Request(i, SegmentKeys([hash(s)], [3], 1), 2, 1, float(i), session=s, hints={"tool": tool})
        for i, s in enumerate(sessions)
    ]


def served(requests, **arguments):
    policy = Continuum(**arguments)
    replay(VLLMBlockManager(64, 1, eviction=policy, null_block=False), requests)
    return policy


def test_requests_without_a_session_leave_nothing():
    """Each is a program of its own that never comes back: nobody will ask for its start or call."""
    policy = served(calls([None] * 200))
    assert not policy._programs
    assert not policy._durations
    assert not policy._all_durations.values


def test_times_are_the_latest():
    """Of 500 times the latest 50, sorted."""
    times = np.random.default_rng(0).integers(0, 20, 500).tolist()
    durations = Durations(50)
    for i, time in enumerate(times):
        durations.add(time)
        assert durations.values == sorted(times[max(0, i - 49) : i + 1])


def test_times_are_bounded_in_a_run(monkeypatch):
    """One session calls a tool 100 times; with 10 the latest 10 are kept, or 20 if they must be."""
    monkeypatch.setattr(continuum, "MOST_DURATIONS", 10)
    for min_samples, most in ((5, 10), (20, 20)):
        policy = served(calls([1] * 100), min_samples=min_samples)
        assert len(policy._durations["x"].values) == most
        assert len(policy._all_durations.values) == most


@pytest.mark.parametrize(
    ("sessions", "most", "num_returned", "starts"),
    [
        ("abcab", 3, 2, [0, 1, 2]),  # all come back as themselves
        ("abcab", 2, 0, [3, 4]),  # both come back as new programs
        ("abac", 2, 1, [0, 3]),  # b was seen longest ago
    ],
)
def test_the_program_seen_longest_ago_is_forgotten(
    monkeypatch, sessions, most, num_returned, starts
):
    """With one session too many; the starts that are known in the end say which it was."""
    monkeypatch.setattr(continuum, "MOST_PROGRAMS", most)
    policy = served(calls([ord(letter) for letter in sessions]))
    assert sorted(start for start, _ in policy._programs.values()) == starts
    assert len(policy._all_durations.values) == num_returned
