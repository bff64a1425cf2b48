"""What commands are given: a trace as a workload, options as a block manager."""

from __future__ import annotations

import sys
from argparse import Namespace

from sim.cache import BlockManager
from sim.spec.build import build
from sim.spec.names import imported
from sim.spec.place import Place
from sim.spec.yaml_text import parse
from sim.workload import Workload


def trace_of(arguments: Namespace) -> Workload:
    """The workload that reads a trace: the format given, perhaps with options, or detected."""
    use = arguments.format and parse(arguments.format, "--format")
    spec = use if isinstance(use, dict) else {"use": use}
    if spec.get("use") is None:
        spec["use"] = imported("workloads.detect:detect", Place())(arguments.trace)
    spec["path"] = arguments.trace
    if arguments.block_size is not None:
        spec["block_size"] = arguments.block_size
    workload: Workload = build("workload", spec, where="--format")
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
    spec |= {name: value for name, value in given.items() if value is not None}
    manager: BlockManager = build(
        "manager", spec, known={"block_size": block_size}, where="--manager"
    )
    return manager


def print_notes(workload: Workload) -> None:
    """Print to stderr what a reader of results should know about the input."""
    for note in workload.notes:
        print(f"note: {note}", file=sys.stderr)
