"""`kvsim trace`: what is in a trace, and traces in kvsim's own format."""

from __future__ import annotations

from argparse import Namespace

from sim.commands.inputs import trace_of
from sim.spec.names import imported
from sim.spec.place import Place


def run(arguments: Namespace) -> int:
    """Describe or convert a trace, or list the public ones."""
    if arguments.action == "list":
        return int(imported("workloads.trace_command:list_datasets", Place())())
    workload = trace_of(arguments)
    action = imported(f"workloads.trace_command:{arguments.action}", Place())
    return int(action(arguments, workload))
