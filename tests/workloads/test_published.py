"""The published numbers of the public traces, read by our readers (KVSIM_DATA)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.detect import detect
from workloads.dynamo import Dynamo
from workloads.lengths import Lengths
from workloads.mooncake import Mooncake
from workloads.objects import Objects
from workloads.profile import profile
from workloads.ragpulse import RagPulse
from workloads.text_log import TextLog
from workloads.units import units
from workloads.weka import Weka

OLTP = {1000: 32.83, 2000: 42.47, 5000: 53.65, 10_000: 60.70, 15_000: 64.63}
WEB07 = {500: 34_693, 1000: 38_368, 2000: 42_245, 5000: 47_702, 10_000: 52_519}
ORM_BUSY = {500: 3_464_206, 1000: 3_938_943, 2000: 4_069_541, 5000: 4_273_062, 10_000: 4_474_313}


def trace(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        pytest.skip(f"no {name} in {folder}")
    return path


def lru_hits(prompts: Iterable[Any], num_blocks: int, *, head_first: bool = True) -> int:
    """Blocks of cached prefixes in an LRU over single blocks, touched head or tail first."""
    cache: OrderedDict[Hashable, None] = OrderedDict()
    num_hits = 0
    for blocks in prompts:
        num_hits += next((i for i, b in enumerate(blocks) if b not in cache), len(blocks))
        for block in blocks:
            if block in cache:
                cache.move_to_end(block)
            else:
                if len(cache) >= num_blocks:
                    cache.popitem(last=False)
                cache[block] = None
        if not head_first:
            for block in reversed(blocks):
                cache.move_to_end(block)
    return num_hits


def object_hits(objects: Objects, num_objects: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    move_to_end, num_hits = cache.move_to_end, 0
    for i in objects.ids.tolist():
        if i in cache:
            num_hits += 1
            move_to_end(i)
        else:
            cache[i] = None
            if len(cache) > num_objects:
                cache.popitem(last=False)
    return num_hits


@pytest.mark.parametrize(
    ("name", "unique", "rates", "most_at_once", "fully"),
    [
        ("conversation", 182_790, (0.3664, 0.3736, 0.3843), 28, 118),
        ("synthetic", 43_924, (0.6396, 0.6512, 0.4232), 2, 213),
    ],
)
def test_mooncake_without_limit(
    kvsim_data: Path,
    name: str,
    unique: int,
    rates: tuple[float, float, float],
    most_at_once: int,
    fully: int,
) -> None:
    """Infinite hit rates by ids, by tokens and as the mean of requests; 118 are fully cached."""
    started = time.process_time()
    workload = Mooncake(trace(kvsim_data, f"mooncake/{name}_trace.jsonl.xz"))
    assert time.process_time() - started < 1  # s
    found = profile(workload)
    assert found.sharing is not None
    sharing = found.sharing
    assert sharing.unique == unique
    assert sharing.hit_units == sharing.units - unique
    assert found.most_at_once == most_at_once
    assert sharing.roots == (1 if name == "conversation" else 2211)
    assert sharing.requests_fully_cached == fully
    shown = (sharing.unit_hit_rate, sharing.token_hit_rate, sharing.request_hit_rate)
    assert shown == pytest.approx(rates, abs=5e-5)
    assert sum(sharing.depth.values()) == found.requests
    assert sum(sharing.reuse_s.values()) == sharing.hit_units


@pytest.mark.parametrize(
    ("name", "head_first", "hits"),
    [
        ("conversation", True, (12_831, 60_921, 93_967, 102_290, 104_924)),
        ("conversation", False, (12_847, 61_046, 93_978, 102_290, 104_924)),
        ("synthetic", True, (10_050, 51_614, 76_077, 77_953, 77_953)),
        ("synthetic", False, (10_252, 51_669, 76_077, 77_953, 77_953)),
    ],
)
def test_mooncake_lru(kvsim_data: Path, name: str, head_first: bool, hits: tuple[int, ...]) -> None:
    """LRU at 1k, 10k, 30k, 50k and 100k blocks, touched head or tail first."""
    workload = Mooncake(trace(kvsim_data, f"mooncake/{name}_trace.jsonl.xz"))
    prompts = [list(units(request).names) for request in workload]
    sizes = (1000, 10_000, 30_000, 50_000, 100_000)
    assert tuple(lru_hits(prompts, size, head_first=head_first) for size in sizes) == hits


@pytest.fixture(scope="module")
def weka(kvsim_data: Path) -> Weka:
    started = time.process_time()
    workload = Weka(trace(kvsim_data, "weka_claude_code/sessions_496.jsonl.xz"))
    assert time.process_time() - started < 15  # s, for 67 M ids
    return workload


@pytest.mark.slow
def test_weka_without_limit(weka: Weka) -> None:
    """67,413,185 ids, 2,453,991 different, .9636 hit; 126,800 tokens asked and 441 answered."""
    assert detect(weka.path) == "weka"
    found = profile(weka)
    assert found.sharing is not None
    assert (found.sharing.units, found.sharing.unique) == (67_413_185, 2_453_991)
    assert found.sharing.unit_hit_rate == pytest.approx(0.9636, abs=5e-5)
    assert found.prompt.mean == pytest.approx(126_800, abs=0.5)
    assert found.answer.mean == pytest.approx(441, abs=0.5)
    assert (found.requests, found.sessions) == (34_034, 496)


@pytest.mark.slow
def test_weka_hints(weka: Weka) -> None:
    """api_time is missing in 9 % of the requests; 13 sessions have 50 sub-agents."""
    requests = list(weka)
    missing = sum((request.hints or {})["api_s"] is None for request in requests)
    assert missing / len(requests) == pytest.approx(0.09, abs=0.005)
    agents = {(r.session, (r.hints or {})["agent"]) for r in requests if (r.hints or {})["agent"]}
    assert len({session for session, _ in agents}) == 13
    assert len(agents) == 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("session_gap", "hits"),
    [
        (0.0, (190_681, 5_961_164, 12_179_706, 23_192_866, 36_460_752, 57_204_496, 64_690_460)),
        (
            600.0,
            (1_367_222, 47_461_050, 63_848_201, 64_577_711, 64_874_571, 64_951_861, 64_959_194),
        ),
    ],
)
def test_weka_lru(weka: Weka, session_gap: float, hits: tuple[int, ...]) -> None:
    """LRU at 1k, 10k, 30k, 50k, 100k, 300k and 1M blocks, touched head first; both arrivals."""
    arrivals = weka._arrivals + session_gap * weka._columns[0]
    order = np.lexsort((weka._rows, arrivals))  # ties keep the order of the file
    bounds = list(zip(weka._starts[order].tolist(), weka._stops[order].tolist(), strict=True))
    ids = np.frombuffer(weka._ids.values, dtype=np.uint32)
    sizes = (1000, 10_000, 30_000, 50_000, 100_000, 300_000, 1_000_000)
    assert tuple(many_lru_hits(ids, bounds, size) for size in sizes) == hits


def many_lru_hits(ids: Any, bounds: list[tuple[int, int]], num_blocks: int) -> int:
    """As `lru_hits`, head first, on arrays: a log of all uses, of which the last ones are alive."""
    log, place = np.empty(len(ids), ids.dtype), np.full(int(ids.max()) + 1, -1, np.int64)
    end = tail = alive = num_hits = 0
    for start, stop in bounds:
        run, num = ids[start:stop], stop - start
        cached = place[run] >= 0
        num_hits += num if cached.all() else int(np.argmin(cached))
        alive += num - int(np.count_nonzero(cached))
        log[end : end + num] = run
        place[run] = np.arange(end, end + num)
        end += num
        while alive > num_blocks:
            oldest = log[tail : min(end, tail + max(4096, 2 * (alive - num_blocks)))]
            still = place[oldest] == np.arange(tail, tail + len(oldest))
            last = int(np.searchsorted(np.cumsum(still), alive - num_blocks))
            gone = oldest[: last + 1][still[: last + 1]]
            place[gone] = -1
            alive -= len(gone)
            tail += min(last + 1, len(oldest))
    return num_hits


def test_ragpulse(kvsim_data: Path) -> None:
    """71,583 items of 21,857 contents; .1796 hit as prefixes, .3153 of tokens, .6945 anywhere."""
    workload = RagPulse(trace(kvsim_data, "ragpulse/0_trace.jsonl.xz"))
    requests = list(workload)
    assert len(workload) == 7106
    assert len({request.session for request in requests}) == 3990
    assert (len(workload.items), len(set(workload.items))) == (71_583, 21_857)
    found = profile(workload).sharing
    assert found is not None
    assert found.units == 71_583
    assert found.unit_hit_rate == pytest.approx(0.1796, abs=5e-5)
    named = sum(units(request).ends[-1] for request in requests)
    assert found.hit_tokens / named == pytest.approx(0.3153, abs=5e-5)
    short = {request.num_prompt_tokens - units(request).ends[-1] for request in requests}
    assert (min(short), max(short)) == (6, 12)
    # The same content anywhere in an earlier prompt.
    seen: set[int] = set()
    anywhere = start = 0
    for request in requests:
        items = workload.items[start : start + len(units(request).names)]
        start += len(items)
        anywhere += sum(item in seen for item in items)
        seen.update(items)
    assert anywhere / len(workload.items) == pytest.approx(0.6945, abs=5e-5)


def test_ragpulse_restarts_its_clock(kvsim_data: Path) -> None:
    """Row 3,800 goes from 604,453 s back to 0: a week is added, and nothing is sorted."""
    workload = RagPulse(trace(kvsim_data, "ragpulse/0_trace.jsonl.xz"))
    requests = list(workload)
    assert [request.request_id for request in requests] == list(range(7106))
    first = 82.0
    assert requests[3799].arrival_time == 604_453 - first
    assert requests[3800].arrival_time == 604_800 - first
    assert len(workload.inputs) == 6
    assert any("restarts 1 time(s)" in note for note in workload.notes)


def test_azure_2023(kvsim_data: Path) -> None:
    """19,366 requests in 3,502 s, means 1,154.7 and 211.1 tokens, gap CV 1.09; no content."""
    path = trace(kvsim_data, "azure_2023/AzureLLMInferenceTrace_conv.csv.xz")
    assert detect(path) == "lengths"
    workload = Lengths(path)
    found = profile(workload)
    assert found.requests == 19_366
    assert found.span_s == pytest.approx(3501.721937, abs=1e-6)
    assert (found.prompt.p50, found.prompt.max) == (1020, 14_050)
    assert found.prompt.mean == pytest.approx(1154.7, abs=0.05)
    assert found.answer.mean == pytest.approx(211.1, abs=0.05)
    assert found.gap_cv == pytest.approx(1.09, abs=0.005)
    assert found.sharing is None
    assert not workload.has_content
    # All seven digits count: row 1 is 4.3144890 s after row 0.
    assert list(workload)[1].arrival_time == pytest.approx(50.9951690 - 46.6805900, abs=1e-9)


def test_miniswe(kvsim_data: Path) -> None:
    """Blocks of 64 characters: 150,968, 9,493 different, .9371 hit, .9362 within sessions."""
    path = trace(kvsim_data, "lmcache_agent/miniswe_20sessions.jsonl.xz")
    assert detect(path) == "text_log"
    workload = TextLog(path, 64, tokenizer="characters")
    requests = list(workload)
    assert len(requests) == 402
    assert len({request.session for request in requests}) == 20
    assert requests[-1].arrival_time == pytest.approx(552, abs=0.5)
    found = profile(workload).sharing
    assert found is not None
    assert (found.units, found.unique) == (150_968, 9_493)
    assert found.unit_hit_rate == pytest.approx(0.9371, abs=5e-5)
    seen: set[tuple[Hashable, Hashable]] = set()
    num_hits = 0
    for request in requests:
        blocks = [(request.session, name) for name in units(request).names]
        num_hits += next((i for i, b in enumerate(blocks) if b not in seen), len(blocks))
        seen.update(blocks)
    assert num_hits / found.units == pytest.approx(0.9362, abs=5e-5)


def test_miniswe_is_out_of_order(kvsim_data: Path) -> None:
    """Rows stand where they were finished: they are sorted, and a note says so."""
    workload = TextLog(trace(kvsim_data, "lmcache_agent/miniswe_20sessions.jsonl.xz"))
    assert any("rows were earlier than a row before them" in note for note in workload.notes)
    arrivals = [request.arrival_time for request in workload]
    assert arrivals == sorted(arrivals)
    latest: dict[Hashable, float] = {}
    late = 0  # behind a later one of its session, in the order of the file
    for request in sorted(workload, key=lambda r: r.request_id):
        late += request.arrival_time < latest.get(request.session, 0.0)
        latest[request.session] = request.arrival_time
    assert late == 115


def test_dynamo(kvsim_data: Path) -> None:
    """17 requests in 61 events, 4,163 ids, 1,183 different, .7158 hit; measured .756 of tokens."""
    path = trace(kvsim_data, "dynamo/pi_request_trace.jsonl.gz")
    assert detect(path) == "dynamo"
    workload = Dynamo(path)
    found = profile(workload)
    assert found.sharing is not None
    assert found.requests == 17
    assert (found.sharing.units, found.sharing.unique) == (4163, 1183)
    assert found.sharing.unit_hit_rate == pytest.approx(0.7158, abs=5e-5)
    cached = sum((request.hints or {})["cached_tokens"] for request in workload)
    assert cached / found.prompt.total == pytest.approx(0.756, abs=5e-4)


@pytest.mark.slow
def test_oltp(kvsim_data: Path) -> None:
    """ARC's OLTP: 914,145 accesses to 186,880 pages; the LRU hit rates of FAST'03."""
    path = trace(kvsim_data, "object_cache/arc_OLTP.lis.xz")
    assert detect(path) == "objects"
    workload = Objects(path)
    assert (len(workload), int(workload.ids.max()) + 1) == (914_145, 186_880)
    for size, rate in OLTP.items():
        assert round(100 * object_hits(workload, size) / len(workload), 2) == rate


def test_web07(kvsim_data: Path) -> None:
    """cache2k's web07: big-endian 32-bit keys, 76,118 of them."""
    workload = Objects(trace(kvsim_data, "object_cache/cache2k_web07.trace.xz"))
    assert len(workload) == 76_118
    assert {size: object_hits(workload, size) for size in WEB07} == WEB07


@pytest.mark.slow
def test_orm_busy(kvsim_data: Path) -> None:
    """cache2k's orm-busy: 5,000,000 accesses."""
    workload = Objects(trace(kvsim_data, "object_cache/cache2k_orm-busy.trace.xz"))
    assert len(workload) == 5_000_000
    assert {size: object_hits(workload, size) for size in ORM_BUSY} == ORM_BUSY


@pytest.mark.parametrize(("name", "num"), [("block_traces_1", 999), ("kv_traces_1", 99)])
def test_cachelib(kvsim_data: Path, name: str, num: int) -> None:
    """CacheLib's samples: rows of CSV with a key, times in seconds."""
    path = trace(kvsim_data, f"object_cache/cachelib_{name}.csv.xz")
    workload = Objects(path)
    assert detect(path) == "objects"
    assert len(workload) == num
    arrivals = np.array([request.arrival_time for request in workload])
    assert arrivals[0] == 0
    assert (np.diff(arrivals) >= 0).all()
