"""Small traffic of real token ids in which everything happens that can go wrong.

Prompts share prefixes of any length, arrive in bursts (hits within a step), are whole numbers of
blocks at times, come again, belong to tenants with salts, LoRAs and images; with few blocks and a
small budget they are chunked, preempted and evicted.
"""

from __future__ import annotations

import numpy as np

from sim.build import build
from sim.cache import BlockManager
from sim.engine import Engine
from sim.keys import Image, TokenKeys
from sim.latency import Constant
from sim.request import Request
from sim.scheduler import SchedulerConfig

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
    prefixes = [rng.integers(0, VOCABULARY, num_tokens) for _ in range(num_prefixes)]
    requests: list[Request] = []
    for i in range(num_requests):
        if requests and rng.random() < 0.1:  # the same prompt again
            prompt = requests[-1].num_prompt_tokens
            keys = requests[-1].keys
            assert isinstance(keys, TokenKeys)
            tokens = keys.tokens(0, len(keys) + 1)[:prompt]
            answer = int(rng.integers(1, num_tokens // 2))
            request = _request(i, tokens, answer, keys, rng, block_size)
        else:
            prefix = prefixes[int(rng.integers(num_prefixes))]
            shared = prefix[: int(rng.integers(num_tokens // 4, 3 * num_tokens // 4))]
            own = rng.integers(0, VOCABULARY, int(rng.integers(1, num_tokens // 2)))
            tokens = [*shared.tolist(), *own.tolist()]
            if rng.random() < 0.2:  # whole blocks
                tokens = tokens[: max(1, len(tokens) // block_size) * block_size]
            answer = int(rng.integers(1, num_tokens // 2))
            request = _request(i, tokens, answer, _tenant(i, tenants, block_size), rng, block_size)
        request.arrival_time = float(i // 4)  # bursts of four
        requests.append(request)
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


def _request(
    i: int,
    tokens: list[int],
    num_outputs: int,
    like: TokenKeys,
    rng: np.random.Generator,
    block_size: int,
) -> Request:
    answer = rng.integers(0, VOCABULARY, num_outputs).tolist()
    keys = TokenKeys(
        [*tokens, *answer], block_size, lora=like.lora, images=like.images, salt=like.salt
    )
    return Request(i, keys, len(tokens), num_outputs)


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
    spec = {
        "use": manager,
        "num_blocks": num_blocks,
        "block_size": block_size,
        "free_order": free_order,
    }
    built: BlockManager = build("manager", spec)
    config = SchedulerConfig(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=16,
        policy=policy,  # type: ignore[arg-type]
        scheduler_reserve_full_isl=False,
    )
    return Engine(built, latency=Constant(0.05), scheduler=config)
