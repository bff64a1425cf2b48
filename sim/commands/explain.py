"""`kvsim explain` and `kvsim decompose`: why a trace hits as much as it does."""

from __future__ import annotations

import sys
from argparse import Namespace

from sim.analysis.decompose import decompose as levels
from sim.analysis.decompose import fitting
from sim.analysis.explain import explain as explanation
from sim.cache import BlockManager
from sim.commands.inputs import OPTIONS, manager_of, option, print_notes, trace_of
from sim.errors import ConfigError
from sim.run_folder import disk_errors
from sim.spec.build import build
from sim.spec.yaml_text import parse


def explain(arguments: Namespace) -> int:
    """Replay a trace with open eyes and print what became of its tokens and blocks."""
    workload = trace_of(arguments)
    print_notes(workload)
    manager = manager_of(arguments, workload.block_size)
    latency = build("latency", parse(arguments.latency, "--latency"), where="--latency")
    found = explanation(manager, workload, decode=arguments.decode, latency=latency)
    print(*found.lines(), sep="\n")
    if arguments.out is not None:
        with disk_errors(arguments.out):
            arguments.out.mkdir(parents=True, exist_ok=True)
            for name in ("requests", "evictions", "gaps", "prefixes"):
                table = getattr(found, name)
                for column in ("session", "tenant", "request_id", "first_request"):
                    if column in table:
                        table[column] = table[column].astype("string")
                table.to_parquet(arguments.out / f"{name}.parquet", index=False)
    return 0


def decompose(arguments: Namespace) -> int:
    """Print the hit rate of LRU rule by rule."""
    workload = trace_of(arguments)
    print_notes(workload)
    latency = build("latency", parse(arguments.latency, "--latency"), where="--latency")
    known = {"num_blocks": arguments.num_blocks, "block_size": workload.block_size}

    def make(free_order: str) -> BlockManager:
        spec = {"use": "vllm", "free_order": free_order}
        where = option("--manager", OPTIONS)
        made: BlockManager = build("manager", spec, known=known, where=where)
        return made

    engine = {"latency": latency}
    left_out = len(workload) - len(fitting(workload, make, engine))
    if left_out:
        _note_left_out(left_out, len(workload))
    print(f"{'rule':<32} {'hit rate':>9}  {'of':<7} as counted by")
    usable = make("tail").num_blocks
    for level in levels(workload, usable, make, engine):
        print(f"{level.rule:<32} {level.hit_rate:>9.2%}  {level.unit:<7} {level.like}".rstrip())
    return 0


def _note_left_out(num: int, num_requests: int) -> None:
    """Say on stderr how many requests no row counts; ConfigError if none is left."""
    if num == num_requests:
        raise ConfigError(
            f"--num-blocks: none of the {num_requests:,} requests fits in the pool, answer "
            "included; take a larger one"
        )
    print(
        f"note: {num:,} of {num_requests:,} requests do not fit in the pool and are left out",
        file=sys.stderr,
    )
