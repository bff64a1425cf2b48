"""Small traffic of real token ids in which everything happens that can go wrong.

Prompts share prefixes of any length, put the same documents in another order, arrive in bursts
(hits within a step), are whole numbers of blocks at times, come again, belong to tenants with
salts, LoRAs and images; with few blocks and a small budget they are chunked, preempted and evicted.
"""

from __future__ import annotations

import numpy as np

from sim.cache import BlockManager
from sim.engine import Engine
from sim.keys import Image, TokenKeys
from sim.latency import Constant
from sim.request import Request
from sim.scheduler_config import SchedulerConfig
from sim.spec.build import build

VOCABULARY = 1000


def toy_requests(
    num_requests: int = 60,
    num_tokens: int = 320,
    *,
    block_size: int = 16,
    num_prefixes: int = 6,
    tenants: bool = True,
    seed: int = 0,
) -> list[Request]:
    """*num_requests* requests of *num_tokens* tokens on average, three quarters of them prompt."""
    rng = np.random.default_rng(seed)
    prefixes = [rng.integers(0, VOCABULARY, num_tokens).tolist() for _ in range(num_prefixes)]
    documents = [rng.integers(0, VOCABULARY, 2 * block_size).tolist() for _ in range(4)]
    requests: list[Request] = []
    for i in range(num_requests):
        draw = rng.random()
        like = _tenant(i // 2, tenants, block_size)
        if requests and draw < 0.1:  # the same prompt again
            last = requests[-1]
            assert isinstance(last.keys, TokenKeys)
            like, tokens = last.keys, last.keys.tokens(0, len(last.keys) + 1)
            tokens = tokens[: last.num_prompt_tokens]
        else:
            burst = i // 4 if rng.random() < 0.5 else int(rng.integers(num_prefixes))
            tokens = list(prefixes[burst % num_prefixes])
            del tokens[int(rng.integers(num_tokens // 4, 3 * num_tokens // 4)) :]
            if draw < 0.4:  # the same documents in another order
                tokens = [token for j in rng.permutation(4)[:3] for token in documents[j]]
            own = int(rng.integers(1, num_tokens // 2))
            tokens += rng.integers(0, VOCABULARY, own).tolist()
            if draw > 0.8:  # whole blocks
                del tokens[max(1, len(tokens) // block_size) * block_size :]
        answer = rng.integers(0, VOCABULARY, int(rng.integers(1, num_tokens // 2))).tolist()
        keys = TokenKeys(
            [*tokens, *answer], block_size, lora=like.lora, images=like.images, salt=like.salt
        )
        arrival = float(i // 4)  # bursts of four
        requests.append(Request(i, keys, len(tokens), len(answer), arrival))
    return requests


def _tenant(i: int, tenants: bool, block_size: int) -> TokenKeys:
    """Keys without tokens, for what else they say."""
    kind = i % 6 if tenants else 0
    return TokenKeys(
        [],
        block_size,
        salt={2: "a", 3: "b"}.get(kind),
        lora=("x", "/x") if kind == 4 else None,
        images=[Image(f"picture {i % 4}", 20, 30)] if kind == 5 else [],
    )


def toy_engine(
    *,
    num_blocks: int = 120,
    block_size: int = 16,
    max_num_batched_tokens: int = 100,
    manager: str = "reference",
    free_order: str = "tail",
    policy: str = "fcfs",
) -> Engine:
    """An engine with little of everything, so that the traffic does not fit."""
    known = {"num_blocks": num_blocks, "block_size": block_size, "free_order": free_order}
    built: BlockManager = build("manager", manager, known=known)
    config = SchedulerConfig(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=16,
        policy=policy,  # type: ignore[arg-type]
        scheduler_reserve_full_isl=False,
    )
    return Engine(built, latency=Constant(0.05), scheduler=config)
