from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies import POLICIES
from policies.reference import ReferenceBlockManager
from policies.vllm import VLLMBlockManager
from sim.cache import BlockManager
from sim.cli import main
from sim.errors import ConfigError, KvsimError
from sim.keys import TokenKeys
from sim.replay import replay
from sim.request import Request
from sim.spec.build import build
from sim.spec.names import find
from sim.spec.place import Place
from sim.state.saved_state import StateFile
from sim.studies.study import Study, run
from workloads.shared_prefix import SharedPrefix

SIZE = {"num_blocks": 300, "block_size": 16}
ONLINE = sorted(n for n, path in POLICIES.items() if not find("policy", path, Place()).is_offline)
REQUESTS = {"use": "shared_prefix", "num_requests": 300, "num_prefixes": 20}


@pytest.fixture(autouse=True)
def _shadow() -> None:
    """Not here: the shadow of a manager knows nothing of what it held in another life."""


def made(spec: Any) -> BlockManager:
    manager: BlockManager = build("manager", spec, known=SIZE)
    return manager


def requests() -> list[Request]:
    """Traffic that evicts, with all hints that a policy may need."""
    found = list(SharedPrefix(num_requests=400, num_prefixes=20, seed=3))
    for i, request in enumerate(found):
        request.session = i % 7
        request.hints = {
            "priority": (10, 35, 80)[i % 3],
            "type": "text",
            "turn": i % 4,
            "tool": (None, "search")[i % 2],
            "steps_to_execution": i % 5,
        }
    return found


def after(manager: BlockManager, rest: list[Request]) -> tuple[Any, ...]:
    """What *manager* decides of *rest*, and what it holds then."""
    hits: list[int] = []
    before = manager.num_evicted_blocks
    replay(manager, rest, hits=hits)
    return hits, manager.num_evicted_blocks - before, list(manager.free_blocks())


@pytest.mark.parametrize(
    "spec",
    [
        *({"use": "vllm", "eviction": name} for name in ONLINE),
        *({"use": "reference", "eviction": name} for name in ("lru", "arc", "random", "sieve")),
        {"use": "vllm", "free_order": "unhashed_first", "victims": "leaf"},
        {"use": "radix"},
        {"use": "radix", "strategy": "slru"},
        {"use": "radix", "eviction": "s3fifo"},
        {"use": "uncached"},
    ],
    ids=str,
)
def test_a_restored_manager_goes_on(spec: Any, tmp_path: Path) -> None:
    """It hits, evicts and orders as the one whose state was kept; that one is undisturbed."""
    everyone = requests()
    straight = made(spec)
    replay(straight, everyone[:200])
    kept = made(spec)
    state = StateFile(tmp_path / "state", kept)
    replay(kept, everyone[:200])
    state.save()
    restored = made(spec)
    StateFile(tmp_path / "state", restored).restore()
    assert restored.num_evicted_blocks == 0
    expected = after(straight, everyone[200:])
    assert after(restored, everyone[200:]) == expected
    assert after(kept, everyone[200:]) == expected
    if spec["use"] != "uncached":
        assert expected[1] > 0
        assert after(made(spec), everyone[200:]) != expected


def test_contents_are_kept_whatever_names_them(tmp_path: Path) -> None:
    """Hashed tokens, with salt and LoRA, and the keys of a trace's ids."""
    both: list[Callable[[], BlockManager]] = [
        lambda: VLLMBlockManager(40, 4),
        lambda: ReferenceBlockManager(40, 4),
    ]
    for make in both:
        manager = make()
        state = StateFile(tmp_path / "state", manager)
        for i, salt in enumerate(("a", None)):
            keys = TokenKeys(range(20), 4, salt=salt, lora=("one", "path"))
            manager.serve(Request(i, keys, 20, 1), 20)
        state.save()
        restored = make()
        StateFile(tmp_path / "state", restored).restore()
        for salt, num_hit in (("a", 16), (None, 16), ("b", 0)):
            keys = TokenKeys(range(20), 4, salt=salt, lora=("one", "path"))
            found = restored.get_computed_blocks(Request(9, keys, 20, 1))
            assert found.num_tokens == num_hit


def test_long_chains_are_no_matter(tmp_path: Path) -> None:
    """A free queue of 20,000 spans and a prompt's chain of as many nodes are kept."""
    manager = ReferenceBlockManager(20_000, 1)
    state = StateFile(tmp_path / "state", manager)
    keys = TokenKeys(range(19_000), 1, hash_function="sha256")
    manager.serve(Request(0, keys, 19_000, 1), 19_000)
    state.save()
    restored = ReferenceBlockManager(20_000, 1)
    StateFile(tmp_path / "state", restored).restore()
    assert list(restored.free_blocks()) == list(manager.free_blocks())


