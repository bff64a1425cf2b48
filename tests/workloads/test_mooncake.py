from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError, TraceError
from sim.keys import ChunkKeys
from sim.replay import replay
from sim.request import Request
from workloads.mooncake import Mooncake

SAMPLE = Path(__file__).parent.parent / "data" / "mooncake_sample.jsonl"
Write = Callable[..., Path]


@pytest.fixture
def trace(tmp_path: Path) -> Write:
    """Writes a trace: rows, or lines of text, into one file."""

    def write(*rows: dict[str, Any] | str) -> Path:
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
        return path

    return write


def row(timestamp: Any = 0, input_length: Any = 10, output_length: Any = 1, *ids: Any) -> Any:
    return {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": list(ids) or [0],
    }


def fields(workload: Mooncake) -> list[tuple[Any, ...]]:
    return [
        (r.request_id, r.arrival_time, r.num_prompt_tokens, r.max_tokens, [*r.keys.ids])
        for r in workload
        if isinstance(r.keys, ChunkKeys)
    ]


def refusal(path: Path, **arguments: Any) -> str:
    with pytest.raises(TraceError) as refused:
        Mooncake(path, **arguments)
    message = str(refused.value)
    assert message.startswith(f"{path}:")
    assert "\n" not in message
    return message.removeprefix(f"{path}:")


def hits(path: Path, **arguments: Any) -> list[int]:
    """Hit blocks of each request in an ample cache."""
    workload = Mooncake(path, **arguments)
    manager = ReferenceBlockManager(1000, workload.block_size)
    return [replay(manager, [request]).hit_blocks for request in workload]


def test_a_row_becomes_a_request() -> None:
    """Milliseconds become seconds, ids become keys; row 2 has (1536 + 600) // 512 = 4 blocks."""
    workload = Mooncake(SAMPLE)
    assert len(workload) == 6
    assert workload.block_size == 512
    assert workload.notes == ()
    assert fields(workload)[:3] == [
        (0, 0.0, 1100, 40, [0, 1, 2]),
        (1, 0.0, 700, 1, [0, 3]),
        (2, 3.0, 1536, 600, [0, 1, 4]),
    ]
    request = list(workload)[2]
    assert len(request.keys) == 4
    assert [request.keys[i] for i in range(3)] == [0 << 24, 1 << 24 | 1, 4 << 24 | 2]
    assert request.keys[3] == -3 << 24 | 3


def test_every_iteration_makes_fresh_requests() -> None:
    """A run's marks on the requests of one iteration are not seen by the next."""
    workload = Mooncake(SAMPLE)
    for request in workload:
        request.num_computed_tokens = 99
    assert all(request.num_computed_tokens == 0 for request in workload)
    assert all(type(r.request_id) is int and type(r.arrival_time) is float for r in workload)


def test_keys_at_any_block_size_share_what_the_ids_share() -> None:
    """Rows 0 and 3 are equal prompts: at 16 tokens 1088 = 68 * 16 hit, at 512 only 1024."""
    assert hits(SAMPLE) == [0, 1, 2, 2, 0, 3]
    assert hits(SAMPLE, block_size=16) == [0, 32, 64, 68, 0, 96]
    assert hits(SAMPLE, block_size=1024) == [0, 0, 1, 1, 0, 1]


def test_the_number_of_ids_is_checked(trace: Write) -> None:
    """Case K1: ceil(input_length / 512) ids, else refused with the line and the right count."""
    good = [(512, 1), (513, 2), (1024, 2), (1025, 3)]
    wrong = [(20, 2, 1), (1024, 3, 2), (1024, 1, 2), (600, 1, 2)]
    ids = [0, 1, 2]
    assert len(Mooncake(trace(*(row(0, n, 1, *ids[:k]) for n, k in good)))) == 4
    message = refusal(trace(*(row(0, n, 1, *ids[:k]) for n, k, _ in wrong)))
    for line, (n, k, expected) in enumerate(wrong, start=1):
        assert f"line {line}: hash_ids has {k} ids; an input_length of {n} needs {expected}" in (
            message
        )
    assert "trace_block_size = 512" in message


