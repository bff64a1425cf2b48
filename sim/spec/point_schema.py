"""What the JSON schema says of a configuration as a whole, if it is of one point."""

from __future__ import annotations

from typing import Any

from sim.spec import schema
from sim.spec.names import find, names
from sim.spec.parameters import Parameters
from sim.spec.place import Place

Json = dict[str, Any]


def of_one_point() -> Json:
    """Rules that hold where no sweep changes anything."""
    at_least_1: Json = {"minimum": 1}
    engine = {"max_num_seqs": at_least_1, "max_num_batched_tokens": at_least_1}
    return {
        "required": ["workload"],
        "properties": {
            "policies": {"type": "object", "minProperties": 1},
            "engine": {"properties": engine | {"max_model_len": {"minimum": 2}}},
        },
        "allOf": [_cache_of_known_managers(), _cache_with_a_null_block()],
    }


def _cache_of_known_managers() -> Json:
    """Managers of others may take any key; ours are known."""
    known = sorted(names("manager"))
    keys = dict.fromkeys(schema.CACHE)
    for use in known:
        parameters = _parameters(use)
        assert not parameters.takes_any
        keys |= dict.fromkeys(parameters.by_name)
    return {
        "if": {"properties": {"policies": {"additionalProperties": _uses(known)}}},
        "then": {"properties": {"cache": {"propertyNames": {"enum": list(keys)}}}},
    }


def _cache_with_a_null_block() -> Json:
    """One block is the null block, unless somebody says otherwise: two are the least."""
    known = sorted(names("manager"))
    with_null = [use for use in known if _parameters(use).defaults.get("null_block")]
    takes_both = _uses(with_null, without=("null_block", "num_blocks"))
    somebody = {"not": {"additionalProperties": {"not": takes_both}}}
    unsaid = {"not": {"required": ["null_block"]}}
    return {
        "if": {
            "properties": {"cache": unsaid, "policies": somebody}
        },  # `lru: vllm` if there is none
        "then": {"properties": {"cache": {"properties": {"num_blocks": {"minimum": 2}}}}},
    }


def _uses(managers: list[str], without: tuple[str, ...] = ()) -> Json:
    """A spec of one of *managers* that gives none of the arguments *without*."""
    named: Json = {"enum": managers}
    keys = {"use": named} | dict.fromkeys(without, False)
    return {"anyOf": [named, {"type": "object", "properties": keys, "required": ["use"]}]}


def _parameters(use: str) -> Parameters:
    return Parameters.of(find("manager", use, Place()))
