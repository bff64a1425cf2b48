"""What each subcommand of `kvsim` does: parsed arguments in, exit code out.

Imports are inside the functions: a command loads only what it needs.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import KvsimError

if TYPE_CHECKING:
    from sim.cache import BlockManager
    from sim.names import Kind
    from sim.replay import ReplayResult
    from sim.workload import Workload


def run(arguments: Namespace) -> int:
    """Run an experiment, write its folder and print its summary."""
    _find_modules_in(arguments.config.parent)
    from sim.console import print_summary
    from sim.experiment import Experiment

    experiment = Experiment.load(arguments.config, arguments.overrides)
    folder = arguments.out or experiment.out or Path("results", experiment.name)
    results = experiment.save(folder, _announce)
    _print_notes(experiment.workload)
    print_summary(results)
    print(f"\nresults in {folder}")
    return 0


def _announce(label: str, number: int, num_runs: int) -> None:
    print(f"[{number}/{num_runs}] {label}", file=sys.stderr, flush=True)


def _print_notes(workload: Workload) -> None:
    for note in workload.notes:
        print(f"note: {note}", file=sys.stderr)


def replay(arguments: Namespace) -> int:
    """Replay a trace and print what was hit."""
    _find_modules_in()
    from sim.console import progress
    from sim.needs import prepare
    from sim.replay import replay

    workload = _trace(arguments)
    manager = _manager(arguments, workload.block_size)
    prepare(manager, workload)
    _print_notes(workload)
    done = 0
    with progress("replay", len(workload)) as advance:

        def on_progress(num_requests: int) -> None:
            nonlocal done
            advance(num_requests - done)
            done = num_requests

        result = replay(manager, workload, decode=arguments.decode, on_progress=on_progress)
    _print_replay(result, as_json=arguments.json)
    return 0


def _trace(arguments: Namespace) -> Workload:
    from sim.build import build

    spec = {"use": arguments.format, "path": arguments.trace}
    if arguments.block_size is not None:
        spec["block_size"] = arguments.block_size
    workload: Workload = build("workload", spec, where="--format")
    return workload


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


def _print_replay(result: ReplayResult, *, as_json: bool) -> None:
    from dataclasses import asdict
    from json import dumps

    if as_json:
        print(dumps(asdict(result), allow_nan=False))
        return
    rate = "no tokens" if result.hit_rate is None else f"{result.hit_rate:.2%} of tokens"
    speed = f" ({result.requests / result.seconds:,.0f} requests/s)" if result.seconds else ""
    print(f"requests        {result.requests:,}, {result.refused:,} of them refused (too large)")
    print(f"hit             {rate}: {result.hit_tokens:,} of {result.query_tokens:,}")
    print(f"full blocks     {result.hit_blocks:,} hit of {result.query_blocks:,}")
    print(f"evicted blocks  {result.evicted_blocks:,}")
    print(f"CPU time        {result.seconds:.2f} s{speed}")


def mrc(arguments: Namespace) -> int:
    """Compute how much memory a trace needs for which hit rate."""
    _find_modules_in()
    from sim.mrc_command import run

    workload = _trace(arguments)
    _print_notes(workload)
    return run(arguments, workload)


def golden(arguments: Namespace) -> int:
    """Replay recordings of real vLLM."""
    _find_modules_in()
    from sim.golden import main as replay_recordings

    return replay_recordings(arguments.paths, arguments.manager)


def check(arguments: Namespace) -> int:
    """Hold a policy or a manager to its contract."""
    if not arguments.seconds > 0:
        raise KvsimError(f"--seconds is {arguments.seconds}; it must be greater than 0")
    _find_modules_in()
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

    plurals = {"policy": "eviction policies"}
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


def example(arguments: Namespace) -> int:
    """Print a worked example, moment by moment."""
    config = arguments.config or _packaged("seed_example.yaml")
    _find_modules_in(config.parent)
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


def _find_modules_in(*folders: Path) -> None:
    """Let configurations name classes in *folders*; appended, so that none can hide ours."""
    for folder in (*folders, Path.cwd()):
        if str(folder.resolve()) not in sys.path:
            sys.path.append(str(folder.resolve()))


COMMANDS = {
    "run": run,
    "replay": replay,
    "mrc": mrc,
    "golden": golden,
    "check": check,
    "list": list_names,
    "example": example,
}
