from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from policies.lru import LRU
from policies.reference import ReferenceBlockManager
from sim.errors import ConfigError
from sim.latency import LatencyModel, Linear, StepLoad
from sim.request import Request
from sim.spec import parameters
from sim.spec.build import Plan, build, plan
from sim.spec.parameters import Parameters, validated
from sim.spec.place import Place
from sim.workload import Workload


@dataclass
class Options:
    depth: int = 1


class Kitchen(LatencyModel):
    """Takes one argument of every kind."""

    def __init__(
        self,
        whole: int = 1,
        real: float = 1.0,
        flag: bool = False,
        text: str = "",
        choice: Literal["a", "b"] = "a",
        path: Path = Path("."),
        limit: int | None = None,
        pair: tuple[int, int] = (1, 2),
        many: Sequence[float] = (),
        table: Mapping[str, int] | None = None,
        anything: Any = None,
        bare=None,  # type: ignore[no-untyped-def]
        rng: np.random.Generator | None = None,
        options: Options | None = None,
        inner: LatencyModel | None = None,
    ) -> None:
        self.got = {name: value for name, value in locals().items() if name != "self"}

    def step_time(self, load: StepLoad) -> float:
        return 1.0


class Seeded(LRU):
    """A policy that asks for what the experiment knows."""

    def __init__(self, num_blocks: int, seed: int) -> None:
        self.num_blocks = num_blocks
        self.seed = seed


class Nothing(Workload):
    """A workload from a notebook."""

    block_size = 4

    def __iter__(self) -> Iterator[Request]:
        return iter(())

    def __len__(self) -> int:
        return 0


def kitchen(**arguments: Any) -> Any:
    return build("latency", {"use": Kitchen, **arguments}, where="latency").got


def refused(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        function(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_three_ways_to_name_a_class() -> None:
    """A short name, an import path and a mapping with `use` build the same class."""
    for spec in ("linear", "sim.latency:Linear", {"use": "linear"}, {"use": "sim.latency:Linear"}):
        assert type(build("latency", spec)) is Linear
    assert build("latency", {"use": "linear", "decode_ms": 4}).step_s == 0.004


def test_python_may_pass_classes_and_objects() -> None:
    """A class is built; an object is used as it is."""
    model = Linear()
    assert build("latency", model) is model
    assert type(build("latency", Linear)) is Linear
    assert build("latency", {"use": Linear, "decode_ms": 2}).step_s == 0.002
    assert len(build("workload", Nothing())) == 0


def test_known_values_are_offered_not_forced() -> None:
    """num_blocks comes from the experiment unless the spec gives it; what nobody asks is unused."""
    known = {"num_blocks": 10, "block_size": 4, "seed": 3, "colour": "red"}
    manager = build("manager", "reference", known=known)
    assert (manager.num_blocks, manager.block_size) == (9, 4)
    assert build("manager", {"use": "reference", "num_blocks": 6}, known=known).num_blocks == 5
    assert isinstance(build("policy", "lru", known=known), LRU)


def test_policies_inside_a_manager_are_specs_too() -> None:
    """`eviction` takes a name, a mapping, a class or object, and knows what its manager knows."""
    known = {"num_blocks": 10, "block_size": 4, "seed": 3}
    for spec in ("lru", {"use": "lru"}, "policies.lru:LRU", LRU, LRU()):
        manager = build("manager", {"use": "reference", "eviction": spec}, known=known)
        assert type(manager.policy) is LRU
        assert manager.policy.pool is manager
    seeded = build("manager", {"use": "reference", "eviction": Seeded}, known=known).policy
    assert (seeded.num_blocks, seeded.seed) == (10, 3)
    assert build("manager", {"use": "reference", "eviction": None}, known=known).policy


def test_every_build_is_a_new_object() -> None:
    """A plan builds as often as asked; a policy from Python is copied for each manager."""
    eviction = LRU()
    planned = plan("manager", {"use": "reference", "eviction": eviction, "num_blocks": 4})
    one, two = planned.build(), planned.build()
    assert one is not two
    assert one.policy is not two.policy
    assert not hasattr(eviction, "pool")


def test_a_policy_in_service_is_refused() -> None:
    """A policy belongs to one manager: the second would inherit the first one's spans."""
    policy = ReferenceBlockManager(4).policy
    spec = {"use": "reference", "num_blocks": 4, "eviction": policy}
    assert "policies.a.eviction: " in refused(build, "manager", spec, where="policies.a")
    assert "serves a manager already" in refused(build, "manager", spec)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("whole", 3.0, 3),
        ("whole", 1e9, 10**9),
        ("whole", 10**30, 10**30),
        ("real", 3, 3.0),
        ("real", 0.1, 0.1),
        ("limit", None, None),
        ("choice", "b", "b"),
        ("path", "a/b", Path("a/b")),
        ("pair", [1, 2.0], (1, 2)),
        ("many", [1, 2.5], [1.0, 2.5]),
        ("table", {"a": 1.0}, {"a": 1}),
        ("anything", [1.0, "x"], [1.0, "x"]),
        ("bare", 2.0, 2.0),
    ],
)
def test_values_are_taken_as_their_type(name: str, value: Any, expected: Any) -> None:
    """Case N1: whole floats (1e9) are integers where those are wanted, and nothing else changes."""
    got = kitchen(**{name: value})[name]
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("whole", 1.5, "is 1.5; it must be a whole number"),
        ("whole", True, "is true; it must be a whole number"),
        ("whole", "16GiB", "is '16GiB'; it must be a whole number, plain digits without unit"),
        ("whole", "1,000", "is '1,000'; it must be a whole number, plain digits without unit"),
        ("whole", None, "is null; it must be a whole number"),
        ("real", False, "is false; it must be a number"),
        ("real", "3", "is '3'; it must be a number, plain digits without unit"),
        ("flag", 1, "is 1; it must be true or false"),
        ("flag", "yes", "is 'yes'; it must be true or false"),
        ("text", 3, "is 3; it must be text"),
        ("text", False, "is false; it must be text (YAML reads on, off, yes and no as"),
        ("choice", "c", "is 'c'; it must be one of a, b"),
        ("choice", True, "is true; it must be one of a, b (YAML reads on, off, yes and no as"),
        ("limit", "x", "is 'x'; it must be a whole number or null, plain digits"),
        ("pair", 3, "is 3; it must be a list"),
        ("many", [1, True], "[1] is true; it must be a number"),
        ("table", [1], "is [1]; it must be a mapping or null"),
        ("rng", 3, "is 3; it must be a Generator or null"),
        ("inner", False, "is false; it must be the name of a latency model, or a mapping with"),
    ],
)
def test_values_of_another_type_are_refused(name: str, value: Any, message: str) -> None:
    """Case N1, N2: path, value seen, what would do; on/off get the hint to quote."""
    assert refused(kitchen, **{name: value}).startswith(
        f"latency.{name}{' ' * (message[0] != '[')}{message}"
    )


