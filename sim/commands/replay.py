"""`kvsim replay`: a trace through one block manager, without a clock."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from json import dumps

from sim.cache import BlockManager
from sim.commands.console import progress
from sim.commands.inputs import manager_of, print_notes, trace_of
from sim.needs import prepare
from sim.replay import ReplayResult, replay
from sim.state.saved_state import StateFile
from sim.state.warm_start import Before


def run(arguments: Namespace) -> int:
    """Replay a trace and print what was hit."""
    workload = trace_of(arguments)
    manager = manager_of(arguments, workload.block_size)
    state = _state(arguments, manager)
    if arguments.save_state:
        workload = Before(workload)
    prepare(manager, workload)
    print_notes(workload)
    if arguments.load_state and state:
        state.restore()
    done = 0
    with progress("replay", len(workload)) as advance:

        def on_progress(num_requests: int) -> None:
            nonlocal done
            advance(num_requests - done)
            done = num_requests

        result = replay(manager, workload, decode=arguments.decode, on_progress=on_progress)
    if arguments.save_state and state:
        state.save()
    _print_replay(result, as_json=arguments.json, has_content=workload.has_content)
    return 0


def _state(arguments: Namespace, manager: BlockManager) -> StateFile | None:
    """The file that the state of *manager* is kept in or comes from, if one is named."""
    path = arguments.save_state or arguments.load_state
    return StateFile(path, manager, arguments.num_blocks) if path else None


def _print_replay(result: ReplayResult, *, as_json: bool, has_content: bool) -> None:
    if as_json:
        known = asdict(result)
        if not has_content:
            known |= {"hit_tokens": None, "hit_blocks": None}
        print(dumps(known, allow_nan=False))
        return
    if not has_content:
        print("hit             not known: the trace has lengths only, no content")
        return
    rate = "no tokens" if result.hit_rate is None else f"{result.hit_rate:.2%} of tokens"
    speed = f" ({result.requests / result.seconds:,.0f} requests/s)" if result.seconds else ""
    print(f"requests        {result.requests:,}, {result.refused:,} of them refused (too large)")
    print(f"hit             {rate}: {result.hit_tokens:,} of {result.query_tokens:,}")
    print(f"full blocks     {result.hit_blocks:,} hit of {result.query_blocks:,}")
    print(f"evicted blocks  {result.evicted_blocks:,}")
    print(f"cached at end   {result.cached_blocks:,} blocks, {result.orphaned_blocks:,} orphaned")
    print(f"CPU time        {result.seconds:.2f} s{speed}")
