"""What else users could run, on the same requests: each peer in the interpreter that has it.

No peer answers quite the same question, so hits differ a little; docs/performance.md says why.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import engines, replays
from benchmarks.inputs import CONVERSATION, Settings, tenth
from benchmarks.measure import Outcome, Row, call_in_fresh_process, in_fresh_process
from policies.vllm import VLLMBlockManager
from sim.replay import replay

NEEDS = CONVERSATION
TITLE = "Peers on the same requests"

ROOT = Path(__file__).parent.parent
BLOCK_SIZES = (16, 512)
MOST_REPETITIONS = 3

ACCESS = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])


def rows(settings: Settings) -> Iterator[Row | str]:
    """Flat LRU, trie LRU, and the timed engine; what is not installed is a line that says so."""
    repetitions = min(settings.repetitions, MOST_REPETITIONS)
    with tempfile.TemporaryDirectory(prefix="kvsim-benchmarks-") as name:
        folder = Path(name)
        for block_size in BLOCK_SIZES:
            job = call_in_fresh_process(write_streams, settings, block_size, folder)
            job |= {"block_size": block_size, "repetitions": repetitions}
            job["group"] = f"replay {block_size}"
            yield in_fresh_process(
                f"kvsim, replay, {block_size}-token blocks",
                job["group"],
                replay_in_halves,
                settings,
                block_size,
                repetitions,
            )
            yield _driven(settings, "libcachesim", job, folder / f"{block_size}.bin")
            yield _driven(settings, "kvcache_simulator", job, folder / f"{block_size}.jsonl")
            (folder / f"{block_size}.bin").unlink()
            (folder / f"{block_size}.jsonl").unlink()
        chunk = call_in_fresh_process(write_trace, settings, folder / "trace.jsonl")
        for block_size, num_blocks in engines.POOLS.items():
            job = {"block_size": block_size, "num_blocks": num_blocks, "repetitions": repetitions}
            job |= {"chunk": chunk, "group": f"engine {block_size}"}
            for load in engines.PREFILL_US:
                run = engines.Job(block_size, load, VLLMBlockManager, True, repetitions)
                label = f"kvsim, engine, {block_size}-token blocks, {load}"
                yield in_fresh_process(label, job["group"], engines.conversation, settings, run)
            yield _driven(settings, "dynamo", job, folder / "trace.jsonl")


def _driven(settings: Settings, peer: str, job: dict[str, Any], path: Path) -> Row | str:
    """The row that a driver prints, or why there is none."""
    command = [settings.peers_python, "-m", f"benchmarks.drivers.{peer}"]
    done = subprocess.run(
        [*command, json.dumps({"path": str(path), **job})],
        capture_output=True,
        text=True,
        check=False,
        cwd=path.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    label = f"{peer}, {job['block_size']}-token blocks"
    if done.returncode:
        return f"{label}: {done.stderr.strip().splitlines()[-1]}"
    fields = json.loads(done.stdout.splitlines()[-1])
    return Row(outcome=Outcome(**fields.pop("outcome")), **fields)


def replay_in_halves(settings: Settings, block_size: int, repetitions: int) -> Outcome:
    """Replay all requests; also count the hits of the last half of those with a full block."""
    workload = settings.conversation(block_size)
    num_blocks = tenth(workload)

    def fresh() -> VLLMBlockManager:
        return VLLMBlockManager(num_blocks, block_size)

    whole = replays.replayed(workload, fresh, repetitions)
    requests = [r for r in workload if r.num_prompt_tokens >= block_size]
    manager, middle = fresh(), len(requests) // 2
    replay(manager, requests[:middle])
    last = replay(manager, requests[middle:])
    work = f"{whole.work}; last half: {last.hit_blocks:,} of {last.query_blocks:,}"
    return replace(whole, work=work)


def write_streams(settings: Settings, block_size: int, folder: Path) -> dict[str, Any]:
    """Write the full blocks of all prompts in both peers' formats; how many requests and blocks."""
    workload = settings.conversation(block_size)
    with (
        (folder / f"{block_size}.bin").open("wb") as binary,
        (folder / f"{block_size}.jsonl").open("w", encoding="utf-8") as text,
    ):
        for request in workload:
            keys = request.keys
            ids = [keys[i] for i in range(request.num_prompt_tokens // block_size)]
            accesses = np.zeros(len(ids), ACCESS)
            accesses["id"], accesses["size"] = ids, 1
            binary.write(accesses.tobytes())
            row = {"hash_ids": ids, "input_length": len(ids) * block_size, "block_size": block_size}
            text.write(json.dumps(row) + "\n")
    num_blocks = tenth(workload) - 1  # no peer has a null block
    return {"num_requests": len(workload), "num_blocks": num_blocks}


def write_trace(settings: Settings, path: Path) -> int:
    """Write the requests with their times as plain text; how many tokens an id stands for."""
    if not settings.quick:
        with lzma.open(settings.trace(CONVERSATION)) as packed, path.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        return 512
    workload = settings.conversation(16)
    with path.open("w", encoding="utf-8") as text:
        for request in workload:
            ids: list[Any] = [request.keys[i] for i in range(request.num_prompt_tokens // 16)]
            if request.num_prompt_tokens % 16:
                ids.append(2**50 + int(request.request_id))  # nobody else's
            row = {
                "timestamp": request.arrival_time * 1000.0,
                "input_length": request.num_prompt_tokens,
                "output_length": request.max_tokens,
                "hash_ids": ids,
            }
            text.write(json.dumps(row) + "\n")
    return 16
