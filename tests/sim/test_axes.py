from __future__ import annotations

from typing import Any

import pytest

from sim.errors import ConfigError
from sim.spec.axes import points
from sim.spec.config import load


def settings(**sections: Any) -> list[dict[str, Any]]:
    base = {"cache": {"num_blocks": 8}, "workload": "shared_prefix", **sections}
    return [dict(point.setting) for point in points(load(base))]


def test_without_axes_there_is_one_point() -> None:
    """The configuration itself, under no setting."""
    (point,) = points(load({"cache": {"num_blocks": 8}}))
    assert (dict(point.setting), point.config.data) == ({}, {"cache": {"num_blocks": 8}})


def test_all_combinations_the_first_axis_slowest() -> None:
    """Two sizes x two rates x two seeds are eight points, in reading order."""
    sweep = {"cache.num_blocks": [4, 8], "workload.rate": [1, 2.5]}
    found = settings(sweep=sweep, seeds=[0, 1])
    assert len(found) == 8
    assert found[0] == {"cache.num_blocks": 4, "workload.rate": 1, "seed": 0}
    assert found[1] == {"cache.num_blocks": 4, "workload.rate": 1, "seed": 1}
    assert found[-1] == {"cache.num_blocks": 8, "workload.rate": 2.5, "seed": 1}


def test_a_point_has_its_values_filled_in() -> None:
    """A short name becomes a mapping, other values stay, and points share nothing."""
    sweep = {"workload": {"calm": {"use": "shared_prefix"}, "other": "mooncake"}, "seed": [3, 4]}
    sweep["workload.rate"] = [5]
    given = {"cache": {"num_blocks": 8}, "workload": "shared_prefix", "sweep": sweep}
    one, two, three, _ = (point.config.data for point in points(load(given)))
    assert one["workload"] == {"use": "shared_prefix", "rate": 5}
    assert (one["seed"], two["seed"]) == (3, 4)
    assert three["workload"] == {"use": "mooncake", "rate": 5}
    assert one["workload"] is not two["workload"]
    assert "rate" not in sweep["workload"]["calm"]  # type: ignore[index, call-overload]


def test_values_that_are_no_words_get_a_name() -> None:
    """Mappings and booleans are shown as they would be written."""
    sweep = {"latency": ["linear", {"use": "constant", "s": 1}], "cache.enable_caching": [True]}
    names = [list(setting.values()) for setting in settings(sweep=sweep)]
    assert names == [["linear", "true"], ["use: constant s: 1", "true"]]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"sweep": [1]}, "sweep is [1]; write a mapping such as"),
        ({"sweep": {"cache.num_blocks": []}}, "sweep.cache.num_blocks: is empty; give at least"),
        ({"sweep": {"cache.num_blocks": 4}}, "sweep.cache.num_blocks is 4; it must be a list"),
        ({"sweep": {"cache.num_blocks": [4, 4]}}, "sweep.cache.num_blocks[1] is 4 for the second"),
        ({"sweep": {"report.plots": [True]}}, "sweep.report.plots: report.plots cannot be swept"),
        ({"sweep": {"cache.x.y": [1]}}, "sweep cache.x.y: there is no cache.x"),
        ({"seeds": 3}, "seeds is 3; it must be a list"),
        ({"seeds": [0, "a"]}, "seeds[1] is 'a'; it must be a whole number"),
        ({"seeds": [0], "sweep": {"seed": [1]}}, "seeds: sweep.seed is an axis too"),
    ],
)
def test_bad_axes(sections: dict[str, Any], message: str) -> None:
    """Case N3: an axis that is empty, doubled, of a wrong kind or leads nowhere, by its place."""
    with pytest.raises(ConfigError) as error:
        settings(**sections)
    assert str(error.value).startswith(message)
