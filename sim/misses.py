"""Why tokens were not hit: every prompt token of a run belongs to exactly one of these classes.

- `hit`: reused.
- `lost`: computed before, but not findable any more: evicted, not yet stored, or not looked up.
- `last_token`: cached and yet recomputed: a prompt's last token is never hit, nor is its block.
- `partial`: in the last, unfilled block of a prompt, which is never cached.
- `compulsory`: the first of its kind; no cache could have had it.

"Before" is in the order of first admission; answers count as stored when their request is admitted,
so in a run with a clock `lost` contains what was still being generated.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sim.errors import KvsimError
from sim.results import Results

CLASSES = ("hit", "lost", "last_token", "partial", "compulsory")


def attribution(results: Results) -> pd.DataFrame:
    """Prompt tokens of the admitted requests of every run by class, as numbers of tokens.

    KvsimError if *results* were written before this was recorded.
    """
    if "num_reusable_tokens" not in results.requests:
        raise KvsimError("these results do not say what could have been reused; run them again")
    rows = []
    for run in results.runs():
        row = run.summary.iloc[0]
        names = {name: row[name] for name in ("policy", *results.axes)}
        tokens = by_request(run.requests, int(row["block_size"]))
        rows.append({**names, **{name: int(tokens[name].sum()) for name in CLASSES}})
    return pd.DataFrame(rows).astype({"policy": "string"})


def by_request(requests: pd.DataFrame, block_size: int) -> pd.DataFrame:
    """The classes of every admitted request, in tokens; a row's sum is its prompt."""
    admitted = requests[requests["num_cached_tokens"] >= 0]
    prompt = admitted["num_prompt_tokens"].to_numpy()
    hit = admitted["num_cached_tokens"].to_numpy()
    known = np.maximum(admitted["num_reusable_tokens"].to_numpy(), hit)
    partial = prompt % block_size
    full = prompt - partial
    hittable = (prompt - 1) // block_size * block_size
    lost = np.minimum(known, hittable) - hit
    last_token = np.minimum(known, full) - np.minimum(known, hittable)
    tokens = {
        "hit": hit,
        "lost": lost,
        "last_token": last_token,
        "partial": partial,
        "compulsory": full - hit - lost - last_token,
    }
    return pd.DataFrame(tokens, index=admitted.index)
