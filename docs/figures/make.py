"""Draw the figures of README and docs: `python docs/figures/make.py [FOLDER]`.

Everything shown is computed here, by the public Python API; the Mooncake figures are drawn only
where the trace is found (docs/traces.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sim import plots, replay, run
from sim.errors import TraceError
from sim.needs import prepare
from sim.plots.style import FAINT, LEGEND, PLAIN, dress, look, new_axes
from sim.spec.build import build
from sim.workload import Workload
from workloads.shared_prefix import SharedPrefix

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"

SIZES = tuple(1024 * 2**i for i in range(7))  # blocks
CURVES: Mapping[str, Mapping[str, Any]] = {
    "LRU (vLLM)": {"use": "vllm", "free_order": "unhashed_first"},
    "reused last": {"use": "vllm", "eviction": "reused_last:ReusedLast"},
    "MIN, the offline optimum": {"use": "vllm", "eviction": "belady"},
}


def hit_rate_by_size(num_requests: int = 20_000) -> Axes:
    """Hit rate against pool size for every one of `CURVES`, and what no pool could exceed."""
    requests = SharedPrefix(num_requests=num_requests)
    ax = new_axes()
    for i, (label, spec) in enumerate(CURVES.items()):
        rates = [hit_rate(spec, size, requests) for size in SIZES]
        ax.plot(SIZES, rates, marker="o", markersize=4, linewidth=2.0, label=label, **look(i))
    best = hit_rate({"use": "vllm"}, 1 + num_blocks_of(requests), requests)
    ax.axhline(best, color=FAINT, linestyle=":", label=f"any policy, unbounded: {best:.1%}")
    about = (
        f"{num_requests:,} requests, {requests.num_prefixes} shared system prompts, one at a time"
    )
    dress(ax, "Prefix-cache hit rate against cache size", about)
    ax.set_xscale("log", base=2)
    ax.set_xticks(SIZES)
    ax.xaxis.set_major_formatter(PLAIN)
    ax.minorticks_off()
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_xlabel(f"blocks of {requests.block_size} tokens")
    ax.set_ylabel("hit tokens / prompt tokens")
    ax.legend(loc="lower right", reverse=True, **LEGEND)
    return ax


def hit_rate(spec: Mapping[str, Any], num_blocks: int, requests: Workload) -> float:
    """The hit rate of a new manager on *requests*."""
    known = {"num_blocks": num_blocks, "block_size": requests.block_size}
    manager = build("manager", spec, known=known)
    prepare(manager, requests)
    rate = replay(manager, requests).hit_rate
    assert rate is not None
    return rate


def num_blocks_of(requests: Workload) -> int:
    """Blocks that would hold all prompts, shared parts counted every time."""
    return sum(-(-request.num_prompt_tokens // requests.block_size) for request in requests)


def figures() -> Iterator[tuple[str, Axes]]:
    """Every figure with the name of its file."""
    sys.path.append(str(CONFIGS))  # for reused_last
    yield "hit_rate_by_size", hit_rate_by_size()
    for name in ("quickstart", "mooncake"):
        try:
            results = run(CONFIGS / f"{name}.yaml")
        except TraceError as error:
            print(f"not drawn: {error}", file=sys.stderr)
            continue
        yield f"{name}_hit_rate", plots.hit_rate_over_time(results)
        yield f"{name}_memory", plots.memory_panels(results)[0]


def main(folder: Path) -> None:
    """Draw all figures into *folder*."""
    for name, ax in figures():
        path = folder / f"{name}.png"
        cast(Figure, ax.figure).savefig(path, dpi=110)
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