def written(path: Path, spec: Any = "vllm") -> Path:
    manager = made(spec)
    state = StateFile(path, manager)
    replay(manager, requests()[:50])
    state.save()
    return path


@pytest.mark.parametrize(
    ("spec", "size", "told"),
    [
        ("vllm", {"num_blocks": 400}, "num_blocks was 299, here it is 399"),
        ("vllm", {"block_size": 32}, "block_size was 16, here it is 32"),
        ("reference", {}, "class was 'policies.vllm:VLLMBlockManager', here it is 'policies.ref"),
        ({"use": "vllm", "eviction": "sieve"}, {}, "policy.class was 'policies.lru:LRU', here"),
        (
            {"use": "vllm", "free_order": "unhashed_first"},
            {},
            "free_order was 'tail', here it is 'unhashed_first'",
        ),
    ],
    ids=str,
)
def test_another_manager_is_refused(spec: Any, size: Any, told: str, tmp_path: Path) -> None:
    """The error says what differs; the manager stays empty."""
    path = written(tmp_path / "state")
    other = build("manager", spec, known=SIZE | size)
    with pytest.raises(ConfigError, match="was saved of another manager") as caught:
        StateFile(path, other).restore()
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert other.num_cached_blocks == 0


@pytest.mark.parametrize(
    ("here", "null_block", "told"),
    [
        (301, True, "num_blocks was 300, here it is 301"),
        (None, True, "num_blocks was 300, here it is 301"),  # a run is not told how it was written
        (300, False, "num_blocks without the null block was 299, here it is 300"),
    ],
)
def test_sizes_are_told_as_they_were_written(
    here: int | None, null_block: bool, told: str, tmp_path: Path
) -> None:
    """With the null block, which no manager counts; without it only where nothing else differs."""
    StateFile(tmp_path / "state", made("vllm"), 300).save()
    other = {"use": "vllm", "num_blocks": 300 + null_block, "null_block": null_block}
    with pytest.raises(ConfigError, match=told):
        StateFile(tmp_path / "state", made(other), here).restore()


def test_parameters_of_the_policy_count(tmp_path: Path) -> None:
    path = written(tmp_path / "state", {"use": "vllm", "eviction": {"use": "ttl", "ttl_s": 60}})
    other = made({"use": "vllm", "eviction": {"use": "ttl", "ttl_s": 30}})
    with pytest.raises(ConfigError, match=r"ttl_s was 60.0, here it is 30.0"):
        StateFile(path, other).restore()


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    """Missing, foreign, cut, altered, of another format or other code: one line each."""
    path = tmp_path / "state"

    def told() -> str:
        with pytest.raises(ConfigError) as caught:
            StateFile(path, made("vllm")).restore()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no such file; write one with kvsim replay --save-state" in told()
    path.write_text("{}")
    assert "is no saved state of kvsim" in told()
    path.write_bytes(b"\x93NUMPY\n\n")
    assert "is no saved state of kvsim" in told()
    good = written(path).read_bytes()
    for bad in (good[:-1], good[:-1] + b"x", good.partition(b"\n")[0]):
        path.write_bytes(bad)
        assert "is damaged" in told()
    line, _, body = good.partition(b"\n")
    for name, value, message in (
        ("kvsim_state", 2, "has format 2, this kvsim reads 1"),
        ("code", "0", "was saved by other code"),
    ):
        path.write_bytes(json.dumps(json.loads(line) | {name: value}).encode() + b"\n" + body)
        assert message in told()


