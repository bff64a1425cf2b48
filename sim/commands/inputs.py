"""What commands are given: a trace as a workload, options as a block manager."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping

from sim.cache import BlockManager
from sim.spec.build import build
from sim.spec.names import imported
from sim.spec.place import Place
from sim.spec.yaml_text import parse
from sim.workload import Workload

OPTIONS = {
    "num_blocks": "--num-blocks",
    "block_size": "--block-size",
    "eviction": "--policy",
    "free_order": "--free-order",
    "null_block": "--null-block",
}
"""By the arguments of managers."""


def trace_of(arguments: Namespace) -> Workload:
    """The workload that reads a trace: the format given, perhaps with options, or detected."""
    use = arguments.format and parse(arguments.format, "--format")
    spec = use if isinstance(use, dict) else {"use": use}
    if spec.get("use") is None:
        spec["use"] = imported("workloads.detect:detect", Place())(arguments.trace)
    spec["path"] = arguments.trace
    named = {"path": "TRACE"}
    if arguments.block_size is not None:
        spec["block_size"] = arguments.block_size
        named["block_size"] = "--block-size"
    workload: Workload = build("workload", spec, where=option("--format", named))
    return workload


def manager_of(arguments: Namespace, block_size: int) -> BlockManager:
    """The block manager that the options describe."""
    given = {
        "num_blocks": arguments.num_blocks,
        "eviction": arguments.policy and parse(arguments.policy, "--policy"),
        "free_order": arguments.free_order,
        "null_block": arguments.null_block,
    }
    spec = parse(arguments.manager, "--manager")
    spec = spec if isinstance(spec, dict) else {"use": spec}
    given = {name: value for name, value in given.items() if value is not None}
    named = {name: OPTIONS[name] for name in given}
    if "block_size" not in spec:
        named["block_size"] = OPTIONS["block_size"]
    known = {"block_size": block_size}
    manager: BlockManager = build(
        "manager", spec | given, known=known, where=option("--manager", named)
    )
    return manager


def option(name: str, arguments: Mapping[str, str]) -> Place:
    """The place of an object that *name* describes; its *arguments* may be options of their own."""
    names = {"use": name, **arguments}
    return Place(path=(name,), names={(name, key): text for key, text in names.items()})


def print_notes(workload: Workload) -> None:
    """Print to stderr what a reader of results should know about the input."""
    for note in workload.notes:
        print(f"note: {note}", file=sys.stderr)