def test_the_trace_block_size_can_be_set(trace: Write) -> None:
    """Case K1: 20 tokens and 2 ids are right where an id stands for 15 tokens."""
    assert len(Mooncake(trace(row(0, 20, 1, 0, 1)), trace_block_size=15)) == 1


def test_the_origin_of_the_clock_does_not_matter(trace: Write) -> None:
    """Case K3: epoch milliseconds give the same arrivals as relative ones."""
    for origin in (0, 1_790_000_000_000):
        path = trace(*(row(origin + t) for t in (0, 100, 250)))
        assert [r.arrival_time for r in Mooncake(path)] == [0.0, 0.1, 0.25]


def test_two_origins_in_one_file_are_refused(trace: Write) -> None:
    """Case K3: a file that mixes relative and epoch times is refused."""
    message = refusal(trace(row(5), row(1_790_000_000_000), row(7)))
    assert message.startswith("2: timestamp 1790000000000 is more than ten years after 5 in line 1")


def test_all_bad_rows_are_named_at_once(trace: Write) -> None:
    """Case K4: lines 2 and 4 and their fields are named; lenient runs the other three."""
    second = row(10)
    del second["timestamp"]
    path = trace(row(0), second, row(20), row(30, "abc"), row(40))
    message = refusal(path)
    assert message.startswith("2: line 2: timestamp is missing; line 4: input_length is 'abc'")
    assert "set lenient" in message

    workload = Mooncake(path, lenient=True)
    assert [r.request_id for r in workload] == [0, 2, 4]
    (note,) = workload.notes
    assert note.startswith("2 of 5 rows dropped: line 2: timestamp is missing; line 4:")


def test_many_bad_rows_are_counted(trace: Write) -> None:
    message = refusal(trace(*(row(-1) for _ in range(12))))
    assert "line 5: " in message
    assert "line 6: " not in message
    assert "+7 more" in message


@pytest.mark.parametrize("text", ["{", "[1]", "3", '{"timestamp": NaN}', "null"])
def test_a_line_that_is_no_object_is_a_bad_row(trace: Write, text: str) -> None:
    """Case K4: malformed JSON is refused by line; lenient drops it like any other bad row."""
    path = trace(row(0), text, row(1))
    assert refusal(path).startswith("2: line 2: ")
    assert [r.request_id for r in Mooncake(path, lenient=True)] == [0, 2]


def test_a_lenient_reader_does_not_accept_nothing(trace: Write) -> None:
    assert "no row is left" in refusal(trace(row(-1), row(-2)), lenient=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timestamp", "-1"),
        ("timestamp", "NaN"),
        ("timestamp", "Infinity"),
        ("timestamp", "1e400"),
        ("timestamp", "1" + "0" * 400),
        ("timestamp", '"0"'),
        ("timestamp", "true"),
        ("timestamp", "null"),
        ("input_length", "-5"),
        ("input_length", "3.7"),
        ("input_length", "1e400"),
        ("input_length", "true"),
        ("input_length", "0"),
        ("output_length", "-1"),
        ("output_length", "0"),
        ("output_length", '"1"'),
        ("output_length", "1e15"),
        ("output_length", "1" + "0" * 400),
        ("hash_ids", "7"),
        ("hash_ids", "[1.5]"),
        ("hash_ids", "[-1]"),
        ("hash_ids", "[true]"),
        ("hash_ids", '["a"]'),
        ("hash_ids", "[null]"),
    ],
)
def test_values_that_mean_nothing_are_refused(trace: Write, field: str, value: str) -> None:
    """Cases K5 and G3: each is refused with its line, its field and the rule."""
    bad = json.dumps(row() | {field: "?"}).replace('"?"', value)
    message = refusal(trace(row(), "", bad))
    assert message.startswith("3: line 3: ")
    assert field in message or "is no number" in message
    assert len(message) < 300


