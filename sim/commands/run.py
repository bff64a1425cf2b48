"""`kvsim run` and `kvsim validate`: a configuration, computed or only checked."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from sim.commands.console import RunProgress, print_summary
from sim.commands.inputs import print_notes
from sim.errors import KvsimError
from sim.results import Results
from sim.studies.executors import Executor, Processes, num_cpus
from sim.studies.study import RunsFailed, Study


def run(arguments: Namespace) -> int:
    """Run an experiment, write its folder and print its summary."""
    study = Study.load(arguments.config, arguments.overrides)
    folder = arguments.out or study.out or Path("results", study.name)
    executor = _executor(arguments, len(study.units()))
    failed: RunsFailed | None = None
    results: Results | None
    with RunProgress() as watching:
        try:
            results = study.save(folder, watching.started, executor)
        except RunsFailed as error:
            failed, results = error, error.results
    print_notes(study.first.workload)
    if results is not None:
        print_summary(results)
        print(f"\nresults in {folder}")
    if failed is not None:
        print(f"kvsim: {failed}", file=sys.stderr)
        return 1
    return 0


def _executor(arguments: Namespace, num_units: int) -> Executor | None:
    """Who computes; None: this process, unit by unit."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise KvsimError(f"--jobs is {arguments.jobs}; it must be at least 1")
    if arguments.scheduler is not None and arguments.executor not in (None, "dask"):
        raise KvsimError(f"--scheduler is for --executor dask, not {arguments.executor}")
    if arguments.executor == "dask" or arguments.scheduler is not None:
        from sim.studies.dask_executor import Dask

        return Dask(arguments.scheduler, arguments.jobs)
    jobs = min(arguments.jobs or num_cpus(), num_units)
    many = jobs > 1 and arguments.executor != "serial"
    return Processes(jobs) if many or arguments.executor == "processes" else None


def validate(arguments: Namespace) -> int:
    """Check a configuration as `run` does, and say what it would run; or print the schema."""
    if arguments.schema:
        return _print_schema()
    study = Study.load(arguments.config, arguments.overrides)
    num_rows, units = len(study.jobs()), study.units()
    policies = _count(len(study.first.managers), "policy", "policies")
    points, rows = _count(len(study.points), "point"), _count(num_rows, "row")
    verb = "is" if num_rows == 1 else "are"
    has_bounds = any(unit.kind == "bounds" for unit in units)
    work = f"{len(units)} runs and bounds" if has_bounds else _count(len(units), "run")
    print(f"ok: {study.name}, {policies} at {points} {verb} {rows}; {work} to compute")
    return 0


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def _print_schema() -> int:
    from json import dumps

    from sim.spec.json_schema import json_schema

    print(dumps(json_schema(), indent=2))
    return 0
