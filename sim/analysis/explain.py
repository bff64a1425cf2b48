"""Why did it miss, what is wasted, who owns the cache: one replay of one manager, in tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from sim.analysis.eviction_log import EVICTIONS, EvictionLog
from sim.analysis.misses import ALWAYS, CLASSES, by_request
from sim.analysis.shared_prefixes import shared_prefixes
from sim.cache import BlockManager
from sim.footprint import prompt, with_answer
from sim.latency import LatencyModel, Roofline
from sim.needs import prepare
from sim.parts import Parts
from sim.workload import Workload

NUM_PREFIXES = 10
POINTS = (10, 50, 90)  # percent of blocks
NUMBERS = (
    "evicted_never_hit",
    "evicted_answers",
    "evicted_wanted_again",
    "regret_tokens",
    "orphaned_blocks",
    "orphans_wanted_tokens",
    *(
        f"{name}_p{p}"
        for name in ("eviction_idle", "eviction_lifetime", "reuse_gap")
        for p in POINTS
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What `explain` found.

    *requests*: one row per request that was served, tokens by class (`sim.analysis.misses`), its
    session and prompt; *num_refused* did not fit in the pool. *evictions*: one row per run of
    blocks that was evicted (`sim.analysis.eviction_log.EVICTIONS`). *gaps*: `seconds` between two
    uses and `num_blocks` used again, for every hit. *prefixes*: the content that most tokens could
    be reused of. *left_unused*: blocks still cached that were never hit; *num_orphaned* and
    *num_cached* blocks at the end; *num_orphans_wanted*: blocks computed again although they were
    there, since one before them was gone.
    """

    requests: pd.DataFrame
    evictions: pd.DataFrame
    gaps: pd.DataFrame
    prefixes: pd.DataFrame
    block_size: int
    num_cached: int
    num_orphaned: int
    num_orphans_wanted: int = 0
    num_refused: int = 0

    def shares(self) -> dict[str, float]:
        """The classes of prompt tokens, as shares of all; they add up to 1."""
        tokens = self.requests[list(CLASSES)].sum()
        return {name: float(tokens[name] / max(1, tokens.sum())) for name in CLASSES}

    def regret(self, by: str = "session") -> pd.DataFrame:
        """Evictions that were wanted again, by *by*: `session`, `tenant` or `start` (the depth).

        Blocks, waits (seconds), tokens, and the seconds that these added to times to first token.
        *num_regretted*: evictions that were wanted again, whole or in part.
        """
        table = self.evictions
        groups = table.assign(is_back=table["num_recomputed"] > 0).groupby(by, dropna=False)
        found = groups.agg(
            num_runs=("num_blocks", "size"),
            num_evicted=("num_blocks", "sum"),
            num_regretted=("is_back", "sum"),
            num_recomputed=("num_recomputed", "sum"),
            ttft_paid=("ttft_paid", "sum"),
            returned_after=("returned_after", "median"),
        )
        found["recomputed_tokens"] = found["num_recomputed"] * self.block_size
        return found.sort_values("recomputed_tokens", ascending=False)

    def numbers(self) -> dict[str, float]:
        """The findings as columns of a summary; NaN where nothing was evicted or reused.

        Shares are of evicted blocks; `eviction_idle_*` and `eviction_lifetime_*` are seconds since
        the last use and since the insertion, `reuse_gap_*` seconds between two uses, each at 10, 50
        and 90 % of the blocks.
        """
        table, size = self.evictions, self.block_size
        blocks = table["num_blocks"].to_numpy()
        total = int(blocks.sum())
        back = int(table["num_recomputed"].sum())
        found = {
            "evicted_never_hit": blocks[table["num_uses"] == 0].sum() / total if total else nan,
            "evicted_answers": int(table["num_answer_blocks"].sum()) / total if total else nan,
            "evicted_wanted_again": back / total if total else nan,
            "regret_tokens": float(back * size),
            "orphaned_blocks": float(self.num_orphaned),
            "orphans_wanted_tokens": float(self.num_orphans_wanted * size),
        }
        seconds, weights = (self.gaps[name].to_numpy() for name in ("seconds", "num_blocks"))
        for name, values, counts in (
            ("eviction_idle", table["idle"].to_numpy(), blocks),
            ("eviction_lifetime", table["lifetime"].to_numpy(), blocks),
            ("reuse_gap", seconds, weights),
        ):
            found |= zip((f"{name}_p{p}" for p in POINTS), _points(values, counts), strict=True)
        return found

    def lines(self) -> Iterator[str]:
        """The findings as text."""
        shares = self.shares()
        yield f"requests           {self._served()}"
        yield "prompt tokens      " + ", ".join(
            f"{name.replace('_', ' ')} {share:.1%}"
            for name, share in shares.items()
            if share or name in ALWAYS
        )
        table = self.evictions
        blocks = table["num_blocks"].to_numpy()
        total = int(blocks.sum())
        yield f"evicted blocks     {total:,}"
        if total:
            unused = int(blocks[table["num_uses"] == 0].sum())
            answers = int(table["num_answer_blocks"].sum())
            back = int(table["num_recomputed"].sum())
            yield f"  never hit        {unused / total:.1%} of them"
            yield f"  answers          {answers / total:.1%} of them"
            tokens = back * self.block_size
            yield f"  wanted again     {back / total:.1%} of them: {tokens:,} tokens"
            if self.num_orphans_wanted:
                there = f"{self.num_orphans_wanted:,} blocks, there but not findable"
                yield f"  wanted orphans   {there}"
            for name in ("lifetime", "idle"):
                yield f"  {name:<16} {_quantiles(table[name].to_numpy(), blocks)}"
            returned = table[table["num_recomputed"] > 0]
            if len(returned):
                waits = returned["returned_after"].to_numpy()
                weights = returned["num_recomputed"].to_numpy()
                yield f"  back after       {_quantiles(waits, weights)}"
                yield f"  each cost        {_cost(returned, self.block_size)}"
                yield from self._tenants()
        if len(self.gaps):
            seconds, weights = (self.gaps[name].to_numpy() for name in ("seconds", "num_blocks"))
            yield f"reused after       {_quantiles(seconds, weights)}"
        orphans = f"{self.num_orphaned:,} of them orphans"
        yield f"cached at the end  {self.num_cached:,} blocks, {orphans}"
        yield "most reusable      requests    tokens each   could be saved"
        for _, row in self.prefixes.iterrows():
            yield (
                f"  request {row['first_request']!s:<9} {row['num_requests']:>8,} "
                f"{row['num_tokens']:>14,} {row['reusable_tokens']:>16,}"
            )

    def _served(self) -> str:
        """How many requests the numbers are about, and of how many if some were refused."""
        served, refused = len(self.requests), self.num_refused
        if not refused:
            return f"{served:,}"
        return f"{served:,} of {served + refused:,} ({refused:,} refused: too large for the pool)"

    def _tenants(self) -> Iterator[str]:
        """What their content's evictions cost, where there are tenants."""
        if self.evictions["tenant"].isna().all():
            return
        yield "  by tenant        evictions    regretted  tokens each  TTFT each (s)     in all (s)"
        for tenant, row in self.regret("tenant").iterrows():
            each = max(1, row["num_regretted"])
            yield (
                f"    {tenant!s:<14} {row['num_runs']:>9,.0f} {row['num_regretted']:>12,.0f} "
                f"{row['recomputed_tokens'] / each:>12,.0f} {row['ttft_paid'] / each:>14.4f} "
                f"{row['ttft_paid']:>14,.2f}"
            )


