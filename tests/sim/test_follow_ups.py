from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from policies.vllm import VLLMBlockManager
from sim.engine import Engine
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.latency import LatencyModel, StepLoad
from sim.request import Request


class OneSecond(LatencyModel):
    """Every step takes a second."""

    def step_time(self, load: StepLoad) -> float:
        return 1.0


def request(name: int, num_prompt: int = 4, num_output: int = 2, **fields: Any) -> Request:
    keys = SegmentKeys((name,), (num_prompt + num_output,), 4)
    return Request(name, keys, num_prompt, num_output, **fields)


def run(
    requests: Sequence[Request], *, num_blocks: int = 99, **options: Any
) -> dict[str, list[Any]]:
    engine = Engine(VLLMBlockManager(num_blocks, 4), latency=OneSecond(), **options)
    return dict(engine.run(requests).requests)


@pytest.mark.parametrize("macro_steps", [True, False])
def test_a_turn_comes_when_the_user_has_thought(macro_steps: bool) -> None:
    """Each answer takes 2 steps. Turn 2: 2 + 5 = 7 s, ends at 9; turn 3: 9 + 0.5 s."""
    rows = run(
        [
            request(0, arrival_time=0),
            request(1, arrival_time=100, follows=(0,), think_time=5),
            request(2, arrival_time=50, follows=(1,), think_time=0.5),
        ],
        macro_steps=macro_steps,
    )
    assert rows["arrival_time"] == [0, 7, 9.5]
    assert rows["finish_time"] == [2, 9, 11.5]


def test_without_a_pause_the_next_step_has_it() -> None:
    """A follower that comes at once is in the step that begins at that moment."""
    rows = run([request(0), request(1, num_output=9), request(2, follows=(0,))])
    assert rows["arrival_time"] == [0, 0, 2]
    assert rows["first_scheduled_time"] == [0, 0, 2]


def test_who_follows_several_waits_for_the_last() -> None:
    """An agent goes on when all of its sub-agents have answered, at 2 s and at 5 s."""
    rows = run([request(0), request(1, num_output=5), request(2, follows=(0, 1), think_time=1)])
    assert rows["arrival_time"] == [0, 0, 6]


def test_a_slower_server_delays_its_own_arrivals() -> None:
    """With one sequence at a time the second user waits, and so does the user's next turn."""
    from sim.scheduler_config import SchedulerConfig

    turns = [request(0), request(1), request(2, follows=(0,)), request(3, follows=(1,))]
    fast = run(turns)
    slow = run(turns, scheduler=SchedulerConfig(max_num_seqs=1))
    assert fast["arrival_time"] == [0, 0, 2, 2]
    assert slow["arrival_time"] == [0, 0, 2, 4]


def test_refused_and_aborted_turns_are_followed_too() -> None:
    """The user goes on after a refusal (at once) and after hanging up (at 3 s)."""
    rows = run(
        [
            request(0, num_prompt=1000),
            request(1, num_output=50, abort_time=3.0),
            request(2, follows=(0,), think_time=1),
            request(3, follows=(1,), think_time=1),
        ],
        num_blocks=20,
    )
    assert rows["status"] == ["refused", "aborted", "finished", "finished"]
    assert rows["arrival_time"] == [0, 0, 1, 4]


def test_what_never_comes_has_no_arrival() -> None:
    """At the end of the horizon: one is still thinking, the other's predecessor still runs."""
    rows = run(
        [
            request(0),
            request(1, num_output=50),
            request(2, follows=(0,), think_time=100),
            request(3, follows=(1,)),
        ],
        until=10.0,
    )
    assert rows["arrival_time"][:2] == [0, 0]
    assert all(math.isnan(time) for time in rows["arrival_time"][2:])
    assert rows["status"] == ["finished", "unfinished", "unfinished", "unfinished"]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"follows": (7,)}, "follows 7, which does not stand before it"),
        ({"follows": (1,)}, "follows 1, which does not stand before it"),
        ({"follows": (0,), "abort_time": 5.0}, "has an abort_time"),
        ({"follows": (0,), "think_time": -1.0}, "think_time is -1.0"),
        ({"follows": (0,), "think_time": math.inf}, "think_time is inf"),
    ],
)
def test_loops_that_cannot_be_are_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        run([request(0), request(1, **fields)])
