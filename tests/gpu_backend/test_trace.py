"""Step traces: what the engine did, unchanged by being watched, and back from disk."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gpu_backend.content import Content
from gpu_backend.toy import toy_engine, toy_requests
from gpu_backend.trace import Event, StepTrace, Tables
from gpu_backend.trace_file import load, save
from gpu_backend.tracing import Tracer, traced_run
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.engine import Engine
from sim.errors import ConfigError, KvsimError, TraceError
from sim.keys import TokenKeys
from sim.latency import Constant
from sim.request import Request


def request(name, tokens, outputs=1, arrival=0.0):
    keys = TokenKeys([*tokens, *range(900, 900 + outputs)], 4)
    return Request(name, keys, len(tokens), outputs, arrival)


def tiny_trace() -> StepTrace:
    """Two requests, the second with the first eight tokens of the first; block size 4."""
    requests = [request("a", range(9), 2), request("b", [*range(8), 50], 1, arrival=1.5)]
    engine = Engine(ReferenceBlockManager(10, 4), latency=Constant(1.0))
    return traced_run(engine, requests, note="tiny")


def same(one: StepTrace, other: StepTrace) -> bool:
    """Whether two traces hold the same; arrays have no truth value, so by their text."""
    return repr(plain(one)) == repr(plain(other))


def plain(trace: StepTrace) -> object:
    requests = [(r[0], r[1], r[2].tokens.tolist(), r[2].extras) for r in trace.requests]
    steps = [
        (s.time, list(s.events), [(*row[:4], row[4].tolist()) for row in s.rows])
        for s in trace.steps
    ]
    about = sorted(trace.about.items())
    return trace.num_blocks, trace.block_size, requests, steps, about, list(trace.trailing)


def test_a_trace_by_hand():
    """a takes the blocks 1-3 and decodes; b hits 1 and 2 and takes the next, which is 4."""
    trace = tiny_trace()
    first, second, third = trace.steps
    assert (trace.num_blocks, trace.block_size) == (10, 4)
    assert (first.time, list(first.events)) == (0.0, [Event("stored", 1), Event("stored", 2)])
    assert first.rows[0][:4] == (0, 0, 9, True)
    assert first.rows[0].block_ids.tolist() == [1, 2, 3]
    assert second.rows[0][:4] == (0, 9, 1, False)
    assert second.rows[0].block_ids.tolist() == []
    assert (third.time, list(third.events)) == (2.0, [Event("freed", 0)])
    assert third.rows[0][:4] == (1, 8, 1, True)
    assert third.rows[0].block_ids.tolist() == [1, 2, 4]
    assert list(trace.trailing) == [Event("freed", 1)]
    assert trace.requests[0].content.tokens.tolist() == [*range(9), 900]  # 901 gets no slot
    assert trace.about["note"] == "tiny"
    assert trace.num_tokens == 11


@pytest.mark.parametrize("macro", [False, True])
def test_watching_changes_nothing(macro):
    """The traced run has the same record as the run without, plain or in macro steps."""
    plain_engine, watched = toy_engine(), toy_engine()
    plain_engine = Engine(
        plain_engine.manager,
        latency=plain_engine.latency,
        scheduler=plain_engine.scheduler.config,
        macro_steps=macro,
    )
    record = plain_engine.run(toy_requests())
    tracer = Tracer.of(watched)
    assert repr(watched.run(toy_requests())) == repr(record)
    assert len(tracer.trace().steps) <= record.totals["num_steps"]


def test_every_event_of_the_manager_is_heard_twice():
    """Who listened to KV events before still does; both see the same number."""
    heard = []
    engine = toy_engine()
    engine.manager.events = heard.append
    trace = traced_run(engine, toy_requests())
    seen = [e for step in trace.steps for e in step.events] + list(trace.trailing)
    removed = [e for e in seen if e.kind == "removed"]
    assert len(removed) == engine.manager.num_evicted_blocks > 100
    stored = sum(len(e.block_hashes) for e in heard if hasattr(e, "block_hashes"))
    assert len([e for e in seen if e.kind == "stored"]) == stored


def test_tables_are_the_managers():
    """The tables put together from the rows are those of the manager, in every step."""
    engine = toy_engine(num_blocks=60)
    tracer, seen = Tracer.of(engine), []
    schedule = engine.scheduler.schedule

    def watched(now=0.0):
        step = schedule(now)
        tables = [engine.manager.table(row.request.request_id) for row in step.scheduled]
        seen.append([[block.block_id for block in table] for table in tables])
        return step

    engine.scheduler.schedule = watched
    engine.run(toy_requests(20))
    trace = tracer.trace()
    tables = Tables(trace)
    for step, expected in zip(trace.steps, filter(None, seen), strict=True):
        tables.apply(step)
        assert [tables[row.request].tolist() for row in step.rows] == expected


def test_a_manager_without_block_ids_is_refused():
    """The error names the manager that has them."""
    engine = Engine(VLLMBlockManager(50, 4), latency=Constant(1.0))
    with pytest.raises(ConfigError, match="no block ids; trace `reference`"):
        traced_run(engine, [request("a", range(9))])


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
def test_round_trip(tmp_path, suffix):
    """What is written is read back, with events, extras and names of both kinds."""
    trace = traced_run(toy_engine(num_blocks=60), toy_requests(), seed=0)
    save(trace, tmp_path / f"run{suffix}")
    assert same(load(tmp_path / f"run{suffix}"), trace)
    assert [path.name for path in tmp_path.iterdir()] == [f"run{suffix}"]
    assert any(r.content.extras for r in trace.requests)


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
def test_a_failed_write_leaves_what_was_there(tmp_path, suffix, monkeypatch):
    """The disk is full half-way: one line, the earlier file as it was, nothing beside it."""
    path = tmp_path / f"run{suffix}"
    save(tiny_trace(), path)
    before = path.read_bytes()

    def full(target, **_):
        if suffix == ".npz":
            target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    name = {".npz": "np.savez_compressed", ".jsonl": "json.dumps"}[suffix]
    monkeypatch.setattr(f"gpu_backend.trace_file.{name}", full)
    with pytest.raises(KvsimError, match=r"run\.\w+: cannot be written: No space left"):
        save(tiny_trace(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_head_keeps_whole_steps():
    """As many steps as fit into the tokens, at least one; a head that is the whole is the trace."""
    trace = tiny_trace()
    assert len(trace.head(1).steps) == 1
    assert len(trace.head(10).steps) == 2
    assert trace.head(11) is trace


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (1, {"kvsim_step_trace": 7}, r"run\.jsonl:1: .* kvsim_step_trace: 1"),
        (1, {"block_size": None}, r"run\.jsonl: is no step trace"),
        (4, {"rows": [[9, 0, 9, True, [1, 2, 3]]]}, "step 0 has request 9 of 2"),
        (4, {"rows": [[0, 0, 9, True, [1, 2, 10]]]}, "names a block that is not 0 to 9"),
        (4, {"rows": [[0, 0, 99, True, [1, 2, 3]]]}, "99 tokens of which some are not given"),
        (4, {"rows": [[0, 0, 0, True, [1, 2, 3]]]}, "step 0 schedules 0 tokens"),
        (4, {"rows": [[1]]}, r"run\.jsonl:4: "),
        (4, {"events": [["melted", 1, -1]]}, r"run\.jsonl:4: .*'melted' is missing"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path, number, change, message):
    """The file and, where there is one, the line are named."""
    path = tmp_path / "run.jsonl"
    save(tiny_trace(), path)
    lines = path.read_text().splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | change)
    path.write_text("\n".join(lines))
    with pytest.raises(TraceError, match=message):
        load(path)


def test_files_that_cannot_be_read(tmp_path):
    """No file, another suffix, no zip: each is one line."""
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        load(tmp_path / "none.npz")
    with pytest.raises(TraceError, match=r"ends in \.npz or \.jsonl"):
        load(tmp_path / "run.csv")
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    with pytest.raises(TraceError, match="no npz file"):
        load(tmp_path / "bad.npz")
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(TraceError, match=r"bad\.jsonl:1"):
        load(tmp_path / "bad.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(TraceError, match="it is empty"):
        load(tmp_path / "empty.jsonl")


def test_contents_without_tokens_are_compared_too():
    """A trace's content is arrays of int64, whatever named it."""
    content = tiny_trace().requests[0].content
    assert isinstance(content, Content)
    assert content.tokens.dtype == np.int64
