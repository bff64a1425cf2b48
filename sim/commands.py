"""What each subcommand of `kvsim` does: parsed arguments in, exit code out.

Imports are inside the functions: a command loads only what it needs.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import KvsimError
from sim.search import find_modules_in

if TYPE_CHECKING:
    from sim.cache import BlockManager
    from sim.names import Kind
    from sim.replay import ReplayResult
    from sim.saved_state import StateFile
    from sim.workload import Workload


def run(arguments: Namespace) -> int:
    """Run an experiment, or what is still missing of it."""
    find_modules_in(arguments.config.parent, Path.cwd())
    from sim.run_command import run

    return run(arguments)


def validate(arguments: Namespace) -> int:
    """Check a configuration as `run` does, or print the schema."""
    from sim.run_command import schema, validate

    if arguments.schema:
        return schema()
    find_modules_in(arguments.config.parent, Path.cwd())
    return validate(arguments)


def report(arguments: Namespace) -> int:
    """Write a report of results."""
    find_modules_in(Path.cwd())
    from sim.report_command import run

    return run(arguments)


def replay(arguments: Namespace) -> int:
    """Replay a trace and print what was hit."""
    find_modules_in(Path.cwd())
    from sim.console import progress
    from sim.needs import prepare
    from sim.replay import replay
    from sim.warm_start import Before

    workload = _trace(arguments)
    manager = _manager(arguments, workload.block_size)
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
    from sim.saved_state import StateFile

    path = arguments.save_state or arguments.load_state
    return StateFile(path, manager) if path else None


def _trace(arguments: Namespace) -> Workload:
    """The workload that reads a trace: the format given, perhaps with options, or detected."""
    from sim.build import build
    from sim.names import imported
    from sim.place import Place
    from sim.yaml_text import parse

    use = arguments.format and parse(arguments.format, "--format")
    spec = use if isinstance(use, dict) else {"use": use}
    if spec.get("use") is None:
        spec["use"] = imported("workloads.detect:detect", Place())(arguments.trace)
    spec["path"] = arguments.trace
    if arguments.block_size is not None:
        spec["block_size"] = arguments.block_size
    workload: Workload = build("workload", spec, where="--format")
    return workload


def trace(arguments: Namespace) -> int:
    """Describe or convert a trace."""
    find_modules_in(Path.cwd())
    from sim.names import imported
    from sim.place import Place

    if arguments.action == "list":
        return int(imported("workloads.trace_command:list_datasets", Place())())
    workload = _trace(arguments)
    action = imported(f"workloads.trace_command:{arguments.action}", Place())
    return int(action(arguments, workload))


def _manager(arguments: Namespace, block_size: int) -> BlockManager:
    from sim.build import build
    from sim.yaml_text import parse

    given = {
        "num_blocks": arguments.num_blocks,
        "eviction": arguments.policy and parse(arguments.policy, "--policy"),
        "free_order": arguments.free_order,
        "null_block": arguments.null_block,
    }
    spec = parse(arguments.manager, "--manager")
    spec = spec if isinstance(spec, dict) else {"use": spec}
    spec |= {name: value for name, value in given.items() if value is not None}
    manager: BlockManager = build(
        "manager", spec, known={"block_size": block_size}, where="--manager"
    )
    return manager


def _print_replay(result: ReplayResult, *, as_json: bool, has_content: bool) -> None:
    from dataclasses import asdict
    from json import dumps

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


def explain(arguments: Namespace) -> int:
    """Replay a trace with open eyes and print what became of its tokens and blocks."""
    find_modules_in(Path.cwd())
    from sim.explain_command import explain

    workload = _trace(arguments)
    print_notes(workload)
    return explain(_manager(arguments, workload.block_size), workload, arguments)


def decompose(arguments: Namespace) -> int:
    """Print the hit rate of LRU rule by rule."""
    find_modules_in(Path.cwd())
    from sim.explain_command import decompose

    workload = _trace(arguments)
    print_notes(workload)
    return decompose(workload, arguments)


def print_notes(workload: Workload) -> None:
    """Print to stderr what a reader of results should know about the input."""
    for note in workload.notes:
        print(f"note: {note}", file=sys.stderr)


def mrc(arguments: Namespace) -> int:
    """Compute how much memory a trace needs for which hit rate."""
    find_modules_in(Path.cwd())
    from sim.mrc_command import run

    workload = _trace(arguments)
    print_notes(workload)
    return run(arguments, workload)


def golden(arguments: Namespace) -> int:
    """Replay recordings of real vLLM."""
    find_modules_in(Path.cwd())
    from sim.golden import main as replay_recordings

    return replay_recordings(arguments.paths, arguments.manager)


def check(arguments: Namespace) -> int:
    """Hold a policy or a manager to its contract."""
    if not arguments.seconds > 0:
        raise KvsimError(f"--seconds is {arguments.seconds}; it must be greater than 0")
    find_modules_in(Path.cwd())
    from sim.testing import ContractBroken, check_block_manager, check_eviction_policy, kind_of
    from sim.yaml_text import parse

    spec = parse(arguments.target, "TARGET")
    checker = check_eviction_policy if kind_of(spec) == "policy" else check_block_manager
    try:
        checker(spec, seconds=arguments.seconds, report=lambda claim: print(f"ok      {claim}"))
    except ContractBroken as broken:
        print(f"FAILED  {broken.claim}", *str(broken).splitlines()[1:], sep="\n")
        return 1
    print("nothing is broken, as far as these programs show")
    return 0


def list_names(arguments: Namespace) -> int:
    """Print every short name, what it stands for and what it takes."""
    from sim.names import NOUNS, names

    plurals = {"policy": "eviction policies", "arrivals": "arrival processes"}
    for kind, noun in NOUNS.items():
        print(f"{plurals.get(kind, noun + 's')}:")
        for name in names(kind):
            _list_one(kind, name)
        print()
    return 0


def _list_one(kind: Kind, name: str) -> None:
    import inspect
    import textwrap

    from sim.names import find
    from sim.parameters import Parameters
    from sim.place import Place

    target = find(kind, name, Place())
    about = (inspect.getdoc(target) or "").partition("\n")[0]
    print(f"  {name:<15} {about}")
    taken = f"takes: {Parameters.of(target)}"
    print(textwrap.fill(taken, 96, initial_indent=" " * 18, subsequent_indent=" " * 25))


def gpu(arguments: Namespace) -> int:
    """Check block tables against paged attention, or measure."""
    from sim.names import imported
    from sim.place import Place

    return int(imported("gpu_backend.command:main", Place())(arguments))


def example(arguments: Namespace) -> int:
    """Print a worked example, moment by moment."""
    config = arguments.config or _packaged("seed_example.yaml")
    find_modules_in(config.parent, Path.cwd())
    from sim.walkthrough import walkthrough

    print(walkthrough(config))
    return 0


def _packaged(name: str) -> Path:
    """A configuration that comes with kvsim: beside the sources, or installed with them."""
    package = Path(__file__).parent
    places = (package.parent / "configs" / name, package / "configs" / name)
    for place in places:
        if place.is_file():
            return place
    raise KvsimError(f"{name} is not installed with kvsim; name a configuration instead")


COMMANDS = {
    "run": run,
    "validate": validate,
    "report": report,
    "explain": explain,
    "decompose": decompose,
    "replay": replay,
    "mrc": mrc,
    "trace": trace,
    "golden": golden,
    "check": check,
    "list": list_names,
    "gpu": gpu,
    "example": example,
}
