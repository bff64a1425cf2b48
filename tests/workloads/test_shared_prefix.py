from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workloads
from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError
from sim.keys import SegmentKeys
from sim.replay import replay
from workloads.shared_prefix import SharedPrefix

DIGEST = """
import hashlib, random, numpy
from workloads.shared_prefix import SharedPrefix
random.seed({user_seed}); numpy.random.seed({user_seed})
digest = hashlib.sha256()
for r in SharedPrefix(num_requests=500, seed={seed}):
    parts = (r.request_id, r.arrival_time, r.max_tokens, r.keys.ids, r.keys.ends)
    digest.update(repr(parts).encode())
print(digest.hexdigest())
"""


def fields(workload: SharedPrefix) -> list[tuple[Any, ...]]:
    return [
        (r.request_id, r.arrival_time, r.num_prompt_tokens, r.max_tokens, r.keys.ids, r.keys.ends)
        for r in workload
        if isinstance(r.keys, SegmentKeys)
    ]


def digest(seed: int, user_seed: int) -> str:
    """The requests of one seed, as another process with another hash seed makes them."""
    root = str(Path(workloads.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-c", DIGEST.format(seed=seed, user_seed=user_seed)],
        env=os.environ | {"PYTHONPATH": root, "PYTHONHASHSEED": str(user_seed)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_one_seed_gives_one_workload_in_every_process() -> None:
    """Case N6: seed 7 is the same in two processes whatever the user seeded; seed 8 differs."""
    assert digest(7, user_seed=1) == digest(7, user_seed=2)
    assert digest(7, user_seed=1) != digest(8, user_seed=1)


def test_global_generators_are_untouched() -> None:
    """Case N6: the user's random and numpy.random states stay as they are."""
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    list(SharedPrefix(num_requests=50))
    after = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    assert after == before


def test_every_seed_component_has_its_own_stream() -> None:
    """Lengths do not change with the rate, nor prefixes with the answers, nor the past with N."""
    base = fields(SharedPrefix(num_requests=100))
    assert fields(SharedPrefix(num_requests=300))[:100] == base
    faster = fields(SharedPrefix(rate=16, num_requests=100))
    assert [f[2:] for f in faster] == [f[2:] for f in base]
    assert [2 * f[1] for f in faster] == pytest.approx([f[1] for f in base])
    longer = fields(SharedPrefix(num_requests=100, output_tokens=500))
    assert [f[:3] for f in longer] == [f[:3] for f in base]


def test_iterating_twice_gives_equal_fresh_requests() -> None:
    workload = SharedPrefix(num_requests=20)
    assert fields(workload) == fields(workload)
    for request in workload:
        request.num_computed_tokens = 5
    assert all(request.num_computed_tokens == 0 for request in workload)
    assert len(workload) == len(list(workload)) == 20


def test_only_prefixes_are_shared() -> None:
    """Two requests agree on the full blocks of a common prefix and on nothing else."""
    requests = list(SharedPrefix(num_requests=60, num_prefixes=5, block_size=16))
    for a in requests:
        for b in requests[: int(a.request_id)]:
            assert isinstance(a.keys, SegmentKeys)
            assert isinstance(b.keys, SegmentKeys)
            keys_a = {a.keys[i] for i in range(len(a.keys))}
            keys_b = {b.keys[i] for i in range(len(b.keys))}
            same = a.keys.ids[0] == b.keys.ids[0]
            assert len(keys_a & keys_b) == (a.keys.ends[0] // 16 if same else 0)


def test_lengths_and_arrivals_have_the_distributions_asked_for() -> None:
    """Means, coefficients of variation and rate within 3 % over 200,000 requests."""
    workload = SharedPrefix(
        rate=5,
        num_requests=200_000,
        num_prefixes=10_000,
        zipf=0,
        prefix_tokens=2000,
        prefix_cv=0.4,
        suffix_tokens=500,
        suffix_cv=0.8,
        output_tokens=300,
        output_cv=0.0,
    )
    rows = fields(workload)
    ends = np.array([f[5] for f in rows])
    prefix, suffix, output = ends[:, 0], ends[:, 1] - ends[:, 0], ends[:, 2] - ends[:, 1]
    assert prefix.mean() == pytest.approx(2000, rel=0.03)
    assert prefix.std() / prefix.mean() == pytest.approx(0.4, rel=0.03)
    assert suffix.mean() == pytest.approx(500, rel=0.03)
    assert suffix.std() / suffix.mean() == pytest.approx(0.8, rel=0.03)
    assert set(output.tolist()) == {300}

    gaps = np.diff([0.0, *(f[1] for f in rows)])
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.03)


def test_components_are_independent() -> None:
    """No correlation between gaps, prefixes, suffixes and answers: below 5 sigma over 20,000."""
    rows = fields(SharedPrefix(num_requests=20_000, num_prefixes=1000, zipf=0.5))
    ends = np.array([f[5] for f in rows])
    gaps = np.diff([0.0, *(f[1] for f in rows)])
    columns = [gaps, [f[4][0] for f in rows], *np.diff(ends, axis=1, prepend=0).T]
    correlation = np.corrcoef(np.array(columns, dtype=float))
    assert (np.abs(correlation - np.eye(5)) < 5 / np.sqrt(20_000)).all()


def test_no_part_of_a_request_is_empty() -> None:
    """Means of one token with a wide spread still give at least one token each."""
    workload = SharedPrefix(
        prefix_tokens=1, prefix_cv=3, suffix_tokens=1, suffix_cv=3, output_tokens=1, output_cv=3
    )
    ends = np.array([f[5] for f in fields(workload)])
    assert np.diff(ends, axis=1, prepend=0).min() == 1


@pytest.mark.parametrize("zipf", [0.0, 1.0, 1.5])
def test_popularity_follows_zipf(zipf: float) -> None:
    """Prefix k is used in proportion to k ** -zipf: counts within 5 sigma."""
    num = 50_000
    workload = SharedPrefix(num_requests=num, num_prefixes=10, zipf=zipf)
    counts = np.bincount([f[4][0] for f in fields(workload)], minlength=10)
    weights = np.arange(1, 11) ** -zipf
    expected = num * weights / weights.sum()
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_defaults_make_a_curve_worth_looking_at() -> None:
    """Hit rates at 1024, 2048, 4096 and 8192 blocks of 16 tokens rise through 30-60 %."""
    workload = SharedPrefix(num_requests=3000)
    rates = [
        replay(ReferenceBlockManager(num_blocks, 16), workload).hit_rate
        for num_blocks in (1024, 2048, 4096, 8192)
    ]
    assert rates == sorted(rates)  # type: ignore[type-var]
    assert rates[0] == pytest.approx(0.3, abs=0.06)
    assert rates[-1] == pytest.approx(0.6, abs=0.06)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("rate", 0),
        ("rate", float("inf")),
        ("rate", "8"),
        ("num_requests", 0),
        ("num_requests", 10.5),
        ("num_prefixes", -1),
        ("zipf", -0.5),
        ("prefix_tokens", 0),
        ("suffix_cv", float("nan")),
        ("output_tokens", None),
        ("block_size", False),
        ("seed", -1),
        ("seed", None),
    ],
)
def test_arguments_out_of_range_are_named(argument: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^SharedPrefix: {argument} is {value!r}; it must be "):
        SharedPrefix(**{argument: value})


def test_lengths_beyond_any_block_table_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"output_tokens is 10000000000 .* lower one of them"):
        SharedPrefix(output_tokens=10**10)
