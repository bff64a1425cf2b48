"""Studies on a Dask cluster: the same bytes, wherever it runs and whoever dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from policies.vllm import VLLMBlockManager
from sim.errors import KvsimError
from sim.state.saved_state import StateFile
from sim.studies import dask_scheduler
from sim.studies.dask_executor import Dask, _kept, _modules
from sim.studies.study import RunsFailed, run

needs_dask = pytest.mark.filterwarnings("ignore")  # Dask's own warnings are not ours
POLICIES = {"lru": "vllm", "fifo": {"use": "vllm", "eviction": "fifo"}}


def config(**sections: Any) -> dict[str, Any]:
    """Two policies at three sizes, without a clock."""
    workload = {"use": "shared_prefix", "num_requests": 2000, "num_prefixes": 40}
    return {
        "mode": "replay",
        "cache": {"block_size": 16},
        "workload": workload,
        "policies": POLICIES,
        "sweep": {"cache.num_blocks": [400, 800, 1600]},
        "report": {"plots": False},
        **sections,
    }


def contents(folder: Path) -> dict[str, bytes]:
    """All files but versions.json, which names the commit of the moment."""
    names = (path for path in sorted(folder.rglob("*")) if path.name != "versions.json")
    files = (path for path in names if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, **options) as made:
        yield made


@pytest.mark.slow
@needs_dask
def test_a_cluster_gives_the_same_bytes(tmp_path: Path, cluster: Any) -> None:
    """Results come back to the process that asked; nothing shows where they were computed."""
    run(config(), out=tmp_path / "here")
    run(config(), out=tmp_path / "there", executor=Dask(cluster.scheduler_address))
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


@pytest.mark.slow
@needs_dask
def test_a_lost_worker_loses_nothing(tmp_path: Path, cluster: Any) -> None:
    """kill -9 of one of two workers in the middle: its runs are computed by others."""
    workload = {"use": "shared_prefix", "num_requests": 20_000, "num_prefixes": 100}
    source = config(workload=workload)
    run(source, out=tmp_path / "calm")
    pids = [worker.pid for worker in cluster.workers.values()]

    def kill(label: str, number: int, num_runs: int) -> None:
        if number == 4:
            threading.Timer(0.3, os.kill, (pids[0], signal.SIGKILL)).start()

    executor = Dask(cluster.scheduler_address)
    run(source, out=tmp_path / "r", on_progress=kill, executor=executor)
    for name in ("summary.csv", "requests.parquet", "series.parquet"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()


BROKEN = """
    from policies.lru import LRU

    class Broken(LRU):
        def victim(self, num_blocks):
            raise RuntimeError("no idea")