def test_whole_floats_are_whole_numbers(trace: Write) -> None:
    """Case K5: 3.0 is read as 3, and timestamps may have fractions."""
    path = trace(row(0.5, 3.0, 2.0), row(1.5))
    assert fields(Mooncake(path)) == [(0, 0.0, 3, 2, [0]), (1, 0.001, 10, 1, [0])]
    assert all(type(r.num_prompt_tokens) is int for r in Mooncake(path))


def test_empty_prompts_and_answers_are_refused_or_dropped(trace: Write) -> None:
    """Case G3: 0 input tokens and 0 output tokens are refused; lenient runs the one good row."""
    empty = row(0, 0) | {"hash_ids": []}
    path = trace(empty, row(0, 4), empty, row(0, 4, 0))
    message = refusal(path)
    for line in (1, 3, 4):
        assert f"line {line}: " in message
    workload = Mooncake(path, lenient=True)
    assert [r.request_id for r in workload] == [1]
    assert "3 of 4 rows dropped" in workload.notes[0]


def test_rows_out_of_order_are_sorted_and_noted(trace: Write) -> None:
    """Case K6: a 30, b 10, c 20, d 10 arrive as b, d, c, a, with one note; ids move along."""
    path = trace(row(30, 1, 1, 0), row(10, 2, 1, 1), row(20, 600, 1, 2, 3), row(10, 4, 1, 4))
    workload = Mooncake(path)
    assert fields(workload) == [
        (1, 0.0, 2, 1, [1]),
        (3, 0.0, 4, 1, [4]),
        (2, 0.01, 600, 1, [2, 3]),
        (0, 0.02, 1, 1, [0]),
    ]
    (note,) = workload.notes
    assert note.startswith("3 of 4 rows were earlier than a row before them")
    assert workload.hash_ids(2) == [2, 3]


def test_many_ties_keep_the_order_of_the_file(trace: Write) -> None:
    """Case K6: 200 rows at two times, late ones first, come out in two runs in file order."""
    path = trace(*(row(n % 2 * 5) for n in range(200, 0, -1)))
    expected = [*range(0, 200, 2), *range(1, 200, 2)]
    assert [r.request_id for r in Mooncake(path)] == expected


def test_the_form_of_the_text_does_not_matter(tmp_path: Path) -> None:
    """Case K7: CRLF, BOM, blank lines and no final newline give the same requests."""
    text = SAMPLE.read_bytes()
    path = tmp_path / "t.jsonl"
    for variant in (
        text.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + text,
        text.replace(b"\n", b"\n\n") + b"\r\n",
        text.rstrip(),
    ):
        path.write_bytes(variant)
        assert fields(Mooncake(path)) == fields(Mooncake(SAMPLE))


@pytest.mark.parametrize(
    ("scale", "arrivals"), [(2, [0.0, 0.02, 0.06]), (0.5, [0.0, 0.005, 0.015]), (0, [0.0] * 3)]
)
def test_time_scale_stretches_intervals(trace: Write, scale: float, arrivals: list[float]) -> None:
    """Case K9: arrivals are (t - t0) * scale; 0 makes all arrive at once."""
    path = trace(row(1000), row(1010), row(1030))
    assert [r.arrival_time for r in Mooncake(path, time_scale=scale)] == arrivals


@pytest.mark.parametrize("largest", [2**63, 2**64])
def test_huge_ids_stay_different(trace: Write, largest: int) -> None:
    """Case K10: ids that a float or 64 bits would merge do not hit each other, only themselves."""
    huge = [9007199254740992, 9007199254740993, largest]
    once = [row(0, 513, 1, i, n) for n, i in enumerate(huge)]
    assert hits(trace(*once)) == [0, 0, 0]
    again = [row(0, 513, 1, i, n + 10) for n, i in enumerate(huge)]
    path = trace(*once, *again)
    assert hits(path) == [0, 0, 0, 1, 1, 1]
    workload = Mooncake(path)
    assert [workload.hash_ids(i)[0] for i in range(6)] == huge * 2


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (row(0, 600, 1, 2, 1), "another parent"),
        (row(0, 10, 1, 1), "another position"),
    ],
)
def test_content_ids_are_refused(trace: Write, second: Any, what: str) -> None:
    """An id after two different parents, or at two positions, does not name its prefix."""
    path = trace(row(0, 600, 1, 0, 1), "", second)
    for lenient in (False, True):
        message = refusal(path, lenient=lenient)
        assert message.startswith("3: block id 1 "), what
        assert "line 1; ids must be prefix hashes" in message
        assert "chain" in message


