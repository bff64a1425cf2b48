"""Units on a Dask cluster: one that runs already, or a local one for the time of the study.

Workers need kvsim, of the same code. They need not share a disk: outcomes come back to the process
that asked, and a trace that a worker does not find is sent to it once. Modules of your own are sent
too. A unit whose worker is lost is computed by another; after its third death it has failed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sim.errors import KvsimError
from sim.studies.dask_scheduler import SECONDS_TO_ANSWER, refuse_no_scheduler
from sim.studies.executors import DIED, Done, Failure, OnStart, Serial, failure, num_cpus
from sim.studies.run_store import RunStore
from sim.studies.unit import Outcome, Unit, own_code
from sim.studies.workload_cache import WorkloadCache

READING = ("workload", "warm_start")  # the sections that name files to read requests from
Traces = dict[str, tuple[str, Any]]  # path as written -> SHA-256 and content (a future)


class Dask:
    """*scheduler*: `tcp://host:8786`; without it a local cluster of *jobs* processes.

    KvsimError if the extra `dask` is not installed or the scheduler does not answer.
    """

    def __init__(self, scheduler: str | None = None, jobs: int | None = None) -> None:
        self.scheduler = scheduler
        self.jobs = jobs or num_cpus()

    def run(self, units: Sequence[Unit], store: RunStore, on_start: OnStart) -> Iterator[Done]:
        plain = [unit for unit in units if unit.is_plain]
        if plain:
            with self._client() as client:
                yield from _computed(client, plain, store, on_start)
        yield from Serial().run([unit for unit in units if not unit.is_plain], store, on_start)

    def _client(self) -> Any:
        try:
            from distributed import Client
        except ImportError:
            raise KvsimError(
                "the Dask executor needs the extra 'dask': pip install 'kvsim[dask]'"
            ) from None
        if self.scheduler is None:
            return Client(
                n_workers=self.jobs,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                set_as_default=False,
            )
        refuse_no_scheduler(self.scheduler)
        return Client(self.scheduler, timeout=SECONDS_TO_ANSWER, set_as_default=False)


def _computed(
    client: Any, units: Sequence[Unit], store: RunStore, on_start: OnStart
) -> Iterator[Done]:
    """Keep every worker busy, and keep what comes back."""
    from distributed import KilledWorker, as_completed

    traces = _shipped(client, units)
    _send_modules(client, units)
    waiting = list(reversed(units))
    running: dict[Any, Unit] = {}

    def submit() -> Any:
        unit = waiting.pop()
        on_start(unit)
        mine = {path: traces[path] for path in _paths(unit) if path in traces}
        future = client.submit(
            compute, unit, mine, own_code(), key=f"{unit.key}-{id(units)}", pure=False
        )
        running[future] = unit
        return future

    ahead = 2 * max(1, sum(client.ncores().values()))
    first = [submit() for _ in range(min(ahead, len(units)))]
    finished = as_completed(first, loop=client.loop)
    for future in finished:
        unit = running.pop(future)
        try:
            outcome: Outcome | Failure = future.result()
        except KilledWorker:
            outcome = Failure(DIED, DIED)
        except Exception as error:  # the cluster's own: cancelled, lost data, another kvsim
            outcome = failure(error)
        if isinstance(outcome, Failure):
            yield unit, outcome
        else:
            store.put(unit, outcome)
            yield unit, None
        if waiting:
            finished.add(submit())


def _paths(unit: Unit) -> list[str]:
    """The files that a unit's requests and its warm start are read from, however nested."""
    found = (path for name in READING for path in _paths_in(unit.spec.get(name)))
    return list(dict.fromkeys(found))


def _paths_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("path"), str):
            yield value["path"]
        for item in value.values():
            yield from _paths_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(item)


def _shipped(client: Any, units: Sequence[Unit]) -> Traces:
    """Every trace that some worker lacks, sent to all of them."""
    traces: Traces = {}
    for name in dict.fromkeys(path for unit in units for path in _paths(unit)):
        path = _found(name)
        if path is None:  # the unit will say so
            continue
        digest = _sha256(path)
        if all(client.run(_has, name, digest).values()):
            continue
        (content,) = client.scatter([path.read_bytes()], broadcast=True)
        traces[name] = digest, content
    return traces


def _send_modules(client: Any, units: Sequence[Unit]) -> None:
    """Send modules of others, which workers may not find."""
    sent: set[str] = set()
    for unit in units:
        for name in _modules(unit.spec):
            spec = find_spec(name)
            if name not in sent and spec and spec.origin and Path(spec.origin).is_file():
                client.upload_file(spec.origin)
                sent.add(name)


def _modules(value: Any) -> Iterator[str]:
    """The modules of `module:Class` in *value*, kvsim's own left out."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _modules(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _modules(item)
    elif isinstance(value, str) and value.count(":") == 1:
        module, _, name = value.partition(":")
        ours = module.partition(".")[0] in ("sim", "policies", "workloads")
        if name.isidentifier() and module.isidentifier() and not ours and module in sys.modules:
            yield module


# On a worker

_here = threading.local()


def compute(unit: Unit, traces: Traces, code: str) -> Outcome | Failure:
    """The outcome of *unit*, or why there is none."""
    if own_code() != code:
        raise KvsimError("this worker has another version of kvsim; install the same everywhere")
    if not hasattr(_here, "workloads"):
        _here.workloads = WorkloadCache()
    try:
        return unit.compute(_here.workloads) if not traces else _with(unit, traces)
    except (Exception, SystemExit) as error:
        failed = failure(error)
        return Failure(failed.line, failed.text)  # some exceptions cannot be sent


def _with(unit: Unit, traces: Traces) -> Outcome:
    """The outcome of *unit* with its traces read from where this worker has them."""
    moved = {
        name: str(_kept(Path(name).name, digest, content))
        for name, (digest, content) in traces.items()
        if not _has(name, digest)
    }
    read = {name: _moved(unit.spec[name], moved) for name in READING if name in unit.spec}
    return replace(unit, spec={**unit.spec, **read}).compute(_here.workloads)


def _moved(value: Any, moved: Mapping[str, str]) -> Any:
    """*value* with the new places of the files that its paths name."""
    if isinstance(value, Mapping):
        return {
            key: moved.get(item, item)
            if key == "path" and isinstance(item, str)
            else _moved(item, moved)
            for key, item in value.items()
        }
    return [_moved(item, moved) for item in value] if isinstance(value, list | tuple) else value


def _kept(name: str, digest: str, content: bytes) -> Path:
    """A file with *content* on this machine, written once."""
    path = Path(tempfile.gettempdir(), f"kvsim-{digest[:20]}", name)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(scratch, path)
    return path


def _has(name: str, digest: str) -> bool:
    path = _found(name)
    return path is not None and _sha256(path) == digest


def _found(name: str) -> Path | None:
    """The file called *name*, as given or under $KVSIM_DATA."""
    for folder in ("", os.environ.get("KVSIM_DATA", "")):
        path = Path(folder, name).expanduser()
        if path.is_file():
            return path
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
