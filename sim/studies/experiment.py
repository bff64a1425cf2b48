"""One point of an experiment: a configuration without `sweep`, checked, and its runs.

The same requests go to every policy. Equal configurations give equal tables, byte for byte.
`sim.studies.study` expands a whole configuration into such points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.analysis.reuse import reuse
from sim.analysis.walkthrough_script import SECTIONS
from sim.cache import BlockManager
from sim.engine import Engine
from sim.errors import ConfigError, KvsimError
from sim.needs import check_needs, policy_of, prepare
from sim.replay_record import record_replay
from sim.scheduler_config import SchedulerConfig
from sim.spec import schema
from sim.spec.axes import KEYS
from sim.spec.build import Plan, Ready, plan
from sim.spec.config import Config
from sim.spec.parameters import checked
from sim.spec.place import blamed
from sim.spec.source import Source, default_name, read
from sim.spec.wishes import Mode, bounds_wanted, evictions_wanted, lru_label
from sim.state.warm_start import SAVED, Before, Saved, warm_up
from sim.studies.workload_cache import WorkloadCache
from sim.workload import Workload

if TYPE_CHECKING:
    from sim.results import Results


@dataclass(frozen=True, slots=True)
class Experiment:
    """A configuration that was checked; nothing has been simulated yet.

    `load` and `of` make one. *question*: what it is to answer, for the report. *cache* and
    *engine* hold every value in effect. *mode*: `engine` has a clock; `replay` serves one request
    after the other, prompts only or with their answers, and leaves `engine` and `latency` aside.
    """

    config: Config
    name: str
    question: str
    seed: int
    mode: Mode
    bounds: bool
    evictions: bool
    cache: Mapping[str, Any]
    engine: Mapping[str, Any]
    scheduler: SchedulerConfig
    latency: Plan | Ready
    managers: Mapping[str, Plan | Ready]
    report: Mapping[str, Any]
    workloads: WorkloadCache = field(default_factory=WorkloadCache)

    @classmethod
    def load(cls, source: Source, overrides: Iterable[str] = ()) -> Experiment:
        """Read and check *source*; ConfigError names the first thing that is wrong.

        A file may name classes in modules beside it.
        """
        return cls.of(read(source, overrides), default_name(source))

    @classmethod
    def of(
        cls, config: Config, default_name: str, workloads: WorkloadCache | None = None
    ) -> Experiment:
        """Check *config*, which has no `sweep`; *workloads* may be shared with other points."""
        data, root = config.data, config.root
        if set(SECTIONS) <= set(data):
            raise ConfigError(f"{root.origin}is an example for kvsim example, not an experiment")
        schema.refuse_unknown(data, schema.TOP, root)
        for key in KEYS:
            if key in data:
                raise ConfigError(
                    f"{root / key}: has several points; sim.studies.study runs them all"
                )
        mode: Mode = checked(Mode, data.get("mode", "engine"), root / "mode")
        cache = schema.cache_section(config)
        engine, scheduler = schema.engine_section(config)
        seed = schema.at_least(0, int, data.get("seed", 0), root / "seed")
        managers = schema.manager_plans(config, cache, scheduler, seed)
        report = schema.report_section(config)
        report["baseline"] = report["baseline"] or lru_label(managers)
        experiment = cls(
            config=config,
            name=schema.folder_name(data.get("name", default_name), root / "name"),
            question=checked(str, data.get("question", ""), root / "question"),
            seed=seed,
            mode=mode,
            bounds=bounds_wanted(config, mode),
            evictions=evictions_wanted(config, mode),
            cache=cache,
            engine=engine,
            scheduler=scheduler,
            latency=plan("latency", data["latency"], where=root / "latency"),
            managers=managers,
            report=report,
            workloads=workloads or WorkloadCache(),
        )
        experiment.workload_plan(cache["block_size"])
        experiment.warm_start_plan(cache["block_size"])
        return experiment

    @property
    def out(self) -> Path | None:
        """The folder that the configuration names for its results."""
        return None if self.report["out"] is None else Path(self.report["out"])

    @property
    def workload(self) -> Workload:
        """The requests, with keys for the block size of `cache`."""
        return self.workload_of(self.cache["block_size"])

    def check(self, label: str) -> BlockManager:
        """The empty manager of one policy; what it refuses or lacks is told before any run."""
        manager = self._engine(label).manager
        policy = policy_of(manager)
        if policy is not None and policy.needs:
            with labelled(label):
                check_needs(manager, self.workload_of(manager.block_size))
                if isinstance(warm := self.warm_start_of(manager.block_size), Before):
                    check_needs(manager, warm)
        return manager

    def resolved(self) -> dict[str, Any]:
        """The configuration with every value in effect; running it gives the same tables."""
        report = schema.section(self.config, "report")
        warm = self.warm_start_plan(self.cache["block_size"])
        times = {
            "engine": {name: value for name, value in self.engine.items() if value is not None},
            "latency": self.latency.resolved(),
        }
        return {
            "name": self.name,
            **({"question": self.question} if self.question else {}),
            "mode": self.mode,
            "seed": self.seed,
            "bounds": self.bounds,
            **({"evictions": True} if self.evictions else {}),
            "cache": dict(self.cache),
            **(times if self.mode == "engine" else {}),
            "workload": self.workload_plan(self.cache["block_size"]).resolved(),
            **({"warm_start": warm.resolved()} if warm is not None else {}),
            "policies": {label: manager.resolved() for label, manager in self.managers.items()},
            **({"report": report} if report else {}),
        }

    def run_one(self, label: str) -> Results:
        """Run one policy."""
        from sim.results import Results  # pandas takes half a second to import

        engine = self._engine(label)
        manager = engine.manager
        workload = self.workload_of(manager.block_size)
        warm = self.warm_start_of(manager.block_size)
        prepare(manager, workload, warm if isinstance(warm, Before) else None)
        if isinstance(warm, Saved):
            warm.restore(manager)
        elif warm is not None:
            warm_up(manager, warm, decode=self.decode)
        if self.mode == "engine":
            record = engine.run(workload)
        else:
            record = record_replay(manager, workload, decode=self.decode)
        record.requests |= reuse(workload, record.requests, decode=self.decode, before=warm or ())
        settings = {
            "kv_bytes_per_token": self.cache["kv_bytes_per_token"],
            "block_size": manager.block_size,
        }
        columns = (record.requests, record.series)
        results = Results.from_run(label, *columns, record.totals, settings)
        if self.evictions:
            results = results.with_columns(self._eviction_numbers(label))
        return results if workload.has_content else results.without_hit_rates()

    def _eviction_numbers(self, label: str) -> dict[str, float]:
        """What `sim.analysis.explain` finds of one policy; NaN for a manager without one."""
        from sim.analysis.explain import NUMBERS, explain

        manager = self._engine(label).manager
        if policy_of(manager) is None:
            return dict.fromkeys(NUMBERS, nan)
        workload = self.workload_of(manager.block_size)
        return explain(manager, workload, decode=self.decode).numbers()

    @property
    def decode(self) -> bool:
        """Whether answers occupy blocks."""
        return self.mode != "replay"

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

    def workload_of(self, block_size: int) -> Workload:
        """The requests for managers with this block size."""
        return self._built(self.workload_plan(block_size), "workload", block_size)

    def warm_start_of(self, block_size: int) -> Before | Saved | None:
        """What is served before them, or was and is restored; None for nothing."""
        made = self.warm_start_plan(block_size)
        if made is None:
            return None
        built = self._built(made, "warm_start", block_size)
        return built if isinstance(built, Saved) else Before(built)

    def workload_plan(self, block_size: int) -> Plan | Ready:
        """What the requests for managers with this block size are made from."""
        made = self._requests_plan("workload", block_size)
        if made is None:
            raise ConfigError(
                f"{self.config.root / 'workload'}: is missing; write 'workload: shared_prefix', "
                "for example"
            )
        return made

    def warm_start_plan(self, block_size: int) -> Plan | Ready | None:
        """What is served before the run is made from; None for nothing."""
        return self._requests_plan("warm_start", block_size)

    def _requests_plan(self, section: str, block_size: int) -> Plan | Ready | None:
        spec = self.config.data.get(section)
        if spec is None:
            return None
        if section == "warm_start" and isinstance(spec, Mapping) and spec.get("use") == "saved":
            spec = {**spec, "use": SAVED}
        return plan(
            "workload",
            spec,
            known={"block_size": block_size, "seed": self.seed},
            where=self.config.root / section,
            known_where=self.config.root / "cache",
        )

    def _built(self, made: Plan | Ready, section: str, block_size: int) -> Workload:
        workload = self.workloads.build(made)
        if workload.block_size != block_size:
            raise ConfigError(
                f"{self.config.root / section}: its block_size is {workload.block_size} "
                f"tokens, the manager's {block_size}; give both the same"
            )
        return workload


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Say in errors which policy they are about."""
    try:
        yield
    except KvsimError as error:
        raise type(error)(f"policies.{label}: {error}") from error