def test_a_limit_reads_only_the_first_rows(trace: Write) -> None:
    """Rows behind the limit are not even parsed; blank lines do not count."""
    path = trace(row(0), "", row(1), "broken")
    assert len(Mooncake(path, limit=2)) == 2
    assert len(Mooncake(SAMPLE, limit=100)) == 6


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("block_size", 0),
        ("block_size", 16.5),
        ("block_size", True),
        ("trace_block_size", "512"),
        ("limit", 0),
        ("time_scale", -1),
        ("time_scale", float("nan")),
        ("time_scale", "1e-5"),
    ],
)
def test_arguments_out_of_range_are_named(argument: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^Mooncake: {argument} is {value!r}; it must be "):
        Mooncake(SAMPLE, **{argument: value})


def test_a_missing_trace_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVSIM_DATA", raising=False)
    with pytest.raises(TraceError, match="KVSIM_DATA"):
        Mooncake("no/such.jsonl")


@pytest.mark.parametrize(
    ("name", "num_requests", "num_blocks", "num_unique", "mean_input", "mean_output", "span"),
    [
        ("conversation", 12_031, 288_500, 182_790, 12_035.1, 342.6, 3536.999),
        ("synthetic", 3_993, 121_877, 43_924, 15_325.5, 149.1, 1022.025),
    ],
)
def test_public_traces_have_their_published_statistics(
    kvsim_data: Path,
    name: str,
    num_requests: int,
    num_blocks: int,
    num_unique: int,
    mean_input: float,
    mean_output: float,
    span: float,
) -> None:
    """Requests, block ids, distinct ids, mean lengths and span of the two FAST'25 traces."""
    workload = Mooncake(kvsim_data / "mooncake" / f"{name}_trace.jsonl.xz")
    requests: list[Request] = list(workload)
    ids = [i for r in requests if isinstance(r.keys, ChunkKeys) for i in r.keys.ids]
    assert len(workload) == len(requests) == num_requests
    assert (len(ids), len(set(ids))) == (num_blocks, num_unique)
    mean = sum(r.num_prompt_tokens for r in requests) / num_requests
    assert mean == pytest.approx(mean_input, abs=0.05)
    mean = sum(r.max_tokens for r in requests) / num_requests
    assert mean == pytest.approx(mean_output, abs=0.05)
    assert requests[-1].arrival_time == pytest.approx(span)
    assert workload.notes == ()
    assert [r.request_id for r in requests] == list(range(num_requests))


def test_other_files_of_this_shape(trace: Write) -> None:
    """Seconds, no id for the partial block, ids that count anew in each session."""
    rows = [
        {"timestamp": 5, "input_length": 1100, "output_length": 2, "hash_ids": [1, 2], "chat": "a"},
        {"timestamp": 7, "input_length": 1100, "output_length": 2, "hash_ids": [1, 2], "chat": "b"},
        {"timestamp": 9, "input_length": 1600, "output_length": 2, "hash_ids": [1, 2, 3],
         "chat": "a"},
    ]  # fmt: skip
    path = trace(*rows)
    options: dict[str, Any] = {"time_unit": "s", "tail": "floor", "session_field": "chat"}
    local = Mooncake(path, id_scope="session", **options)
    assert [(r.arrival_time, r.session) for r in local] == [(0, "a"), (2, "b"), (4, "a")]
    assert hits(path, id_scope="session", **options) == [0, 0, 2]
    assert hits(path, **options) == [0, 2, 2]
    with pytest.raises(ConfigError, match="name the session_field too"):
        Mooncake(path, id_scope="session")
    with pytest.raises(ConfigError, match="tail is 'round'; it must be one of ceil, floor"):
        Mooncake(path, tail="round")  # type: ignore[arg-type]
