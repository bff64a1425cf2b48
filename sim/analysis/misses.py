"""Why tokens were not hit: every prompt token of a run belongs to exactly one of these classes.

- `hit`: reused.
- `evicted`: computed before, and given up for other content since.
- `orphan`: cached and yet not findable, since a block before it was given up.
- `not_computed`: a request that was admitted earlier was still computing it.
- `not_looked_up`: computed before, but caching is off, or the request does not read the cache.
- `last_token`: cached and yet recomputed: a prompt's last token is never hit, nor is its block.
- `partial`: in the last, unfilled block of a prompt, which is never cached.
- `isolation`: computed before under another salt, LoRA or tenant only.
- `compulsory`: the first of its kind; no cache could have had it.

"Before" is in the order of first admission; answers count as stored when their request is admitted,
and as being computed until it ends. Without a clock nothing is being computed. Isolation is known
where the keys know it: token ids with salt or LoRA, and the workload `tenants`. A block that is
cached behind a gap while another request computes it counts as `not_computed`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sim.errors import KvsimError
from sim.results import Results

LOST = ("evicted", "orphan", "not_computed", "not_looked_up")
"""What was there once, or is about to be: what a better policy or more memory can win."""
CLASSES = ("hit", *LOST, "last_token", "partial", "isolation", "compulsory")
ALWAYS = ("hit", "evicted", "last_token", "partial", "compulsory")
"""Shown also where there is none."""
COLUMNS = {"num_reusable_tokens", "num_isolated_tokens", "num_pending_tokens", "num_orphan_tokens"}


def is_known(results: Results) -> bool:
    """Whether *results* say why tokens were missed."""
    return set(results.requests.columns) >= COLUMNS


def attribution(results: Results) -> pd.DataFrame:
    """Prompt tokens of the admitted requests of every run by class, as numbers of tokens.

    KvsimError if *results* were written before this was recorded.
    """
    if not is_known(results):
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
    new = full - hit - lost - last_token
    isolation = np.minimum(admitted["num_isolated_tokens"].to_numpy(), new)
    orphan = admitted["num_orphan_tokens"].to_numpy()
    unread = np.where(orphan < 0, lost, 0)
    pending = np.minimum(admitted["num_pending_tokens"].to_numpy(), lost - unread)
    orphan = np.clip(orphan, 0, lost - unread - pending)
    tokens = {
        "hit": hit,
        "evicted": lost - unread - pending - orphan,
        "orphan": orphan,
        "not_computed": pending,
        "not_looked_up": unread,
        "last_token": last_token,
        "partial": partial,
        "isolation": isolation,
        "compulsory": new - isolation,
    }
    return pd.DataFrame(tokens, index=admitted.index)
