"""The JSON schema of configurations, for editors: names complete, typing errors show at once.

It is made from the constructors themselves. `kvsim validate` checks more: a schema cannot know
classes of others, nor what a value means together with another.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

from pydantic import PydanticInvalidForJsonSchema, PydanticUserError, TypeAdapter

from sim.spec import schema
from sim.spec.names import CONTRACTS, Kind, find, names
from sim.spec.parameters import ARBITRARY, Parameters, alternatives, takes_number
from sim.spec.place import Place
from sim.spec.point_schema import Json, of_one_point

SECTION, LIST = ["object", "null"], ["array", "null"]  # nothing after the colon is null
FOLDER = r'^[^./\\:*?"<>|\n][^/\\:*?"<>|\n]*$'
TEXTS = {
    "name": "What the results folder is called.",
    "question": "What the experiment is to answer; the report begins with it.",
    "mode": "engine: with a clock. replay: one request after the other, prompts only.",
    "seed": "Of everything that is drawn at random.",
    "seeds": "Run everything with each of these seeds.",
    "sweep": "Dotted paths and their values: {cache.num_blocks: [2000, 4000]}.",
    "evictions": "Note when blocks are evicted and wanted again (only without a clock).",
    "warm_start": "A workload that is served before the run begins, or a saved state of the cache.",
    "bounds": "Compute MIN and a cache without limit beside every run.",
}


def json_schema() -> Json:
    """The schema of a whole configuration (JSON Schema, draft 2020-12)."""
    seed: Json = {"type": "integer", "minimum": 0}
    axis = {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]}
    properties: Json = {
        "name": {"type": "string", "pattern": FOLDER},
        "question": {"type": "string"},
        "mode": {"enum": ["engine", "replay", "replay_with_answers"]},
        "seed": seed,
        "seeds": {"type": LIST, "items": seed, "minItems": 1, "uniqueItems": True},
        "sweep": {"type": SECTION, "additionalProperties": axis},
        "bounds": {"type": "boolean"},
        "evictions": {"type": "boolean"},
        "cache": _cache(),
        "engine": _engine(),
        "latency": _object("latency"),
        "workload": _object("workload"),
        "warm_start": {"anyOf": [_object("workload"), _saved(), {"type": "null"}]},
        "policies": {"type": SECTION, "additionalProperties": _object("manager")},
        "report": _report(),
    }
    assert set(properties) == set(schema.TOP)
    for name, about in TEXTS.items():
        properties[name] = {**properties[name], "description": about}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvsim experiment",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "if": {"properties": {"sweep": {"type": "null"}}},
        "then": of_one_point(),  # a sweep may fill in what is missing and replace what is wrong
        "$defs": {kind: _object_of(kind) for kind in CONTRACTS},
    }


def _saved() -> Json:
    """The state of a manager in a file (`sim.state.warm_start.Saved`)."""
    known = {"use": {"const": "saved"}, "path": {"type": "string"}}
    return {
        "type": "object",
        "required": ["use", "path"],
        "additionalProperties": False,
        "properties": known,
    }


def _cache() -> Json:
    """The section's own keys; those of managers may stand there too."""
    positive = {"type": "integer", "minimum": 1}
    own: Json = {"num_blocks": positive, "block_size": positive}
    own["kv_bytes_per_token"] = {"type": "number", "minimum": 0}
    managers: Json = {}
    for use in names("manager"):
        managers |= _parameters(Parameters.of(find("manager", use, Place())))
    return {"type": SECTION, "properties": managers | own}


def _engine() -> Json:
    known = _parameters(schema.SCHEDULER_PARAMETERS) | _parameters(schema.ENGINE_PARAMETERS)
    return {"type": SECTION, "additionalProperties": False, "properties": known}


def _report() -> Json:
    pictures = {"type": "array", "items": {"enum": list(schema.PICTURES)}}
    properties = {
        "plots": {"anyOf": [{"type": "boolean"}, pictures]},
        "out": {"type": ["string", "null"]},
        "baseline": {"type": ["string", "null"]},
        "warmup_requests": {"type": "integer", "minimum": 0},
        "target_hit_rate": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    }
    assert set(properties) == set(schema.REPORT)
    return {"type": SECTION, "additionalProperties": False, "properties": properties}


def _object(kind: Kind) -> Json:
    return {"$ref": f"#/$defs/{kind}"}


def _object_of(kind: Kind) -> Json:
    """A short name, `module:Class`, or a mapping with `use:` and that class's arguments."""
    name = {"anyOf": [{"enum": sorted(names(kind))}, {"type": "string", "pattern": ":"}]}
    cases = []
    for use in sorted(names(kind)):
        parameters = Parameters.of(find(kind, use, Place()))
        closed = {} if parameters.takes_any else {"additionalProperties": False}
        arguments = {"use": True, **_parameters(parameters)}
        condition = {"properties": {"use": {"const": use}}, "required": ["use"]}
        cases.append({"if": condition, "then": {"properties": arguments, **closed}})
    mapping = {"type": "object", "required": ["use"], "properties": {"use": name}, "allOf": cases}
    return {"anyOf": [name, mapping]}


def _kinds(hint: Any) -> list[Kind]:
    """What kind of object of ours *hint* is, if it is one."""
    contracts = CONTRACTS.items() if isinstance(hint, type) else ()
    return [kind for kind, contract in contracts if issubclass(hint, contract)]


def _parameters(parameters: Parameters) -> Json:
    return {name: _value(parameters, name) for name in parameters.by_name}


def _value(parameters: Parameters, name: str) -> Json:
    """What an argument may be; anything where its type has no schema."""
    hint = parameters.hints.get(name, Any)
    objects = [_object(kind) for one in alternatives(hint) for kind in _kinds(one)]
    if objects:
        numbers = [{"type": "number"}] * takes_number(hint)  # a number may stand for an object
        return {"anyOf": objects + numbers + [{"type": "null"}] * (NoneType in alternatives(hint))}
    try:
        found = dict(TypeAdapter(hint, config=ARBITRARY).json_schema())
    except (PydanticUserError, PydanticInvalidForJsonSchema):
        return {}
    if "$defs" in found or "$ref" in found:
        return {}
    default = parameters.defaults.get(name)
    if isinstance(default, bool | int | float | str):
        found["default"] = default
    return found
