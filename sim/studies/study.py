"""A whole experiment: every policy at every point of its sweep, each run kept as it ends.

Runs are independent and have keys (`sim.studies.unit`), so a study that was interrupted goes on
where it stopped, and one that is extended computes only what is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import ConfigError, KvsimError
from sim.run_folder import refuse_foreign
from sim.spec import axes
from sim.spec.axes import Setting
from sim.spec.config import Config, in_words, load
from sim.spec.source import Source, default_name, read, with_defaults
from sim.studies.executors import Executor, Failure, Serial
from sim.studies.experiment import Experiment, labelled
from sim.studies.jobs import Job, made_jobs
from sim.studies.run_store import RunStore
from sim.studies.tables import assemble
from sim.studies.unit import Outcome, Unit
from sim.studies.workload_cache import WorkloadCache

if TYPE_CHECKING:
    from sim.results import Results

OnProgress = Callable[[str, int, int], None]
"""Called before each run with its label, its number (from 1) and how many runs there are."""


class RunsFailed(KvsimError):
    """Some runs of a study failed; *results* are those of the others, None if there are none."""

    def __init__(self, message: str, results: Results | None) -> None:
        super().__init__(message)
        self.results = results


def run(
    config: Source,
    *,
    overrides: Iterable[str] = (),
    out: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
) -> Results:
    """Run the experiment in *config*, a YAML file or a mapping, and return its tables.

    *overrides*: `dotted.path=value`, as for `--set`. Everything is also written to the folder
    *out*, or else to the config's `report.out`, where what is there already is not computed again;
    without either nothing is written. *executor*: who computes; by default this process.
    """
    study = Study.load(config, overrides)
    folder = study.out if out is None else Path(out)
    if folder is None:
        return study.run(on_progress)
    return study.save(folder, on_progress, executor)


@dataclass(frozen=True, slots=True)
class Study:
    """A configuration that was checked, and its points; nothing has been simulated yet."""

    config: Config
    points: tuple[tuple[Setting, Experiment], ...]
    workloads: WorkloadCache
    _jobs: list[Job] = field(default_factory=list)

    @classmethod
    def load(cls, source: Source, overrides: Iterable[str] = ()) -> Study:
        """Read and check *source*; ConfigError names the first thing that is wrong."""
        return cls.of(read(source, overrides), default_name(source))

    @classmethod
    def of(cls, config: Config, name: str) -> Study:
        """Check *config* at every point."""
        workloads = WorkloadCache()
        points = tuple(
            (point.setting, Experiment.of(point.config, name, workloads))
            for point in axes.points(config)
        )
        return cls(config, points, workloads)

    @property
    def first(self) -> Experiment:
        """The first point; what is not swept is the same in all."""
        return self.points[0][1]

    @property
    def name(self) -> str:
        return self.first.name

    @property
    def out(self) -> Path | None:
        """The folder that the configuration names for its results."""
        return self.first.out

    def jobs(self) -> list[Job]:
        """What has to be computed, policy by policy; every manager is built once to see it."""
        if not self._jobs:
            self._jobs.extend(made_jobs(self.points))
        return self._jobs

    def units(self) -> list[Unit]:
        """Everything to compute, once each, those with the same requests one after the other."""
        units = {unit.key: unit for job in self.jobs() for unit in (job.bounds, job.unit) if unit}
        groups: dict[str, list[Unit]] = {}
        for unit in units.values():
            spec = [unit.spec["workload"], unit.spec["seed"]]
            groups.setdefault(repr(spec), []).append(unit)
        return [unit for group in groups.values() for unit in group]

    def run(self, on_progress: OnProgress | None = None) -> Results:
        """Run everything in this process, and keep nothing."""
        units = self.units()
        outcomes: dict[str, Outcome] = {}
        for i, unit in enumerate(units, start=1):
            if on_progress:
                on_progress(unit.label, i, len(units))
            with labelled(unit.label):
                outcomes[unit.key] = unit.compute(self.workloads)
        return assemble(self.jobs(), outcomes.__getitem__, self.first.report)

    def save(
        self,
        folder: Path,
        on_progress: OnProgress | None = None,
        executor: Executor | None = None,
    ) -> Results:
        """Run what *folder* does not have yet, and write tables, pictures, config and versions.

        Earlier tables stay until all of that has ended. RunsFailed if a run failed; the tables are
        then those of the others.
        """
        from sim.studies.study_folder import write_study

        refuse_foreign(folder)
        units = self.units()
        store = RunStore(folder)
        with store.locked():
            outcomes: dict[str, Outcome] = {}
            chosen = executor or Serial(self.workloads)
            failed = self._compute(store, units, on_progress, chosen, outcomes)
            jobs = [job for job in self.jobs() if job.unit.key not in failed]
            jobs = [job for job in jobs if not job.bounds or job.bounds.key not in failed]
            results = None
            if jobs:
                results = assemble(jobs, _reading(store, jobs, outcomes), self.first.report)
                write_study(self, results, folder)
            if not failed:
                store.keep_only(units)
        if failed:
            raise _failed(failed, units, results, store)
        assert results is not None
        return results

    def _compute(
        self,
        store: RunStore,
        units: list[Unit],
        on_progress: OnProgress | None,
        executor: Executor,
        outcomes: dict[str, Outcome],
    ) -> dict[str, Failure]:
        """Compute what *store* lacks; the failures by key. *outcomes* gains the rest, read back.

        They are read while others are computed.
        """
        missing = [unit for unit in units if not store.has(unit)]
        number = len(units) - len(missing)

        def on_start(unit: Unit) -> None:
            nonlocal number
            number = min(number + 1, len(units))
            if on_progress:
                on_progress(unit.label, number, len(units))

        failed: dict[str, Failure] = {}
        for unit, why in executor.run(missing, store, on_start):
            if why is not None:
                failed[unit.key] = why
                store.put_failure(unit, why.text)
            else:
                outcomes[unit.key] = store.get(unit)
        return failed

    def resolved(self) -> dict[str, Any]:
        """The configuration with every value in effect; running it gives the same tables.

        The defaults are those of the first point; where they depend on what is swept, the
        configuration is as it was given.
        """
        varied = {key: self.config.data[key] for key in axes.KEYS if key in self.config.data}
        if not varied:
            return self.first.resolved()
        spelled = {**self.first.resolved(), **varied}
        try:
            again = Study.of(with_defaults(load(spelled)), self.name)
        except ConfigError:
            again = None
        resolved = [one.resolved() for _, one in self.points]
        if again and [one.resolved() for _, one in again.points] == resolved:
            return spelled
        words: dict[str, Any] = in_words({"name": self.name, **self.config.data})
        return words


def _reading(
    store: RunStore, jobs: Iterable[Job], outcomes: Mapping[str, Outcome]
) -> Callable[[str], Outcome]:
    """Outcomes by key: *outcomes*, and from the folder what earlier runs have left."""
    units: Mapping[str, Unit] = {u.key: u for j in jobs for u in (j.unit, j.bounds) if u}
    return lambda key: outcomes[key] if key in outcomes else store.get(units[key])


def _failed(
    failed: Mapping[str, Failure], units: Iterable[Unit], results: Results | None, store: RunStore
) -> RunsFailed:
    lines = [
        f"{unit.label}: {failed[unit.key].line} ({store.path / unit.key}.failed.txt)"
        for unit in units
        if unit.key in failed
    ]
    head = f"{len(failed)} of {len(list(units))} runs failed and will be tried again next time"
    error = RunsFailed("\n".join([head, *lines]), results)
    error.__cause__ = next(iter(failed.values())).error
    return error