def test_a_file_names_no_foreign_class(tmp_path: Path) -> None:
    """A state that asks for something outside kvsim and the policy's package builds nothing."""
    import hashlib
    import pickle
    import zlib

    path = written(tmp_path / "state")
    line = json.loads(path.read_bytes().partition(b"\n")[0])

    class Evil:
        def __reduce__(self) -> Any:
            return Path(tmp_path / "made").touch, ()

    for data in (pickle.dumps(Evil()), pickle.dumps([(("object", "pathlib", "Path"), b"")])):
        body = zlib.compress(data)
        about = line | {"sha256": hashlib.sha256(body).hexdigest()}
        path.write_bytes(json.dumps(about).encode() + b"\n" + body)
        with pytest.raises(ConfigError, match="cannot be restored"):
            StateFile(path, made("vllm")).restore()
    assert not (tmp_path / "made").exists()


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    """Offline policies at once, a manager in use, and a folder that is missing; old files stay."""
    with pytest.raises(ConfigError, match="Belady is shown the future"):
        StateFile(tmp_path / "state", made({"use": "vllm", "eviction": "belady"}))
    manager = VLLMBlockManager(40, 4)
    path = tmp_path / "state"
    path.write_text("earlier")
    request = Request(0, TokenKeys(range(20), 4), 20, 1)
    state = StateFile(path, manager)
    manager.allocate_slots(request, 20)
    with pytest.raises(ConfigError, match="requests hold blocks"):
        state.save()
    manager.free(request)
    manager.policy.odd = open(path)  # type: ignore[attr-defined]  # noqa: SIM115
    with pytest.raises(ConfigError, match=r"the state cannot be saved: .*TextIOWrapper"):
        state.save()
    manager.policy.odd.close()  # type: ignore[attr-defined]
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    assert path.read_text() == "earlier"
    with pytest.raises(KvsimError, match="cannot write the state: No such file"):
        StateFile(tmp_path / "no" / "state", VLLMBlockManager(40, 4)).save()


# In commands and configurations


def trace(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--save-state` after one trace, `--load-state` before the next: the hits of both in one."""
    rows = [
        {
            "timestamp": 1000 * i,
            "input_length": 1024,
            "output_length": 1,
            "hash_ids": [i % 3, 100 + i],
        }
        for i in range(1, 13)
    ]
    one = trace(tmp_path / "one.jsonl", rows[:6])
    two = trace(tmp_path / "two.jsonl", rows[6:])
    both = trace(tmp_path / "both.jsonl", rows)
    options = ["--format", "mooncake", "--num-blocks", "9", "--policy", "sieve", "--json"]
    state = str(tmp_path / "state")

    def counted(*arguments: str) -> int:
        assert main(["replay", *arguments, *options]) == 0
        return int(json.loads(capsys.readouterr().out)["hit_tokens"])

    first, cold = counted(one), counted(two)
    assert counted(one, "--save-state", state) == first
    assert counted(two, "--load-state", state) == counted(both) - first > cold
    assert main(["replay", two, *options[:4], "--load-state", state]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "policy.class was 'policies.sieve:Sieve'" in told


@pytest.mark.parametrize("mode", ["engine", "replay", "replay_with_answers"])
def test_a_run_begins_with_a_saved_state(mode: str, tmp_path: Path) -> None:
    """The same as serving what was served before; the file is an input of the run."""
    path = tmp_path / "state"
    manager = build("manager", "vllm", known={"num_blocks": 2000, "block_size": 16})
    state = StateFile(path, manager)
    from sim.state.warm_start import Before, warm_up

    warm_up(manager, Before(SharedPrefix(num_requests=300, num_prefixes=20)), decode=False)
    state.save()
    config: dict[str, Any] = {
        "mode": mode,
        "cache": {"num_blocks": 2000, "block_size": 16},
        "workload": {**REQUESTS, "seed": 5},
        "policies": {"lru": "vllm"},
    }
    saved = run({**config, "warm_start": {"use": "saved", "path": str(path)}})
    cold = run({**config, "bounds": False})
    assert saved.hit_rate > cold.hit_rate
    if mode == "replay":
        served = run({**config, "warm_start": {**REQUESTS, "seed": 0}})
        assert saved.hit_rate == served.hit_rate
    study = Study.load({**config, "warm_start": {"use": "saved", "path": str(path)}})
    assert Study.load(study.resolved()).units()[0].key == study.units()[0].key
    key = study.units()[0].key
    StateFile(path, made({"use": "vllm", "num_blocks": 2000})).save()
    assert Study.load(study.resolved()).units()[0].key != key


def test_other_policies_are_refused(tmp_path: Path) -> None:
    """One file is one manager's; the error names the policy that it is not of."""
    path = written(tmp_path / "state")
    config = {
        "mode": "replay",
        "cache": SIZE,
        "workload": REQUESTS,
        "policies": {"lru": "vllm", "sieve": {"use": "vllm", "eviction": "sieve"}},
        "warm_start": {"use": "saved", "path": str(path)},
    }
    with pytest.raises(ConfigError, match=r"sieve: .*was saved of another manager"):
        run(config)
    with pytest.raises(ConfigError, match=r"warm_start: its block_size is 16 tokens, the manag"):
        run({**config, "cache": {**SIZE, "block_size": 32}})
    with pytest.raises(ConfigError, match=r"warm_start: .*Saved needs path"):
        run({**config, "warm_start": {"use": "saved"}})
