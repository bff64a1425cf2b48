"""Which prompts begin alike: the content that most tokens could be reused of."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from sim.parts import Parts
from sim.request import Request


def shared_prefixes(requests: Sequence[Request], number: int) -> pd.DataFrame:
    """The runs of full prompt blocks that could save most tokens, best first.

    `first_request`: who has it first; `start` and `num_blocks`: where it stands in the prompts;
    `num_requests` and `num_sessions` have it; `reusable_tokens`: all but the first could reuse it.
    """
    parts = Parts()
    for request in requests:
        parts.add(request.keys, request.num_prompt_tokens // request.keys.block_size)
    found = []
    for request in requests:
        for part in parts.path(request.keys, request.num_prompt_tokens // request.keys.block_size):
            if part.state is None:
                part.state = [request.request_id, 0, set()]
                found.append(part)
            part.state[1] += 1
            if request.session is not None:
                part.state[2].add(request.session)
    rows = []
    for part in found:
        size = part.keys.block_size
        name, num_requests, sessions = part.state
        rows.append(
            {
                "first_request": name,
                "start": part.start,
                "num_blocks": part.num_blocks,
                "num_tokens": part.num_blocks * size,
                "num_requests": num_requests,
                "num_sessions": len(sessions) or None,
                "reusable_tokens": (num_requests - 1) * part.num_blocks * size,
            }
        )
    rows.sort(key=lambda row: -row["reusable_tokens"])
    return pd.DataFrame(rows[:number])
