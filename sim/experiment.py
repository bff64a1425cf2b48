"""One experiment: a configuration, checked as a whole, then run policy by policy.

The same requests go to every policy. Equal configurations give equal tables, byte for byte.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import schema
from sim.build import FROM_PYTHON, Plan, Ready, plan
from sim.cache import BlockManager
from sim.config import Config, apply_overrides, load
from sim.engine import Engine
from sim.errors import ConfigError, KvsimError
from sim.needs import check_needs, policy_of, prepare
from sim.parameters import checked
from sim.place import blamed
from sim.provenance import provenance
from sim.run_folder import CONFIG, PLOTS, VERSIONS, disk_errors, run_folder
from sim.scheduler import SchedulerConfig
from sim.workload import Workload
from sim.yaml_text import dump

if TYPE_CHECKING:
    from sim.results import Results

Source = str | os.PathLike[str] | Mapping[str, Any]
OnProgress = Callable[[str, int, int], None]
"""Called before each run with its label, its number (from 1) and how many runs there are."""

WHOLE = "# Every value in effect; kvsim run on this file repeats the run."
PARTIAL = f"# Every value in effect; what is {FROM_PYTHON} cannot be written down or repeated."


def run(
    config: Source,
    *,
    overrides: Iterable[str] = (),
    out: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Results:
    """Run the experiment in *config*, a YAML file or a mapping, and return its tables.

    *overrides*: `dotted.path=value`, as for `--set`. Everything is also written to the folder
    *out*, or else to the config's `report.out`; without either nothing is written.
    """
    experiment = Experiment.load(config, overrides)
    folder = experiment.out if out is None else Path(out)
    return experiment.run(on_progress) if folder is None else experiment.save(folder, on_progress)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A configuration that was checked; nothing has been simulated yet.

    `load` makes one. *cache* and *engine* hold every value in effect.
    """

    config: Config
    name: str
    seed: int
    cache: Mapping[str, Any]
    engine: Mapping[str, Any]
    scheduler: SchedulerConfig
    latency: Plan | Ready
    managers: Mapping[str, Plan | Ready]
    pictures: tuple[str, ...]
    out: Path | None
    _workloads: dict[int, Workload] = field(default_factory=dict)

    @classmethod
    def load(cls, source: Source, overrides: Iterable[str] = ()) -> Experiment:
        """Read and check *source*; ConfigError names the first thing that is wrong.

        A file may name classes in modules beside it.
        """
        config = load(source)
        if not isinstance(source, Mapping):
            _find_modules_in(Path(source).parent)
        config.data.setdefault("latency", "linear")
        config.data.setdefault("policies", {"lru": "vllm"})
        config = apply_overrides(config, overrides)
        data, root = config.data, config.root
        schema.refuse_unknown(data, schema.TOP, root)
        default_name = "experiment" if isinstance(source, Mapping) else Path(source).stem
        cache = schema.cache_section(config)
        engine, scheduler = schema.engine_section(config)
        seed = schema.at_least(0, int, data.get("seed", 0), root / "seed")
        report = schema.section(config, "report")
        schema.refuse_unknown(report, schema.REPORT, root / "report")
        out = checked(str | None, report.get("out"), root / "report" / "out")
        experiment = cls(
            config=config,
            name=schema.folder_name(data.get("name", default_name), root / "name"),
            seed=seed,
            cache=cache,
            engine=engine,
            scheduler=scheduler,
            latency=plan("latency", data["latency"], where=root / "latency"),
            managers=schema.manager_plans(config, cache, scheduler, seed),
            pictures=schema.pictures(report.get("plots", True), root / "report" / "plots"),
            out=None if out is None else Path(out),
        )
        experiment._workload_plan(cache["block_size"])
        return experiment

    def check(self) -> None:
        """Build every policy once, so that what it refuses or lacks is told before any run."""
        for label in self.managers:
            manager = self._engine(label).manager
            policy = policy_of(manager)
            if policy is not None and policy.needs:
                with _labelled(label):
                    check_needs(manager, self._workload(manager.block_size))

    def run(self, on_progress: OnProgress | None = None) -> Results:
        """Run every policy, in the order of the configuration."""
        from sim.results import Results  # pandas takes half a second to import

        self.check()
        parts = []
        for i, label in enumerate(self.managers, start=1):
            if on_progress:
                on_progress(label, i, len(self.managers))
            parts.append(self._run_one(label))
        return Results.concat(parts)

    def save(self, folder: Path, on_progress: OnProgress | None = None) -> Results:
        """Run, and put tables, pictures, config and versions into *folder*, all or nothing."""
        self.check()
        with run_folder(folder) as scratch:
            results = self.run(on_progress)
            with disk_errors(folder):
                results.save(scratch)
                scratch.joinpath(CONFIG).write_text(self.to_yaml(), encoding="utf-8")
                about = json.dumps(provenance(self.workload), indent=2, ensure_ascii=False)
                scratch.joinpath(VERSIONS).write_text(f"{about}\n", encoding="utf-8")
                self._draw(results, scratch / PLOTS)
        return results

    @property
    def workload(self) -> Workload:
        """The requests, with keys for the block size of `cache`."""
        return self._workload(self.cache["block_size"])

    def resolved(self) -> dict[str, Any]:
        """The configuration with every value in effect; running it gives the same tables."""
        report = schema.section(self.config, "report")
        return {
            "name": self.name,
            "seed": self.seed,
            "cache": dict(self.cache),
            "engine": {name: value for name, value in self.engine.items() if value is not None},
            "latency": self.latency.resolved(),
            "workload": self._workload_plan(self.cache["block_size"]).resolved(),
            "policies": {label: manager.resolved() for label, manager in self.managers.items()},
            **({"report": report} if report else {}),
        }

    def to_yaml(self) -> str:
        """`resolved` as a file for `kvsim run`."""
        text = dump(self.resolved())
        whole = FROM_PYTHON not in text
        return f"{WHOLE if whole else PARTIAL}\n{text}"

    def _engine(self, label: str) -> Engine:
        """A new engine for one policy, its manager empty."""
        manager: BlockManager = self.managers[label].build()
        if manager.num_free_blocks != manager.num_blocks or manager.num_cached_blocks:
            raise ConfigError(
                f"policies.{label}: this manager has been used; a run starts with an empty one"
            )
        options = {n: v for n, v in self.engine.items() if n in schema.ENGINE_PARAMETERS.by_name}
        latency = self.latency.build()
        try:
            return Engine(manager, latency=latency, scheduler=self.scheduler, **options)
        except ConfigError as error:
            place = self.config.root / "engine"
            places = {name: place / name for name in options}
            raise ConfigError(blamed(str(error), places, place)) from None

    def _run_one(self, label: str) -> Results:
        from sim.results import Results

        engine = self._engine(label)
        block_size = engine.manager.block_size
        workload = self._workload(block_size)
        with _labelled(label):
            prepare(engine.manager, workload)
            record = engine.run(workload)
        settings = {
            "kv_bytes_per_token": self.cache["kv_bytes_per_token"],
            "block_size": block_size,
        }
        return Results.from_run(label, record.requests, record.series, record.totals, settings)

    def _workload(self, block_size: int) -> Workload:
        """The requests for managers with this block size, made once."""
        if block_size not in self._workloads:
            workload: Workload = self._workload_plan(block_size).build()
            if workload.block_size != block_size:
                raise ConfigError(
                    f"{self.config.root / 'workload'}: its block_size is {workload.block_size} "
                    f"tokens, the manager's {block_size}; give both the same"
                )
            self._workloads[block_size] = workload
        return self._workloads[block_size]

    def _workload_plan(self, block_size: int) -> Plan | Ready:
        root = self.config.root
        if self.config.data.get("workload") is None:
            raise ConfigError(
                f"{root / 'workload'}: is missing; write 'workload: shared_prefix', for example"
            )
        return plan(
            "workload",
            self.config.data["workload"],
            known={"block_size": block_size, "seed": self.seed},
            where=root / "workload",
            known_where=root / "cache",
        )

    def _draw(self, results: Results, folder: Path) -> None:
        if not self.pictures:
            return
        from sim.plots import save_all

        for path in save_all(results, folder):
            if path.stem not in self.pictures:
                path.unlink()


def _find_modules_in(folder: Path) -> None:
    """Let a configuration name classes in *folder*; appended, so that none can hide ours."""
    if str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))


@contextmanager
def _labelled(label: str) -> Iterator[None]:
    """Say in errors which policy they are about."""
    try:
        yield
    except KvsimError as error:
        raise type(error)(f"policies.{label}: {error}") from error
