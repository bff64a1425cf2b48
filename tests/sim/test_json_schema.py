from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from sim import load, run
from sim.cli import main
from sim.errors import ConfigError
from sim.results import Results
from sim.spec.json_schema import json_schema
from sim.spec.names import names
from sim.studies.study import Study

ROOT = Path(__file__).parents[2]


def test_the_schema_knows_every_name_and_argument() -> None:
    """All short names, and the arguments of their constructors with types and defaults."""
    schema = json_schema()
    for kind in ("manager", "policy", "workload", "latency"):
        short = schema["$defs"][kind]["anyOf"][0]["anyOf"][0]["enum"]
        assert short == sorted(names(kind))
    cases = schema["$defs"]["latency"]["anyOf"][1]["allOf"]
    linear = next(c for c in cases if c["if"]["properties"]["use"]["const"] == "linear")
    assert linear["then"]["properties"]["decode_ms"] == {"default": 8.0, "type": "number"}
    assert linear["then"]["additionalProperties"] is False
    assert schema["properties"]["engine"]["properties"]["policy"]["enum"] == ["fcfs", "priority"]


CONFIGS = [p for p in sorted((ROOT / "configs").rglob("*.yaml")) if "policies:" in p.read_text()]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_our_configurations_fulfil_the_schema(path: Path) -> None:
    """Every experiment in `configs`."""
    Draft202012Validator(json_schema()).validate(yaml.safe_load(path.read_text()))


SYNTHETIC = {
    "use": "synthetic",
    "arrivals": {"use": "gamma", "rate": 2, "cv": 3},
    "prompts": {"use": "chat", "num_turns": {"use": "geometric", "mean": 5}, "answer_tokens": 300},
}


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("arrivals", {"use": "gama", "rate": 2}),
        ("arrivals", {"use": "gamma", "rate": 2, "cvv": 3}),
        ("prompts", {"use": "chat", "num_turns": {"use": "geometric", "meen": 5}}),
        ("prompts", {"use": "chat", "answer_tokens": [300]}),
    ],
)
def test_the_schema_reaches_into_nested_objects(part: str, wrong: object) -> None:
    """Names and arguments of arrivals, prompts and lengths are checked where they stand."""
    schema = Draft202012Validator(json_schema())
    assert schema.is_valid({"workload": SYNTHETIC})
    assert not schema.is_valid({"workload": SYNTHETIC | {part: wrong}})


def test_the_schema_is_strict_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`kvsim validate --schema` prints it."""
    assert main(["validate", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(json_schema()))


def test_validate_says_what_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows and runs are counted; nothing is simulated or written."""
    config = {
        "cache": {"block_size": 4},
        "mode": "replay",
        "workload": {"use": "shared_prefix", "num_requests": 5},
        "policies": {"lru": "vllm", "fifo": {"use": "vllm", "eviction": "fifo"}},
        "sweep": {"cache.num_blocks": [100, 200]},
        "seeds": [0, 1],
    }
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(config))
    assert main(["validate", str(path)]) == 0
    expected = "ok: c, 2 policies at 4 points are 8 rows; 10 runs and bounds to compute\n"
    assert capsys.readouterr().out == expected
    assert main(["validate", str(path), "--set", "bounds=false"]) == 0
    assert capsys.readouterr().out.endswith(" are 8 rows; 8 runs to compute\n")
    one = ["--set", "bounds=false", "--set", "policies={a: vllm}", "--set", "seeds=[1]"]
    assert main(["validate", str(path), *one, "--set", "sweep={cache.num_blocks: [100]}"]) == 0
    expected = "ok: c, 1 policy at 1 point is 1 row; 1 run to compute\n"
    assert capsys.readouterr().out == expected
    assert list(tmp_path.iterdir()) == [path]


