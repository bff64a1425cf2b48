"""Misses of libCacheSim on requests of one block: writes `flat_traces.json` beside this file.

    python tests/data/flat_traces.py   # needs libcachesim 0.3.5, and traces under $KVSIM_DATA

`tests/policies/test_flat_traces.py` compares kvsim's policies with these numbers, and these numbers
with libCacheSim where it is installed.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

EXPECTED = Path(__file__).with_suffix(".json")
VERSION = "0.3.5"
POLICIES = {
    "lru": "LRU",
    "fifo": "FIFO",
    "clock": "Clock",
    "sieve": "Sieve",
    "s3fifo": "S3FIFO",
    "slru": "SLRU",
    "two_q": "TwoQ",
    "arc": "ARC",
    "lirs": "LIRS",
    "wtinylfu": "WTinyLFU",
    "lecar": "LeCaR",
    "hyperbolic": "Hyperbolic",
    "random": "Random",
}
BY_CHANCE = ("lecar", "hyperbolic", "random")  # their numbers are means of several runs
NUM_RUNS = 4
CAPACITIES = {  # blocks; multiples of 500, so that no share of a pool is rounded
    "zipf": (500, 1000, 2000),
    "oltp": (1000, 5000),
    "web07": (500, 2000),
    "orm_busy": (500, 1000),
    "cloud_physics": (1000, 4000, 16000),
}
FOLDER = "object_cache"


def trace(name: str, data: Path | None) -> list[int] | None:
    """Object ids, from 0; None if *data* has no such trace. `zipf` is made up and needs none."""
    if name == "zipf":
        return _zipf()
    if data is None:
        return None
    read = {"oltp": _oltp, "web07": _web07, "orm_busy": _orm_busy, "cloud_physics": _cloud_physics}
    try:
        ids = read[name](data / FOLDER)
    except FileNotFoundError:
        return None
    numbers: dict[int, int] = {}
    return [numbers.setdefault(i, len(numbers)) for i in ids]


def _zipf(num_accesses: int = 12_000, num_objects: int = 4_000, exponent: float = 0.9) -> list[int]:
    weights = 1 / np.arange(1, num_objects + 1) ** exponent
    rng = np.random.default_rng(20260101)
    drawn: list[int] = rng.choice(num_objects, num_accesses, p=weights / weights.sum()).tolist()
    return drawn


def _oltp(folder: Path) -> Iterable[int]:
    """ARC's OLTP trace: the first 60,000 accesses."""
    return islice(_pages(folder / "arc_OLTP.lis.xz"), 60_000)


def _pages(path: Path) -> Iterator[int]:
    with lzma.open(path, "rt") as lines:
        for line in lines:
            start, count = map(int, line.split()[:2])
            yield from range(start, start + count)


def _web07(folder: Path) -> Iterable[int]:
    """cache2k's web07: all 76,118 accesses."""
    return _big_endian(folder / "cache2k_web07.trace.xz", 76_118)


def _orm_busy(folder: Path) -> Iterable[int]:
    """cache2k's orm-busy: the first 60,000 accesses."""
    return _big_endian(folder / "cache2k_orm-busy.trace.xz", 60_000)


def _big_endian(path: Path, num_keys: int) -> list[int]:
    with lzma.open(path) as file:
        keys: list[int] = np.frombuffer(file.read(4 * num_keys), dtype=">i4").tolist()
    return keys


def _cloud_physics(folder: Path) -> Iterable[int]:
    """libCacheSim's own example, cloudPhysicsIO.oracleGeneral.bin, from its source package."""
    fields = [("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")]
    with open(folder / "cloudPhysicsIO.oracleGeneral.bin", "rb") as file:
        ids: list[int] = np.frombuffer(file.read(), dtype=fields)["id"].tolist()
    return ids


def libcachesim_misses(policy: str, ids: list[int], capacity: int) -> int:
    """Misses of libCacheSim's policy on objects of size 1; on average, where chance decides."""
    num_runs = NUM_RUNS if policy in BY_CHANCE else 1
    return round(sum(_misses(policy, ids, capacity) for _ in range(num_runs)) / num_runs)


def _misses(policy: str, ids: list[int], capacity: int) -> int:
    import libcachesim

    # Two policies draw a bucket of the hash table, which is uniform only if blocks share none.
    hashpower = 24 if policy in ("hyperbolic", "random") else 18
    cache = getattr(libcachesim, POLICIES[policy])(cache_size=capacity, hashpower=hashpower)
    request = libcachesim.Request()
    request.obj_size = 1
    misses = 0
    for time, i in enumerate(ids):
        request.obj_id = i + 1  # not 0, which means no object
        request.clock_time = time
        misses += not cache.get(request)
    return misses


def main() -> None:
    """Run every policy on every trace."""
    data = os.environ.get("KVSIM_DATA")
    traces = {}
    for name, capacities in CAPACITIES.items():
        ids = trace(name, Path(data) if data else None)
        if ids is None:
            raise SystemExit(f"no trace {name}: set KVSIM_DATA to the folder with {FOLDER}/")
        traces[name] = {
            "accesses": len(ids),
            "objects": len(set(ids)),
            "misses": {
                policy: {str(c): libcachesim_misses(policy, ids, c) for c in capacities}
                for policy in POLICIES
            },
        }
        print(name, "done")
    EXPECTED.write_text(json.dumps({"libcachesim": VERSION, "traces": traces}, indent=1) + "\n")


if __name__ == "__main__":
    main()
