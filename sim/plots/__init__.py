"""Pictures of results: hit rate, memory and latency, of one run or of several side by side.

Every function takes `Results`, draws on *ax* or on a figure of its own, and returns the `Axes`
(`ax.figure.savefig(...)`; in a notebook, `ax.figure` as the last line shows it). Nothing here
needs a display, imports pyplot or changes a style or backend that others use.
"""

from sim.plots.block_maps import block_map, free_queue
from sim.plots.eviction_ages import eviction_age
from sim.plots.gains import gain
from sim.plots.gallery import pictures, save_all
from sim.plots.latencies import latency_cdf
from sim.plots.memory_curves import hit_rate_curve
from sim.plots.miss_classes import misses
from sim.plots.runs import hit_rate_over_time, memory_over_time, memory_panels
from sim.plots.sweeps import focus, hit_rate_by_size, latency_by_size

__all__ = [
    "block_map",
    "eviction_age",
    "focus",
    "free_queue",
    "gain",
    "hit_rate_by_size",
    "hit_rate_curve",
    "hit_rate_over_time",
    "latency_by_size",
    "latency_cdf",
    "memory_over_time",
    "memory_panels",
    "misses",
    "pictures",
    "save_all",
]
