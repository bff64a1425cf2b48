"""The smallest piece of a sweep that is computed, kept and repeated on its own.

A unit is plain data, so that any process can compute it, and has a key: a hash of its resolved
configuration, of the code and of the input files. Equal keys, equal results. What holds objects
from Python can be computed in this process only and is never taken from an earlier run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sim.hardware.profiles import profile_names, profile_path
from sim.spec.build import Plan, Ready
from sim.spec.config import FROM_PYTHON, Config
from sim.spec.source import with_defaults
from sim.studies.experiment import Experiment
from sim.studies.workload_cache import WorkloadCache

if TYPE_CHECKING:
    from sim.results import Results

FORMAT = 1
"""Of the tables and of this hash; one more whenever results of before cannot be used any more."""
RUN = "run"  # the label of the only policy of a unit; the tables say its real one
Outcome = Any  # Results of a run, a plain mapping of bounds


@dataclass(frozen=True, slots=True)
class Unit:
    """One run, or the bounds of one workload. *label*: what progress and errors call it."""

    kind: Literal["run", "bounds"]
    key: str
    label: str
    spec: Mapping[str, Any]
    policy: str = ""
    experiment: Experiment | None = None  # only where *spec* cannot hold everything

    @classmethod
    def run(
        cls, experiment: Experiment, policy: str, label: str, inputs: Mapping[str, str]
    ) -> Unit:
        """The run of one policy of *experiment*; *inputs*: the SHA-256 of every file it reads."""
        spec = {
            name: value
            for name, value in experiment.resolved().items()
            if name not in ("name", "question", "report", "bounds")
        }
        manager = experiment.managers[policy]
        spec["policies"] = {RUN: manager.resolved()}
        spec["cache"] = _needed(spec["cache"], manager)
        plain = _is_plain(spec)
        plans = [manager, experiment.latency, experiment.workload_plan(1)]
        plans += [warm] if (warm := experiment.warm_start_plan(1)) is not None else []
        code = sorted({digest for plan in plans for digest in code_of(plan)})
        key = key_of(spec, inputs, code, "" if plain else label)
        return cls("run", key, label, spec, policy, None if plain else experiment)

    @classmethod
    def bounds(
        cls, experiment: Experiment, block_size: int, sizes: list[int], inputs: Mapping[str, str]
    ) -> Unit:
        """What could be hit at best of the experiment's workload in pools of these *sizes*."""
        plan = experiment.workload_plan(block_size)
        spec = {
            "workload": plan.resolved(),
            "seed": experiment.seed,
            "block_size": block_size,
            "decode": experiment.decode,
            "sizes": sizes,
            "num_warmup": experiment.report["warmup_requests"],
        }
        plain = _is_plain(spec)
        label = f"bounds, blocks of {block_size}"
        key = key_of(spec, inputs, code_of(plan), "" if plain else label)
        return cls("bounds", key, label, spec, "", None if plain else experiment)

    @property
    def is_plain(self) -> bool:
        """Whether another process can compute it, and another day need not."""
        return self.experiment is None

    def compute(self, workloads: WorkloadCache) -> Outcome:
        """The tables of the run, or the bounds."""
        return self._run(workloads) if self.kind == "run" else self._bounds(workloads)

    def _run(self, workloads: WorkloadCache) -> Results:
        if self.experiment is not None:
            return self.experiment.run_one(self.policy)
        config = with_defaults(Config(dict(self.spec)))
        return Experiment.of(config, RUN, workloads).run_one(RUN)

    def _bounds(self, workloads: WorkloadCache) -> dict[str, Any]:
        from sim.analysis.bounds import pool_bounds

        block_size = self.spec["block_size"]
        if self.experiment is None:
            cache = {"num_blocks": 2, "block_size": block_size}
            data = {"cache": cache} | {name: self.spec[name] for name in ("workload", "seed")}
            point = Experiment.of(with_defaults(Config(data)), RUN, workloads)
            workload = point.workload_of(block_size)
        else:
            workload = self.experiment.workload_of(block_size)
        return pool_bounds(
            workload,
            self.spec["sizes"],
            decode=self.spec["decode"],
            num_warmup=self.spec["num_warmup"],
        )


def _needed(cache: Mapping[str, Any], manager: Plan | Ready) -> dict[str, Any]:
    """The values of *cache* that reach *manager* or its tables: no other makes it another run."""
    used = {"block_size", "kv_bytes_per_token"}
    used |= set(manager.known) if isinstance(manager, Plan) else set()
    return {name: value for name, value in cache.items() if name in used}


def _is_plain(spec: Mapping[str, Any]) -> bool:
    """Whether *spec* names only what another process finds too."""
    text = json.dumps(spec, default=repr)
    return not any(word in text for word in (FROM_PYTHON, '"__main__:', "<locals>"))


def key_of(spec: Mapping[str, Any], inputs: Mapping[str, str], code: list[str], extra: str) -> str:
    """The hash that a unit is known by."""
    files = sorted({*inputs.values(), *_files_in(spec)})
    whole = [FORMAT, own_code(), sorted(code), files, spec, extra]
    text = json.dumps(whole, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _files_in(value: Any) -> Iterator[str]:
    """The SHA-256 of every file that *value* names: profiles, tables of lengths ..."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _files_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _files_in(item)
    elif isinstance(value, str) and Path(value).suffix and Path(value).is_file():
        about = Path(value).stat()
        yield _sha256(value, about.st_mtime_ns, about.st_size)


@cache
def _sha256(path: str, *_: int) -> str:
    """Of a file, which is read again only if its time or size is another."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def own_code() -> str:
    """A hash of all code of kvsim that may change a result, and of the profiles with it."""
    digest = hashlib.sha256()
    for kind in ("models", "gpus"):
        for name in profile_names(kind):
            digest.update(profile_path(kind, name).read_bytes())
    for package in ("sim", "policies", "workloads"):
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def code_of(plan: Plan | Ready) -> list[str]:
    """Hashes of the modules of others that *plan* names, its arguments included."""
    if not isinstance(plan, Plan):
        return []
    found = []
    module = str(getattr(plan.parameters.target, "__module__", ""))
    if module.partition(".")[0] not in ("sim", "policies", "workloads"):
        spec = find_spec(module) if module != "__main__" else None
        if spec and spec.origin and Path(spec.origin).is_file():
            found.append(hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest())
    for value in (*plan.given.values(), *plan.known.values()):
        if isinstance(value, Plan):
            found += code_of(value)
    return found
