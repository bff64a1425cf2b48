"""Numbers as they stand in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def word(value: object) -> str:
    """A value of an axis in a sentence."""
    return f"{value:,}" if isinstance(value, int | np.integer) else str(value)


def best_row(rows: pd.DataFrame) -> pd.Series[Any]:
    """The row with the highest hit rate, the first of equals."""
    return rows.iloc[int(rows["hit_rate"].fillna(-1).to_numpy().argmax())]


def interval(row: pd.Series[Any]) -> str:
    """The confidence interval of a row of `compare`, and what was drawn for it."""
    drawn = f"{row['num_units']:,} {row['unit']}"
    if row["num_seeds"] > 1:
        drawn = f"{row['num_seeds']} seeds"
    low, high = 100 * row["low"], 100 * row["high"]
    return f"95% interval {low:+.1f} to {high:+.1f}, {drawn}"


def seconds(value: float) -> str:
    """*value* in milliseconds or seconds."""
    return f"{1e3 * value:,.0f} ms" if value < 1 else f"{value:,.2f} s"
