"""What a study found, in sentences: who hits most, by how much, how far from MIN, at what size."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Any

import pandas as pd

from sim.plots.sweeps import SIZE, axis_words, focus, sweep_axis
from sim.reports.phrases import best_row, interval, seconds, word
from sim.results import Results
from sim.summary import GIB


@dataclass(frozen=True, slots=True)
class Findings:
    """The answers to a study's question, and the numbers behind them.

    *near*: the runs at the point where these policies differ most. *table*: `Results.compare` with
    the baseline. *winner*: who hits most there, of the policies that cannot see the future.
    """

    results: Results
    near: Results
    table: pd.DataFrame
    baseline: str
    winner: str
    offline: frozenset[str]
    target: float | None

    @classmethod
    def of(
        cls,
        results: Results,
        baseline: str | None = None,
        *,
        offline: frozenset[str] = frozenset(),
        target: float | None = None,
    ) -> Findings:
        """*offline*: policies that know the future; *target*: a hit rate to find the memory for."""
        baseline = baseline or str(results.summary["policy"].iloc[0])
        online = [name for name in dict.fromkeys(results.summary["policy"]) if name not in offline]
        near = focus(results, online if len(online) > 1 else ())
        at = near.summary[near.summary["policy"].isin(online)]
        at = near.summary if at.empty else at
        winner = str(best_row(at)["policy"])
        several = results.summary["policy"].nunique() > 1
        table = results.compare(baseline) if several else pd.DataFrame()
        return cls(results, near, table, baseline, winner, offline, target)

    def sentences(self) -> list[str]:
        """The answer, most important first; **bold** as in Markdown."""
        said = [self._winner(), self._along(), self._everywhere(), self._prophets()]
        said += [self._gap(), self._memory(), self._latency()]
        return [sentence for sentence in said if sentence]

    def place(self) -> str:
        """Where `near` is: `at 10,000 blocks`; empty without a sweep."""
        row = self.near.summary.iloc[0]
        parts = []
        for name in self.results.axes:
            if name != "seed" and self.results.summary[name].nunique() > 1:
                value = row[name]
                text = word(value)
                unit = f"{text} blocks" if name == SIZE else f"{axis_words(name)} {text}"
                parts.append(unit)
        return f"at {', '.join(parts)}" if parts else ""

    def _row(self, policy: str) -> pd.Series[Any]:
        table = self.near.summary
        return table[table["policy"] == policy].iloc[0]

    def _difference(self, policy: str) -> pd.Series[Any] | None:
        """The comparison of *policy* with the baseline at `near`."""
        if self.table.empty:
            return None
        rows = self.table[self.table["policy"] == policy]
        for name in self.results.axes:
            if name != "seed":
                rows = rows[rows[name] == self.near.summary[name].iloc[0]]
        return None if rows.empty else rows.iloc[0]

    def _winner(self) -> str:
        best = self._row(self.winner)
        if isnan(best["hit_rate"]):
            return "No prompt token was looked up in a cache."
        where = self._where()
        if len(set(self.near.summary["policy"]) - self.offline) < 2:
            return f"{where}**{self.winner}** hits **{best['hit_rate']:.1%}** of the prompt tokens."
        if self.winner == self.baseline:
            rest = self.near.summary[~self.near.summary["policy"].isin(self.offline)]
            second = rest[rest["policy"] != self.winner]
            text = f"{where}no policy hits more than **{self.winner}**: {best['hit_rate']:.1%}"
            if len(second):
                runner = best_row(second)
                row = self._difference(str(runner["policy"]))
                text += f"; next is {runner['policy']} with {runner['hit_rate']:.1%}"
                text += f" ({interval(row)})" if row is not None else ""
            return f"{text}."
        row = self._difference(self.winner)
        if row is None:
            return f"{where}**{self.winner}** hits most: {best['hit_rate']:.1%}."
        verdict = "" if row["is_clear"] else " That could be chance."
        return (
            f"{where}**{self.winner}** hits most: **{row['value']:.1%}** of the prompt tokens, "
            f"{100 * row['difference']:+.1f} points against {self.baseline} "
            f"({interval(row)}).{verdict}"
        )

    def _along(self) -> str:
        """Where a policy that stands alone hits least and most."""
        axis = sweep_axis(self.results)
        online = set(self.results.summary["policy"]) - self.offline
        if axis is None or len(online) != 1:
            return ""
        rows = self.results.summary[self.results.summary["policy"].isin(online)]
        if any(rows[n].nunique() > 1 for n in self.results.axes if n not in (axis, "seed")):
            return ""
        means = rows.groupby(axis, sort=False)["hit_rate"].mean()
        if means.nunique() < 2:
            return ""
        low, high = (means.index[int(i)] for i in (means.argmin(), means.argmax()))
        return (
            f"By {axis_words(axis)}, its hit rate goes from {means.min():.1%} at {word(low)} to "
            f"{means.max():.1%} at {word(high)}."
        )

    def _prophets(self) -> str:
        """What policies hit that are shown the future."""
        said = []
        for name in self.near.summary["policy"]:
            row = self._difference(str(name))
            if name in self.offline and row is not None:
                points = f"{100 * row['difference']:+.1f} points against {self.baseline}"
                text = f"{name}, which is shown the future, hits {row['value']:.1%} ({points})"
                said.append(f"{text}{self._where_clear(str(name))}")
        return f"{self._where()}{'; '.join(said)}." if said else ""

    def _where_clear(self, policy: str) -> str:
        """The settings at which *policy* clearly beats the baseline."""
        axis = sweep_axis(self.results)
        rows = self.table[self.table["policy"] == policy]
        better = rows[rows["is_clear"] & (rows["difference"] > 0)]
        if axis is None or axis == SIZE or axis not in rows:
            return ""
        if len(better) == len(rows):
            return f"; it is clearly better than {self.baseline} at every {axis_words(axis)}"
        places = ", ".join(word(value) for value in better[axis])
        if not places:
            return f"; it is nowhere clearly better than {self.baseline}"
        return f"; it is clearly better than {self.baseline} at {axis_words(axis)} {places}"

    def _where(self) -> str:
        """`place` as the beginning of a sentence."""
        place = self.place()
        return f"{place[0].upper()}{place[1:]}, " if place else ""

    def _everywhere(self) -> str:
        """How it fares at the other points."""
        if self.table.empty or self.winner == self.baseline:
            return ""
        rows = self.table[self.table["policy"] == self.winner]
        if len(rows) < 2:
            return ""
        better = int((rows["is_clear"] & (rows["difference"] > 0)).sum())
        worse = int((rows["is_clear"] & (rows["difference"] < 0)).sum())
        noun = "pool sizes" if sweep_axis(self.results) == SIZE else "settings"
        text = (
            f"Over all {len(rows)} {noun} it is clearly better than {self.baseline} at {better}, "
            f"clearly worse at {worse}."
        )
        return f"{text}{self._champions()}"

    def _champions(self) -> str:
        """Who is best where, if it is not always the same."""
        axis = sweep_axis(self.results)
        if axis is None:
            return ""
        table = self.results.summary[~self.results.summary["policy"].isin(self.offline)]
        if any(table[n].nunique() > 1 for n in self.results.axes if n not in (axis, "seed")):
            return ""
        means = table.pivot_table(values="hit_rate", index=axis, columns="policy", sort=False)
        best = means.idxmax(axis="columns")
        if best.nunique() < 2:
            return ""
        places: dict[str, list[str]] = {}
        for value, policy in best.items():
            places.setdefault(str(policy), []).append(word(value))
        won = [f"{policy} at {', '.join(at)}" for policy, at in places.items()]
        return f" The best by {axis_words(axis)}: {'; '.join(won)}."

    def _gap(self) -> str:
        row = self._row(self.winner)
        if "min_hit_rate" not in row or isnan(row["min_hit_rate"]):
            return ""
        text = (
            f"The offline optimum MIN hits {row['min_hit_rate']:.1%} in the same memory, a cache "
            f"without limit {row['unbounded_hit_rate']:.1%}"
        )
        closed = row["gap_closed"]
        if self.winner != self.baseline and not isnan(closed):
            text += f"; {self.winner} closes {closed:.0%} of the gap from {self.baseline} to MIN"
        return f"{text}."

    def _memory(self) -> str:
        """The pool for the target, between two sizes of the sweep."""
        if sweep_axis(self.results) != SIZE:
            return ""
        table = self.results.summary
        target, why = self.target, "the target"
        if target is None:
            if "unbounded_hit_rate" not in table:
                return ""
            target, why = 0.9 * float(table["unbounded_hit_rate"].max()), "90% of what is possible"
        names = dict.fromkeys([self.baseline, self.winner])
        needs = [f"{name} needs {self._size(name, target)}" for name in names]
        return f"For a hit rate of {target:.1%} ({why}), {'; '.join(needs)}."

    def _size(self, policy: str, target: float) -> str:
        rows = self.results.summary[self.results.summary["policy"] == policy]
        means = rows.groupby(SIZE)[["hit_rate", "num_blocks", "block_size"]].mean()
        reached = means[means["hit_rate"] >= target]
        if reached.empty:
            return f"more than the largest pool tried ({means.index.max():,} blocks)"
        size = reached.index.min()
        below = means.index[means.index < size]
        gib = float(rows["kv_bytes_per_token"].iloc[0] * means["block_size"].iloc[0]) / GIB
        if not len(below):
            return f"at most {size:,} blocks ({size * gib:,.3g} GiB)"
        low = below.max()
        return f"{low:,} to {size:,} blocks ({low * gib:,.4g} to {size * gib:,.4g} GiB)"

    def _latency(self) -> str:
        if len(self.near.summary) < 2 or self.winner == self.baseline:
            return ""
        one, other = self._row(self.winner), self._row(self.baseline)
        if isnan(one["ttft_p95"]) or isnan(other["ttft_p95"]):
            return ""
        return (
            f"Time to first token there: p50 {seconds(one['ttft_p50'])}, "
            f"p95 {seconds(one['ttft_p95'])} with {self.winner}; "
            f"{seconds(other['ttft_p50'])} and {seconds(other['ttft_p95'])} with {self.baseline}."
        )
