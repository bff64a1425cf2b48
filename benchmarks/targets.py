"""What the project promised itself, and whether a run met it. Judged by medians."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks import engines, growth, policies, replays, sessions
from benchmarks.measure import Row

UNIFORM = (
    *("fifo", "clock", "sieve", "slru", "slru_sglang", "mru", "filo", "lfu", "lfuda", "pgdsf"),
    *("priority", "ttl", "tlru", "continuum", "kvflow", "workload_aware", "queue_lookahead"),
)
WITH_GHOSTS = ("s3fifo", "two_q", "arc", "lecar", "lru_k")

Rows = Mapping[str, Row]
"""The rows of a run by name."""


@dataclass(frozen=True, slots=True)
class Target:
    """A promise: *measured* is compared with *limit*, from above or from below."""

    promise: str
    measured: float
    limit: float
    at_least: bool = True
    unit: str = "requests/s"

    @property
    def is_met(self) -> bool:
        """Whether the measured value is on the right side of the limit."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def judged(rows: Rows) -> list[Target]:
    """Every promise that the rows allow to be judged."""
    targets: list[Target] = []
    for promises in (_replay, _user_policies, _policies, _engine, _growth, _sessions):
        try:
            targets += promises(rows)
        except KeyError:  # that section was not run
            continue
    return targets


def _replay(rows: Rows) -> Iterator[Target]:
    fine = rows[replays.name("spans", 16)].requests_per_s
    coarse = rows[replays.name("spans", 512)].requests_per_s
    yield Target("replay at block size 16, pool of a tenth of the footprint", fine, 120_000)
    yield Target("replay at block size 16 against 512", fine / coarse, 0.5, unit="of the speed")


def _user_policies(rows: Rows) -> Iterator[Target]:
    built_in = rows[replays.name("spans", 16)]
    for kind in ("OrderedDict", "Ranked"):
        own = rows[replays.name(f"spans, user's {kind} LRU", 16)]
        share = own.requests_per_s / built_in.requests_per_s
        promise = f"a user's {kind} LRU against the built-in one, block size 16"
        yield Target(promise, share, 0.5, unit="of the speed")


def _policies(rows: Rows) -> Iterator[Target]:
    lru = rows["lru"]
    curve = rows[policies.CURVE].seconds / lru.seconds
    yield Target("exact LRU curve against one replay", curve, 3, at_least=False, unit="times")
    for kind, names, least in (
        ("whose state is uniform over a span", UNIFORM, 1 / 3),
        ("with ghosts", WITH_GHOSTS, 0.1),
    ):
        slowest = min(names, key=lambda name: rows[name].requests_per_s)
        share = rows[slowest].requests_per_s / lru.requests_per_s
        yield Target(f"the slowest policy {kind} ({slowest})", share, least, unit="of LRU's speed")


def _engine(rows: Rows) -> Iterator[Target]:
    for block_size in engines.POOLS:
        for load in engines.PREFILL_US:
            speed = rows[engines.name(block_size, load)].requests_per_s
            yield Target(f"engine at block size {block_size}, {load}", speed, 10_000)


def _growth(rows: Rows) -> Iterator[Target]:
    costs = [rows[growth.name("replay", size)] for size in growth.SIZES]
    yield Target(
        f"replay of {growth.SIZES[-1]:,} synthetic requests",
        costs[-1].seconds,
        15,
        at_least=False,
        unit="s",
    )
    per_request = [row.seconds / row.outcome.num_requests for row in costs]
    yield Target(
        f"cost per request from {growth.SIZES[0]:,} to {growth.SIZES[-1]:,} requests, "
        "highest over lowest",
        max(per_request) / min(per_request),
        1.5,
        at_least=False,
        unit="times",
    )


def _sessions(rows: Rows) -> Iterator[Target]:
    replayed = [
        rows[sessions.name(num_blocks, gap)]
        for gap in sessions.STARTS
        for num_blocks in sessions.POOLS
    ]
    slowest = min(row.requests_per_s for row in replayed)
    yield Target("replay of the WEKA sessions, the slowest of the four", slowest, 15_000)
    yield Target(
        "peak memory of reading and replaying the WEKA sessions",
        max(row.peak_mib for row in replayed),
        1024,
        at_least=False,
        unit="MiB",
    )