def test_validate_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and the line, as for `run`."""
    path = tmp_path / "c.yaml"
    path.write_text("cache: {num_blocks: 9}\nworkload: shared_prefix\npolicies: {a: vlm}\n")
    assert main(["validate", str(path)]) == 2
    assert "c.yaml:3: policies.a: no block manager is called 'vlm'" in capsys.readouterr().err
    assert main(["validate", str(path), "--set", "policies.a=vllm"]) == 0


def test_load_is_results_load(tmp_path: Path) -> None:
    """`from sim import run, load`: what a run wrote comes back."""
    config = {"cache": {"num_blocks": 64}, "workload": {"use": "shared_prefix", "num_requests": 5}}
    made = run(config, out=tmp_path / "r")
    assert isinstance(load(tmp_path / "r"), Results)
    assert load(tmp_path / "r").summary.equals(made.summary)


def test_importing_stays_light() -> None:
    """`from sim import replay` loads no pandas; `load` does when it is used."""
    code = "import sys; from sim import replay; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


SMALL = {"workload": {"use": "shared_prefix", "num_requests": 3}, "cache": {"num_blocks": 300}}
REFUSED: list[dict[str, Any]] = [
    {"name": "a/b"},
    {"name": ".hidden"},
    {"name": ""},
    {"seeds": [0, 0]},
    {"seeds": [-1]},
    {"policies": {}},
    {"policies": None},
    {"cache": {"num_blocks": 1}},
    {"cache": {"num_blocks": 1}, "policies": {"a": "radix", "b": {"use": "reference"}}},
    {"cache": {"num_blocks": 300, "blok_size": 16}},
    {"cache": {"num_blocks": 300, "mine": 16}, "policies": {"a": {"use": "vllm"}}},
    {"engine": {"max_num_seqs": 0}},
    {"engine": {"max_num_batched_tokens": 0}},
    {"engine": {"max_model_len": 1}},
    {"workload": None},
]
ONE = {"cache": {"num_blocks": 1}}
OWN = {"use": "tests_of_nobody:Manager"}
ACCEPTED: list[dict[str, Any]] = [
    {"name": "a b.c"},
    {"seeds": None, "sweep": None, "engine": None, "report": None, "warm_start": None},
    {"report": {"out": None, "baseline": None, "target_hit_rate": None}},
    {"cache": None, "policies": {"a": {"use": "vllm", "num_blocks": 300}}},
    {**ONE, "policies": {"a": "radix"}},
    {**ONE, "policies": {"a": {"use": "vllm", "null_block": False}}},
    {**ONE, "policies": {"a": {"use": "vllm", "num_blocks": 300}}},
    {"cache": {"num_blocks": 1, "null_block": False}},
    {**ONE, "sweep": {"cache.num_blocks": [300]}},
    {"cache": {"num_blocks": 300, "strategy": "lru"}, "policies": {"a": "radix"}},
    {"engine": {"max_num_seqs": 0}, "sweep": {"engine.max_num_seqs": [1]}},
    {"engine": {"max_model_len": None, "until": None}},
    {"policies": {}, "sweep": {"policies.a": {"x": "vllm", "y": "radix"}}},
    {"policies": None, "sweep": {"policies.a": ["vllm"]}},
]


@pytest.mark.parametrize("sections", REFUSED, ids=str)
def test_what_the_schema_refuses_kvsim_refuses(sections: dict[str, Any]) -> None:
    """Rules that an editor can show while one types."""
    source = {**SMALL, **sections}
    assert not Draft202012Validator(json_schema()).is_valid(source)
    with pytest.raises(ConfigError):
        Study.load(source).jobs()


@pytest.mark.parametrize("sections", ACCEPTED, ids=str)
def test_what_kvsim_accepts_the_schema_accepts(sections: dict[str, Any]) -> None:
    """What looks wrong may be right by another key, or be replaced by the sweep."""
    source = {**SMALL, **sections}
    assert Study.load(source).jobs()
    Draft202012Validator(json_schema()).validate(source)


def test_managers_of_others_may_take_other_keys() -> None:
    """The schema cannot know them."""
    cache = {"num_blocks": 1, "mine": 16}
    assert Draft202012Validator(json_schema()).is_valid(
        {**SMALL, "cache": cache, "policies": {"a": OWN}}
    )


def test_a_sweep_may_fill_in_the_workload() -> None:
    """Nothing is required before it is applied."""
    source = {"cache": SMALL["cache"], "sweep": {"workload": {"a": SMALL["workload"]}}}
    assert Study.load(source).jobs()
    Draft202012Validator(json_schema()).validate(source)