def explain(
    manager: BlockManager,
    workload: Workload,
    *,
    decode: bool = False,
    latency: LatencyModel | None = None,
) -> Explanation:
    """Serve *workload* one request at a time with *manager*, which is empty, and take notes.

    *latency* says what recomputed tokens cost: the time that a step with the rest of their prompt
    alone takes longer, shared among the evictions to blame (default: `Roofline`, uncalibrated).
    ConfigError if the manager has no eviction policy of its own, or if its policy needs hints that
    the workload does not give.
    """
    prepare(manager, workload)
    log = EvictionLog(manager, latency or Roofline())
    footprint = with_answer if decode else prompt
    parts, anyone = Parts(), Parts()
    rows: list[tuple[Any, ...]] = []
    requests = list(workload)
    size = manager.block_size
    for request in requests:
        num_slots = request.num_prompt_tokens + (request.max_tokens - 1 if decode else 0)
        if num_slots > manager.num_blocks * size:
            continue
        num_full = request.num_prompt_tokens // size
        length = max(footprint(request).num_stored, num_full)
        num_known = min(parts.add(request.keys, length), num_full)
        num_anywhere = anyone.add(request.keys.shared or request.keys, length)
        num_isolated = min(num_anywhere, (request.num_prompt_tokens - 1) // size) - num_known
        is_read = manager.enable_caching and not request.skip_reading_prefix_cache
        num_hit = log.serve(request, num_slots, num_known)
        if num_hit is not None:
            orphans = log.num_orphans * size if is_read else -1
            counts = num_known * size, orphans, max(0, num_isolated) * size, 0
            about = request.request_id, request.session, request.num_prompt_tokens
            rows.append((*about, num_hit, *counts))
    manager.check()
    table = pd.DataFrame(rows, columns=COLUMNS)
    evictions = {name: pd.Series(log.rows[name], dtype=kind) for name, kind in EVICTIONS.items()}
    return Explanation(
        requests=pd.concat([table, by_request(table, size)], axis=1),
        evictions=pd.DataFrame(evictions),
        gaps=pd.DataFrame(log.gaps, columns=["seconds", "num_blocks"]),
        prefixes=shared_prefixes(requests, NUM_PREFIXES),
        block_size=size,
        num_cached=manager.num_cached_blocks,
        num_orphaned=manager.num_orphaned_blocks,
        num_orphans_wanted=log.num_orphans_wanted,
        num_refused=len(requests) - len(table),
    )


COLUMNS = (
    *("request_id", "session", "num_prompt_tokens", "num_cached_tokens", "num_reusable_tokens"),
    *("num_orphan_tokens", "num_isolated_tokens", "num_pending_tokens"),
)


def _cost(returned: pd.DataFrame, block_size: int) -> str:
    """What one eviction that was wanted again cost, on average."""
    tokens = returned["num_recomputed"].mean() * block_size
    paid = returned["ttft_paid"]
    return f"{tokens:,.0f} tokens, {paid.mean():.4f} s of TTFT; {paid.sum():,.1f} s in all"


def _quantiles(values: Any, weights: Any) -> str:
    """Median and extremes of seconds, each block counted once."""
    low, middle, high = _points(values, weights)
    return f"median {middle:,.1f} s (10%: {low:,.1f} s, 90%: {high:,.1f} s)"


def _points(values: Any, weights: Any) -> list[float]:
    """*values* at `POINTS` percent of the weights; NaN if there are none."""
    if not len(values):
        return [nan] * len(POINTS)
    order = np.argsort(values, kind="stable")
    counts = np.cumsum(weights[order])
    places = [np.searchsorted(counts, point / 100 * counts[-1]) for point in POINTS]
    return [float(values[order][min(place, len(values) - 1)]) for place in places]
