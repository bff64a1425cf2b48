"""Step traces of the policies of a configuration."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpu_backend.trace import StepTrace
from gpu_backend.tracing import has_block_ids, traced_run
from sim.errors import ConfigError
from sim.needs import prepare
from sim.spec.build import Plan
from sim.spec.place import did_you_mean
from sim.studies.experiment import Experiment

TWINS = {"vllm": "reference"}
"""Managers without block ids, and the one that decides the same with them."""


def traces(
    path: Path, only: str | None = None, *, one: bool = False
) -> Iterator[tuple[str, StepTrace]]:
    """A label and the trace of each policy, or of the one labelled *only*.

    *one*: ConfigError if there are several, since one trace is wanted.

    What uses `vllm` runs with `reference`, which decides the same and has block ids. A policy whose
    manager has none is told on stderr and left out.
    """
    experiment = Experiment.load(path)
    swaps = {label: twin for label, plan in experiment.managers.items() if (twin := _twin(plan))}
    if swaps:
        overrides = [f"policies.{label}.use={twin}" for label, twin in swaps.items()]
        experiment = Experiment.load(path, overrides)
    if only is not None and only not in experiment.managers:
        raise ConfigError(
            f"--policy {only}: no policy is labelled so{did_you_mean(only, experiment.managers)} "
            f"({path} has: {', '.join(experiment.managers)})"
        )
    if one and only is None and len(experiment.managers) > 1:
        raise ConfigError(
            "--save keeps the trace of one run; say which with --policy "
            f"({path} has: {', '.join(experiment.managers)})"
        )
    for label in experiment.managers:
        if only not in (None, label):
            continue
        engine = experiment._engine(label)
        if not has_block_ids(engine.manager):
            print(f"note: {label}: its manager has no block ids; not checked", file=sys.stderr)
            continue
        workload = experiment.workload_of(engine.manager.block_size)
        prepare(engine.manager, workload)
        about = f"{label} (with {swaps[label]})" if label in swaps else label
        yield about, traced_run(engine, workload, config=path.name, policy=label)


def _twin(plan: object) -> str | None:
    return TWINS.get(plan.use) if isinstance(plan, Plan) else None
