from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.errors import ConfigError
from sim.spec.config import Config, apply_overrides, load
from sim.spec.yaml_text import dump, parse


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def refused(tmp_path: Path, text: str) -> str:
    """The error that *text* gives, without the folder; one line."""
    with pytest.raises(ConfigError) as error:
        read(tmp_path, text)
    message = str(error.value).replace(f"{tmp_path}/", "")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("text", ["1e9", "1E9", "1.0e9", "1e+9", "1.0e+9"])
def test_scientific_notation_is_a_number(tmp_path: Path, text: str) -> None:
    """Case N1: what YAML 1.1 reads as text is the number that a person means."""
    value = read(tmp_path, f"a: {text}").data["a"]
    assert type(value) is float
    assert value == 1e9


def test_small_and_grouped_numbers(tmp_path: Path) -> None:
    """Case N1: 1e-5 and .5e3 are floats, 1_000 and 0x10 integers; units and commas stay text."""
    data = read(tmp_path, "a: [1e-5, .5e3, 1_000, 0x10, 16GiB, 08]\nb: 1,000").data
    assert data == {"a": [1e-5, 500.0, 1000, 16, "16GiB", "08"], "b": "1,000"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("010", "x.yaml:2: b.c is 010, which YAML reads as octal 8; write 10 or 8, or quote it"),
        (
            "-010",
            "x.yaml:2: b.c is -010, which YAML reads as octal -8; write -10 or -8, or quote it",
        ),
        ("1:30", "x.yaml:2: b.c is 1:30, which YAML reads as 90; write 90"),
        ("1:30.5", "x.yaml:2: b.c is 1:30.5, which YAML reads as 90.5; write 90.5"),
    ],
)
def test_numbers_that_are_read_otherwise_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    """Case N1: octal and base 60 are refused, with the line, the reading and the remedy."""
    assert refused(tmp_path, f"a: 1\nb: {{c: {text}}}") == message


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", ".NaN", "1e999"])
def test_numbers_are_finite(tmp_path: Path, text: str) -> None:
    """Case N1: infinities and NaN are refused, also one that only overflows."""
    assert refused(tmp_path, f"a: {text}").startswith(f"x.yaml:1: a is {text}; numbers must be")


@pytest.mark.parametrize("quoted", ["'010'", '"1:30"', "'1e9'", "'.inf'", "'on'"])
def test_quoted_scalars_are_text(tmp_path: Path, quoted: str) -> None:
    """Case N1, N2: the remedy works: what is quoted stays text."""
    assert read(tmp_path, f"a: {quoted}").data == {"a": quoted[1:-1]}


def test_dates_are_text(tmp_path: Path) -> None:
    """A value or key that looks like a date is not turned into an object."""
    assert read(tmp_path, "2024-01-01: 2024-01-02").data == {"2024-01-01": "2024-01-02"}


@pytest.mark.parametrize(
    ("key", "reading"),
    [("on", "true"), ("no", "false"), ("1", "1"), ("~", "null"), ("1e3", "1000.0")],
)
def test_keys_are_text(tmp_path: Path, key: str, reading: str) -> None:
    """Case N2: a key that YAML reads as something else is refused, with the line and the remedy."""
    message = f'in p: the key {key} is read as {reading}, not as text; write "{key}"'
    assert refused(tmp_path, f"a: 1\np:\n  {key}: 3") == f"x.yaml:3: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\na: 2\nseed: 2", "x.yaml:3: duplicate key 'seed' (first on line 1)"),
        ("a:\n  b: 1\n  b: 1", "x.yaml:3: duplicate key 'b' (first on line 2)"),
        ("a: [{b: 1, b: 2}]", "x.yaml:1: duplicate key 'b' (first on line 1)"),
        ("a: {b: 1, 'b': 2}", "x.yaml:1: duplicate key 'b' (first on line 1)"),
        ("<<: {b: 1, b: 2}", "x.yaml:1: duplicate key 'b' (first on line 1)"),
    ],
)
def test_duplicate_keys_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """Case N5: at any depth, in lists, however quoted, and inside what is merged."""
    assert refused(tmp_path, text) == message


def test_merge_keys_may_be_overridden(tmp_path: Path) -> None:
    """Case N5: `<<` is legal, also when its target merges something itself and is used twice."""
    text = """
a: &a {x: 1, y: 1}
b: &b {<<: *a, y: 2}
c: {<<: *b, z: 3}
d: {<<: [*b, *a], x: 4}
e: *b
"""
    data = read(tmp_path, text).data
    assert data["b"] == data["e"] == {"x": 1, "y": 2}
    assert data["c"] == {"x": 1, "y": 2, "z": 3}
    assert data["d"] == {"x": 4, "y": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml: is empty; write at least 'workload:'"),
        ("# nothing", "x.yaml: is empty; write at least 'workload:'"),
        ("- 1", "x.yaml: is [1]; it must be a mapping of keys to values"),
        ("text", "x.yaml: is 'text'; it must be a mapping of keys to values"),
        ("a: 1\nb: [1", "x.yaml:2: is not valid YAML: expected ',' or ']'"),
        ("a: 1\n\tb: 2", "x.yaml:2: is not valid YAML: found character '\\t'"),
        ("a: {<<: 3}", "x.yaml:1: << takes a mapping or a list of them"),
        ("a: *nobody", "x.yaml:1: is not valid YAML: found undefined alias 'nobody'"),
        ("a: 1\n---\nb: 1", "x.yaml:2: is not valid YAML: but found another document"),
        ("a: !!python/name:os.system x", "x.yaml:1: is not valid YAML: could not determine"),
        ("a: !!set {x}", "x.yaml:1: a: the tag tag:yaml.org,2002:set has no meaning here"),
        ("a: &a [*a]", "x.yaml: is nested too deeply, or contains itself"),
        ("a: \x00", "x.yaml: is not valid YAML: unacceptable character"),
    ],
)
def test_unusable_files_get_one_line(tmp_path: Path, text: str, message: str) -> None:
    """Whatever is wrong with the text, one line names the file, the line and the reason."""
    assert refused(tmp_path, text).startswith(message)