"""


@pytest.mark.slow
@needs_dask
def test_failures_come_back(tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of one's own is sent to the workers; what it raises is told here."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kvsim_test_cluster.py").write_text(textwrap.dedent(BROKEN))
    policies = {**POLICIES, "mine": {"use": "vllm", "eviction": "kvsim_test_cluster:Broken"}}
    executor = Dask(cluster.scheduler_address)
    with pytest.raises(RunsFailed, match="3 of 10 runs failed") as error:
        run(config(policies=policies), out=tmp_path / "r", executor=executor)
    assert "RuntimeError: no idea" in str(error.value)
    assert list((tmp_path / "r" / "runs").glob("*.failed.txt"))


def saved(path: Path, num_blocks: int, block_size: int) -> dict[str, str]:
    """The state of an empty cache in a file, as a warm start."""
    StateFile(path, VLLMBlockManager(num_blocks, block_size)).save()
    return {"use": "saved", "path": str(path)}


@pytest.mark.slow
@needs_dask
def test_a_trace_that_workers_lack_is_sent(tmp_path: Path, cluster: Any) -> None:
    """A path that means nothing to the workers is read from what was sent to them."""
    rows = [
        {"timestamp": i, "input_length": 40, "output_length": 4, "hash_ids": [i % 7, 10 + i]}
        for i in range(60)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    old = Path.cwd()
    os.chdir(tmp_path)  # the workers are elsewhere
    try:
        workload = {
            "use": "mooncake",
            "path": "rows.jsonl",
            "trace_block_size": 20,
            "block_size": 20,
        }
        sizes = {"cache": {"block_size": 20}, "sweep": {"cache.num_blocks": [12, 24]}}
        source = config(workload=workload, **sizes)
        run(source, out="here")
        run(source, out="there", executor=Dask(cluster.scheduler_address))
        for name, warm in (("served", workload), ("saved", saved(Path("state"), 24, 20))):
            warm_source = {**source, "sweep": {"cache.num_blocks": [24]}, "warm_start": warm}
            warm_source |= {"policies": {"lru": "vllm"}, "mode": "replay"}
            run(warm_source, out=f"here {name}")
            run(warm_source, out=f"there {name}", executor=Dask(cluster.scheduler_address))
    finally:
        os.chdir(old)
    for name in ("", " served", " saved"):
        assert contents(tmp_path / f"here{name}") == contents(tmp_path / f"there{name}")


@needs_dask
def test_a_scheduler_that_is_not_there() -> None:
    """One line, after ten seconds at most."""
    pytest.importorskip("distributed")
    with pytest.raises(KvsimError, match=r"--scheduler no such: no answer"):
        list(Dask("no such").run([_unit()], None, lambda _: None))  # type: ignore[arg-type]


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes], str]]:
    """A server that sends some bytes to whoever comes, and nothing more: its address."""
    with ExitStack() as stack:

        def made(answer: bytes) -> str:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve() -> None:
                with suppress(OSError):  # until the server is closed
                    while True:
                        stack.enter_context(server.accept()[0]).sendall(answer)

            threading.Thread(target=serve, daemon=True).start()
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            return f"tcp://127.0.0.1:{server.getsockname()[1]}"

        yield made


@needs_dask
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "what answers is no Dask scheduler; give "),
        (b"\0" * 100, "what answers is no Dask scheduler; give "),
        (b"", "no answer within 1 s; give "),
    ],
)
def test_an_address_of_something_else(
    stranger: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch, answer: bytes, said: str
) -> None:
    """One line soon, and no client is made that would hang or complain later."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(dask_scheduler, "SECONDS_TO_ANSWER", 1.0)
    monkeypatch.setattr(distributed, "Client", None)
    address = stranger(answer)
    with pytest.raises(KvsimError, match=f"^--scheduler {address}: {said}"):
        list(Dask(address).run([_unit()], None, lambda _: None))  # type: ignore[arg-type]


@pytest.mark.slow
@needs_dask
def test_a_worker_is_no_scheduler(cluster: Any) -> None:
    """It speaks Dask's language too."""
    worker = cluster.workers[0].worker_address
    with pytest.raises(KvsimError, match=f"--scheduler {worker}: is no Dask scheduler but a"):
        dask_scheduler.refuse_no_scheduler(worker)
    dask_scheduler.refuse_no_scheduler(cluster.scheduler_address)


def _unit() -> Any:
    from sim.studies.study import Study

    return Study.load(config()).units()[0]


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base installation has no Dask."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(KvsimError, match=r"needs the extra 'dask': pip install 'kvsim\[dask\]'"):
        list(Dask().run([_unit()], None, lambda _: None))  # type: ignore[arg-type]


def test_a_trace_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent stands on the worker's disk under its hash; a second run finds it."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    path = _kept("t.jsonl", "a" * 64, b"rows")
    assert path.read_bytes() == b"rows"
    assert _kept("t.jsonl", "a" * 64, b"never written") == path
    assert path.read_bytes() == b"rows"
    assert [p.name for p in path.parent.iterdir()] == ["t.jsonl"]


def test_the_modules_to_send() -> None:
    """Those of others that are named anywhere; kvsim's own are there."""
    spec = {"policies": {"a": {"use": "vllm", "eviction": "textwrap:Mine"}}, "at": "1:30"}
    assert list(_modules(spec)) == ["textwrap"]
    assert list(_modules({"use": "policies.lru:LRU"})) == []
