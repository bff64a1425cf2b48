"""Every block of a small pool over time: blank, cached, in use, shared.

For looking at. Only managers with block ids (`reference`) can be drawn so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from sim.block_states import COLUMN, IN_USE, SHARED, STATES, block_states, read
from sim.cache import BlockManager
from sim.engine import Engine
from sim.plots.style import FAINT, INK, LEGEND, dress, new_axes, new_figure
from sim.request import Request
from sim.results import Results

COLORS = ("#E4E8EB", "#7FB5D9", "#0B4F7D", "#D55E00")


@dataclass(frozen=True, slots=True, eq=False)
class BlockMap:
    """*states*[i, j]: what block *block_ids*[i] was at *times*[j], as an index of `STATES`."""

    block_ids: list[int]
    times: npt.NDArray[np.float64]
    states: npt.NDArray[np.int8]

    @classmethod
    def of(cls, engine: Engine, workload: Iterable[Request]) -> BlockMap:
        """Run *engine* and note the state of every block at each of its samples.

        ConfigError if its manager has no block ids.
        """
        snapshots: list[dict[int, int]] = []
        times: list[float] = []
        sample = engine._sample

        def noted(now: float) -> None:
            sample(now)
            names = [request.request_id for request in engine.scheduler.running]
            snapshots.append(block_states(engine.manager, names))
            times.append(now)

        engine._sample = noted  # type: ignore[method-assign]
        engine.run(workload)
        return cls._of(snapshots, times)

    @classmethod
    def of_run(cls, run: Results) -> BlockMap | None:
        """What one run noted in its series; None if it did not (`sim.block_states`)."""
        if COLUMN not in run.series or not len(run.series) or run.series[COLUMN].isna().any():
            return None
        return cls._of([read(text) for text in run.series[COLUMN]], list(run.series["time"]))

    @classmethod
    def _of(cls, snapshots: Sequence[dict[int, int]], times: list[float]) -> BlockMap:
        ids = sorted(snapshots[0])
        states = np.array([[snapshot[i] for snapshot in snapshots] for i in ids], dtype=np.int8)
        return cls(ids, np.array(times), states)


def block_map(found: BlockMap, ax: Axes | None = None, subtitle: str = "") -> Axes:
    """Block id against time, coloured by state."""
    ax = ax or new_axes()
    edges = np.append(found.times, found.times[-1] + 1e-9 + np.ptp(found.times) / 1000)
    heights = found.block_ids[0] + np.arange(len(found.block_ids) + 1)
    colors = ListedColormap(list(COLORS))
    ax.pcolormesh(edges, heights, found.states, cmap=colors, vmin=-0.5, vmax=3.5, rasterized=True)
    ax.set_ylabel("block id")
    ax.set_xlabel("simulated time (s)")
    dress(ax, "Every block over time", subtitle)
    ax.grid(False)
    _legend(ax)
    return ax


def free_queue(
    manager: BlockManager, running: Iterable[int | str] = (), ax: Axes | None = None
) -> Axes:
    """All blocks by id, and below them the free queue: what is handed out next stands left."""
    states = block_states(manager, running)
    ax = ax or new_figure(8.0, 2.3).add_subplot()
    for place, (block_id, state) in enumerate(sorted(states.items())):
        _square(ax, place, 1.4, block_id, state)
    queue: list[Any] = [block.block_id for block in manager.free_blocks()]
    for place, block_id in enumerate(queue):
        _square(ax, place, 0.0, block_id, states[block_id])
    for y, text in ((1.9, "blocks"), (0.5, "free queue")):
        ax.text(-0.3, y, text, ha="right", va="center", fontsize=9.5, color=INK)
    if queue:
        ax.text(0.5, -0.28, "next", ha="center", va="center", fontsize=8.5, color=FAINT)
    ax.set_xlim(-2.2, max(len(states), 8))
    ax.set_ylim(-0.5, 2.6)
    ax.set_aspect("equal")
    ax.axis("off")
    _legend(ax)
    return ax


def _square(ax: Axes, x: float, y: float, block_id: int, state: int) -> None:
    ax.add_patch(Rectangle((x + 0.04, y), 0.92, 0.92, facecolor=COLORS[state]))
    color = "white" if state in (IN_USE, SHARED) else "#20262B"
    ax.text(x + 0.5, y + 0.46, str(block_id), ha="center", va="center", fontsize=9, color=color)


def _legend(ax: Axes) -> None:
    patches = [Patch(color=c, label=s) for c, s in zip(COLORS, STATES, strict=True)]
    place: dict[str, Any] = {"bbox_to_anchor": (1.0, 1.0), "ncols": 4} | LEGEND
    ax.legend(handles=patches, loc="lower right", **place)