def test_objects_of_the_right_type_pass() -> None:
    """From Python: generators, dataclasses and models of ours are arguments like any other."""
    rng, options, inner = np.random.default_rng(0), Options(2), Linear()
    got = kitchen(rng=rng, options=options, inner=inner)
    assert (got["rng"], got["options"], got["inner"]) == (rng, options, inner)


def test_floats_are_not_rounded() -> None:
    """The check hands on exactly the number that was written."""
    numbers = np.random.default_rng(0).standard_normal(200).tolist()
    assert validated(list[float], numbers) == numbers


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "linaer",
            "x: no latency model is called 'linaer'; did you mean 'linear'? (known: constant,",
        ),
        ("sim.latency:Linaer", "x: sim.latency has no Linaer; did you mean 'Linear'?"),
        ("sim.latencies:Linear", "x: cannot import sim.latencies (ModuleNotFoundError: No module"),
        (":Linear", "x: ':Linear' is not an import path; write module:Class"),
        ("sim.latency:", "x: 'sim.latency:' is not an import path; write module:Class"),
        ("sim.latency:LATENCIES", "x: sim.latency:LATENCIES is a dict; name a class that can be"),
        ("sim.latency:LatencyModel", "x: sim.latency:LatencyModel is an abstract class; name a"),
        (
            "policies.lru:LRU",
            "x: LRU is not a latency model; derive it from sim.latency.LatencyModel",
        ),
        ({"ues": "linear"}, "x: needs 'use:', the name of a latency model"),
        ({"use": None}, "x: needs 'use:', the name of a latency model"),
        ({"use": True}, "x.use is true; it must be the name of a latency model, or a mapping"),
        (
            False,
            "x is false; it must be the name of a latency model, or a mapping with 'use:' (YAML",
        ),
        (3, "x is 3; it must be the name of a latency model, or a mapping with 'use:'"),
        (
            {"use": "linear", "decode-ms": 3},
            "x.decode-ms: unknown to linear; did you mean 'decode_ms'?",
        ),
        ({"use": "linear", "decode_ms": -1}, "x.decode_ms is -1.0; it must be greater than 0"),
        ({"use": "constant", "foo": 1}, "x.foo: unknown to constant (it takes: step_s=1.0)"),
    ],
)
def test_bad_specs_get_one_line(spec: object, message: str) -> None:
    """Case N2, N3: one line that names the place, what was seen, and the nearest that is known."""
    assert refused(build, "latency", spec, where="x").startswith(message)