def test_unreadable_files_get_one_line(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are no text are ConfigErrors."""
    with pytest.raises(ConfigError, match=r"nope\.yaml: cannot be read: No such file"):
        load(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match=r"x\.yaml: is not UTF-8 text \(byte 3\)"):
        load(tmp_path / "x.yaml")


def test_byte_order_mark_and_crlf_are_no_fault(tmp_path: Path) -> None:
    """Files from other systems read the same."""
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert load(tmp_path / "x.yaml").data == {"a": 1, "b": 2}


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    """A place prints file, line and path: of keys, of list items, of what merge keys bring."""
    config = read(tmp_path, "base: &b\n  x: 1\na:\n  <<: *b\n  l:\n  - 5\n  - 6\n")
    place = config.root / "a"
    assert str(place).endswith("x.yaml:3: a")
    assert str(place / "x").endswith("x.yaml:2: a.x")
    assert str(place / "l" / 1).endswith("x.yaml:7: a.l[1]")
    assert str(place / "missing").endswith("x.yaml:3: a.missing")
    assert str(config.root).endswith("x.yaml: config")


def test_mappings_from_python_become_plain() -> None:
    """NumPy numbers, tuples and paths become what YAML would give; the mapping is left alone."""
    source: dict[str, Any] = {
        "a": {"n": np.int64(3), "x": np.float64(0.5)},
        "p": Path("t"),
        "l": (1,),
    }
    config = load(source)
    assert config.data == {"a": {"n": 3, "x": 0.5}, "p": "t", "l": [1]}
    assert type(config.data["a"]["n"]) is int
    config.data["a"]["n"] = 4
    assert source["a"]["n"] == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"a": {True: 1}}, "^a: the key true is not text$"),
        ({"a": [float("inf")]}, r"^a\[0\] is inf; numbers must be finite"),
    ],
)
def test_mappings_from_python_are_checked(source: dict[str, Any], message: str) -> None:
    """Case N1, N2: keys and infinities are refused as in files."""
    with pytest.raises(ConfigError, match=message):
        load(source)


def override(*overrides: str) -> dict[str, Any]:
    data = {"cache": {"num_blocks": 1}, "latency": "linear", "policies": {"v0.23": {"use": "a"}}}
    return apply_overrides(load(data), overrides).data


def test_overrides_set_values_read_as_yaml() -> None:
    """--set changes a value, adds one, creates a section, and opens a short name."""
    assert override("cache.num_blocks=1e3")["cache"] == {"num_blocks": 1000.0}
    assert override("cache.block_size=4", "seed = 7")["seed"] == 7
    assert override("engine.until=2.5")["engine"] == {"until": 2.5}
    assert override("latency.decode_ms=5")["latency"] == {"use": "linear", "decode_ms": 5}
    assert override("policies.b={use: x, y: [1]}")["policies"]["b"] == {"use": "x", "y": [1]}


def test_overrides_reach_keys_with_dots() -> None:
    """A label such as v0.23 is one step of a path."""
    assert override("policies.v0.23.n=1")["policies"] == {"v0.23": {"use": "a", "n": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cache.num_blocks", "--set cache.num_blocks: write it as key=value"),
        ("=3", "--set =3: write it as key=value"),
        (
            "policies.v0.24.n=1",
            "--set policies.v0.24.n: there is no policies.v0; it could be v0.23",
        ),
        ("a.b.c.d=3", "--set a.b.c.d: a has no keys yet; write the whole of it: --set a={...}"),
        ("cache.num_blocks.x=1", "--set cache.num_blocks.x: cache.num_blocks is 1 and has no keys"),
        ("cache.num_blocks=010", "--set cache.num_blocks is 010, which YAML reads as octal 8"),
        ("cache.num_blocks=[1", "--set cache.num_blocks: is not valid YAML"),
    ],
)
def test_bad_overrides_get_one_line(text: str, message: str) -> None:
    """An override that cannot be meant is refused by its own name."""
    with pytest.raises(ConfigError) as error:
        override(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_overrides_leave_the_original_and_own_the_error(tmp_path: Path) -> None:
    """The configuration given stays as it is; a changed value is no longer the file's."""
    config = read(tmp_path, "workload: {use: a, path: b}")
    changed = apply_overrides(config, ["workload={use: c}"])
    assert config.data == {"workload": {"use": "a", "path": "b"}}
    assert str(changed.root / "workload" / "path") == "--set workload.path"


@pytest.mark.parametrize(
    "text",
    ["1e9", "on", "no", "010", "1:30", "2024-01-01", "~", "null", ".inf", "16 blocks: a", ""],
)
def test_dumped_text_reads_back_as_text(text: str) -> None:
    """Resolved configurations are re-runnable: text that looks like a number is quoted."""
    data = {"a": text, "b": [text, 1e9, 1e-7, 3, True, None]}
    assert parse(dump(data), "x") == data
