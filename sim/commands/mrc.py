"""`kvsim mrc`: how much memory for which hit rate, on stdout, as a table and as a picture."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import ConfigError

if TYPE_CHECKING:
    from sim.analysis.memory_curve import MemoryCurve
    from sim.footprint import Convention


def add_options(parser: ArgumentParser) -> None:
    """The options of `kvsim mrc`."""
    parser.add_argument("trace", metavar="TRACE", help="a file, as given or under $KVSIM_DATA")
    parser.add_argument("--format", help="the workload that reads it (detected)")
    parser.add_argument("--block-size", type=int, help="tokens per block (the format's default)")
    parser.add_argument(
        "--target-hit-rate",
        type=float,
        metavar="RATE",
        help="say how large a pool has this token hit rate, 0 to 1",
    )
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument("--model", help="take the KV bytes per token of this model, e.g. qwen3-8b")
    memory.add_argument("--kv-bytes-per-token", type=int, metavar="N", help="bytes per token")
    parser.add_argument(
        "--policy", choices=("lru", "min", "both"), default="both", help="curves to show (both)"
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="pool sizes to list, in usable blocks (vLLM's num_gpu_blocks is one more)",
    )
    parser.add_argument("--decode", action="store_true", help="answers occupy blocks too")
    parser.add_argument(
        "--all-ids", action="store_true", help="count every id of the trace as a full block"
    )
    parser.add_argument(
        "--free-order", choices=("tail", "unhashed_first"), default="tail", help="as for replay"
    )
    parser.add_argument(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="estimate LRU from one block in N; the sample needs 1,000 different blocks",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder of mrc.csv and mrc.png (results/mrc-TRACE)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: Namespace) -> int:
    """Compute the curves of a trace, write them and print the answer."""
    from sim.analysis.memory_curve import MemoryCurve
    from sim.commands.inputs import print_notes, trace_of
    from sim.hardware.models import kv_bytes_per_token

    workload = trace_of(arguments)
    print_notes(workload)
    name = Path(arguments.trace).name.split(".")[0]
    convention, how = _convention(arguments)
    _check(arguments)
    if not workload.has_content:
        raise ConfigError(
            f"{arguments.trace}: has lengths only, so no memory gives it any hit rate; "
            "give --format a content model, or take another trace"
        )
    bytes_per_token = arguments.kv_bytes_per_token
    if arguments.model is not None:
        bytes_per_token = kv_bytes_per_token(arguments.model)
    curves = MemoryCurve.of(
        list(workload),
        convention,
        title=f"{name}: {len(workload):,} requests one at a time, {how}",
        free_order=arguments.free_order,
        policies=arguments.policy,
        sizes=arguments.sizes,
        kv_bytes_per_token=bytes_per_token,
        sample_one_in=arguments.sample,
    )
    answer = _answer(curves, arguments.target_hit_rate)
    folder = arguments.out or Path("results", f"mrc-{name}")
    curves.save(folder)
    if arguments.json:
        _print_json(curves, answer)
    elif answer is None:
        _print_table(curves)
    else:
        print(_sentence(curves, answer))
    print(f"mrc.csv and mrc.png in {folder}", file=sys.stderr)
    return 0


ONE_MORE = "--num-blocks and vLLM's num_gpu_blocks are one more"  # the null block


def _check(arguments: Namespace) -> None:
    target, given = arguments.target_hit_rate, arguments.kv_bytes_per_token
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"--target-hit-rate is {target}; it must be above 0 and at most 1")
    if given is not None and given < 1:
        raise ConfigError(f"--kv-bytes-per-token is {given}; it must be at least 1")
    if arguments.sample < 1:
        raise ConfigError(f"--sample is {arguments.sample}; it must be at least 1")


def _convention(arguments: Namespace) -> tuple[Convention, str]:
    from sim.footprint import all_ids, prompt, with_answer

    if arguments.all_ids and arguments.decode:
        raise ConfigError("--all-ids counts prompts only; leave out --decode")
    if arguments.all_ids:
        return all_ids, "every id a block"
    if arguments.decode:
        return with_answer, "full blocks, answers too"
    return prompt, "full blocks of the prompts"


def _answer(curves: MemoryCurve, target: float | None) -> dict[str, float | None] | None:
    if target is None:
        return None
    lru, best = curves.lru_size(target), curves.min_size(target)
    return {
        "target_hit_rate": target,
        "lru_num_blocks": lru,
        "lru_gib": None if lru is None else curves.gib(lru),
        "min_num_blocks": best,
        "min_gib": None if best is None else curves.gib(best),
    }


def _sentence(curves: MemoryCurve, answer: dict[str, float | None]) -> str:
    target = answer["target_hit_rate"]
    if answer["lru_num_blocks"] is None:
        limit = curves.rate(curves.lru.unbounded)
        return f"a hit rate of {target:.1%} is out of reach: without any limit it is {limit:.2%}"
    needs = [
        f"{name} needs {_size(curves, answer[f'{policy}_num_blocks'])}"
        for policy, name in (("lru", curves.lru_name), ("min", "MIN"))
        if answer[f"{policy}_num_blocks"] is not None
    ]
    return f"a hit rate of {target:.1%}: {', '.join(needs)}; {ONE_MORE}"


def _size(curves: MemoryCurve, num_blocks: float | None) -> str:
    assert num_blocks is not None
    gib = curves.gib(num_blocks)
    memory = "" if gib is None else f" ({gib:,.2f} GiB)"
    return f"{num_blocks:,} usable blocks of {curves.lru.block_size} tokens{memory}"


def _print_table(curves: MemoryCurve) -> None:
    print(f"{curves.title}; {ONE_MORE}")
    lru, width = curves.lru_name, max(8, len(curves.lru_name))
    print(f"{'usable blocks':>13} {'GiB':>10} {lru:>{width}} {'MIN':>8} {'no limit':>9}")
    for row in curves.rows(curves.sizes):
        gib = "" if row["gib"] is None else f"{row['gib']:,.2f}"
        best = "" if row["min_hit_rate"] is None else f"{row['min_hit_rate']:.2%}"
        print(
            f"{row['num_blocks']:>13,} {gib:>10} {row['lru_hit_rate']:>{width}.2%} {best:>8} "
            f"{row['unbounded_hit_rate']:>9.2%}"
        )


def _print_json(curves: MemoryCurve, answer: dict[str, float | None] | None) -> None:
    from json import dumps

    lru = curves.lru
    about = {
        "title": curves.title,
        "requests": lru.num_requests,
        "block_size": lru.block_size,
        "min_num_blocks": lru.min_num_blocks,
        "lru": curves.lru_name,
        "sample_one_in": curves.sample_one_in,
        "unbounded_hit_blocks": lru.unbounded,
        "unbounded_hit_rate": curves.rate(lru.unbounded),
        "kv_bytes_per_token": curves.kv_bytes_per_token,
        **(answer or {}),
        "sizes": curves.rows(curves.sizes),
    }
    print(dumps(about, allow_nan=False))