def test_a_policy_where_a_manager_belongs() -> None:
    """The likeliest slip, `policies: {lru: lru}`, is answered with what to write."""
    assert "write {use: reference, eviction: lru}" in refused(build, "manager", "lru")


def test_missing_arguments_are_named() -> None:
    """What has no default must be given, and the message says what else there is."""
    message = refused(build, "manager", "reference", where="policies.a")
    assert message.startswith(
        "policies.a: reference needs num_blocks; it takes: num_blocks, block_size=16"
    )


def test_errors_blame_the_argument_wherever_it_came_from() -> None:
    """A constructor's error is put at the key of the argument that it names."""
    known = {"num_blocks": 1}
    options = {"where": Place(path=("policies", "a")), "known_where": Place(path=("cache",))}
    planned = plan("manager", "reference", known=known, **options)
    assert refused(planned.build) == "cache.num_blocks is 1; it must be at least 2"
    spec = {"use": "reference", "block_size": 0}
    planned = plan("manager", spec, known={"num_blocks": 5}, **options)
    assert refused(planned.build).startswith("policies.a.block_size is 0")
    spec = {"use": "shared_prefix", "rate": -1}  # this message begins with the class's name
    assert refused(build, "workload", spec, where="workload").startswith("workload.rate is -1.0;")


def test_user_modules_that_fail_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module with a mistake in it is named, with the mistake, in one line."""
    tmp_path.joinpath("kvsim_test_broken.py").write_text("1 / 0")
    tmp_path.joinpath("kvsim_test_syntax.py").write_text("def (")
    monkeypatch.syspath_prepend(tmp_path)
    message = refused(build, "policy", "kvsim_test_broken:X", where="e")
    assert message == "e: cannot import kvsim_test_broken (ZeroDivisionError: division by zero)"
    assert "SyntaxError" in refused(build, "policy", "kvsim_test_syntax:X", where="e")


def test_resolved_specs_spell_out_defaults_but_not_what_is_known() -> None:
    """A resolved spec builds the same object again and leaves sizes to the experiment."""
    known = {"num_blocks": 10, "block_size": 4}
    spec = {"use": "reference", "eviction": {"use": "lru"}, "watermark": 0.5}
    planned = plan("manager", spec, known=known)
    resolved = planned.resolved()
    assert resolved["use"] == "reference"
    assert resolved["watermark"] == 0.5
    assert resolved["eviction"] == {"use": "lru"}
    assert resolved["free_order"] == "tail"
    assert not {"num_blocks", "block_size"} & resolved.keys()
    again = plan("manager", resolved, known=known)
    assert isinstance(again, Plan)
    assert again.resolved() == resolved
    assert again.build().watermark_blocks == 5


def test_what_came_from_python_is_marked_in_resolved_specs() -> None:
    """An object cannot be written down; the resolved spec says so instead of guessing."""
    resolved = plan("manager", {"use": "reference", "eviction": LRU(), "num_blocks": 4}).resolved()
    assert resolved["eviction"] == "<policies.lru:LRU from Python>"
    assert plan("latency", Linear).resolved()["use"] == "sim.latency:Linear"


def test_parameters_print_as_a_signature() -> None:
    """What `kvsim list` shows: names and defaults, and dots where anything is taken."""

    def function(a: int, *, b: str = "x", c: bool = True, **more: Any) -> None: ...

    assert str(Parameters.of(function)) == "a, b=x, c=true, ..."
    assert str(Parameters.of(LRU)) == "nothing"


def test_modules_load_without_their_siblings() -> None:
    """Short names are import paths: nothing of policies or workloads loads until it is named."""
    import subprocess
    import sys

    code = textwrap.dedent("""
        import sys
        import sim.spec.build, sim.studies.experiment
        loaded = {"policies", "workloads", "pandas", "matplotlib", "torch"} & sys.modules.keys()
        sys.exit(f"loaded: {loaded}" if loaded else 0)
    """)
    env = {**os.environ, "PYTHONPATH": str(Path(parameters.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
