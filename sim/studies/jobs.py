"""What a study has to compute: one row of its summary after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.errors import ConfigError
from sim.spec.axes import Setting
from sim.studies.experiment import Experiment
from sim.studies.provenance import InputFiles
from sim.studies.unit import Unit
from sim.studies.workload_cache import identity


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the summary: which policy, at which point, and what has to be computed for it."""

    policy: str
    setting: Setting
    unit: Unit
    bounds: Unit | None
    num_blocks: int  # usable ones


def made_jobs(points: Sequence[tuple[Setting, Experiment]]) -> list[Job]:
    """A job for every policy at every point, policy by policy; every manager is built once."""
    inputs = InputFiles()
    rows: list[tuple[str, Setting, Experiment, int, int]] = []
    sizes: dict[str, set[int]] = {}
    for setting, point in points:
        for policy in point.managers:
            manager = point.check(policy)
            rows.append((policy, setting, point, manager.num_blocks, manager.block_size))
            same = _bounds_of(point, manager.block_size)
            sizes.setdefault(same, set()).add(manager.num_blocks)
    units: dict[str, Unit] = {}
    jobs = []
    for policy, setting, point, num_blocks, block_size in rows:
        workload = point.workload_of(block_size)
        _check_warmup(point, len(workload))
        files = inputs.of(workload)
        if (warm := point.warm_start_of(block_size)) is not None:
            files |= inputs.of(warm)
        bounds = None
        if point.bounds:
            same = _bounds_of(point, block_size)
            if same not in units:
                units[same] = Unit.bounds(point, block_size, sorted(sizes[same]), files)
            bounds = units[same]
        label = run_label(policy, setting)
        unit = Unit.run(point, policy, label, files)
        jobs.append(Job(policy, setting, unit, bounds, num_blocks))
    order = {policy: i for i, policy in enumerate(points[0][1].managers)}
    return sorted(jobs, key=lambda job: order[job.policy])


def _check_warmup(point: Experiment, num_requests: int) -> None:
    """ConfigError if no request would be left for the statistics."""
    num_warmup = point.report["warmup_requests"]
    if num_warmup and num_warmup >= num_requests:
        place = point.config.root / "report" / "warmup_requests"
        raise ConfigError(
            f"{place} is {num_warmup}; it leaves out all {num_requests} requests of the workload; "
            "it must be smaller"
        )


def run_label(policy: str, setting: Setting) -> str:
    """`lru, cache.num_blocks=2000, seed=1`: one run of a sweep in words."""
    return ", ".join([policy, *(f"{name}={value}" for name, value in setting.items())])


def _bounds_of(point: Experiment, block_size: int) -> str:
    """Equal for runs whose bounds can be computed together."""
    return f"{point.decode} {block_size} {identity(point.workload_plan(block_size))}"
