"""Block keys are vLLM's block hashes, and depend on content alone."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from sim.errors import ConfigError
from sim.hashing import HASH_FUNCTIONS, NONE_SEED, block_hash, none_hash
from sim.keys import Image, TokenKeys

BLOCK_SIZE = 4


def hashes(token_ids, **content):
    """All block hashes of a prompt, block size 4."""
    keys = TokenKeys(token_ids, BLOCK_SIZE, **content)
    return [keys[i] for i in range(len(keys))]


def distinct(text):
    """An equal string that is another object."""
    return "".join(list(text))


def recorded_vectors(goldens):
    return json.loads((goldens / "v0.33.0" / "v_hashes.json").read_text())["vectors"]


def from_json(value):
    """Lists become tuples and equal strings one object: vLLM hashed interned strings."""
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    return sys.intern(value) if isinstance(value, str) else value


def test_the_350_recorded_hashes_of_vllm(goldens):
    """`block_hash` over the recorded parents, tokens and extra keys gives vLLM's own 350 hashes."""
    num_hashes = 0
    for vector in recorded_vectors(goldens):
        function = vector["algo"]
        parent = none_hash(function, vector["pythonhashseed"] or NONE_SEED)
        assert parent.hex() == vector["none_hash"]
        for i, recorded in enumerate(vector["hashes"]):
            tokens = tuple(vector["prompt"][i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE])
            parent = block_hash(function, parent, tokens, from_json(vector["extra_keys"][i]))
            assert parent.hex() == recorded, (function, vector["case"], i)
            num_hashes += 1
    assert num_hashes == 350


def test_token_keys_build_the_recorded_extra_keys(goldens):
    """`TokenKeys` derives vLLM's extra keys from LoRA, images and salt: recorded chains equal.

    Vectors with the seed that kvsim uses: 12 prompts for each function of the sha256 pair.
    """
    vectors = [v for v in recorded_vectors(goldens) if v["pythonhashseed"] is None]
    assert len(vectors) == 24
    for vector in vectors:
        lora = vector.get("lora")
        keys = TokenKeys(
            vector["prompt"],
            BLOCK_SIZE,
            hash_function=vector["algo"],
            lora=(lora["name"], lora["path"]) if lora else None,
            images=[Image(mm["hash"], mm["offset"], mm["length"]) for mm in vector.get("mm", [])],
            salt=vector.get("salt"),
        )
        assert keys.extra_keys(0, len(keys)) == [
            None if extra is None else from_json(extra) for extra in vector["extra_keys"]
        ]
        assert [keys[i].hex() for i in range(len(keys))] == vector["hashes"], vector["case"]


@pytest.mark.parametrize("function", HASH_FUNCTIONS)
def test_hashes_are_computed_when_asked_for(function, monkeypatch):
    """Hashing is lazy and done once: key 1 costs two hashes, key 0 then none, key 2 one more."""
    calls = []

    def counted(*args):
        calls.append(args)
        return block_hash(*args)

    monkeypatch.setattr("sim.keys.block_hash", counted)
    keys = TokenKeys(range(40), BLOCK_SIZE, hash_function=function)
    assert len(keys) == 10
    assert calls == []
    counts = []
    for i in (1, 0, 2):
        _ = keys[i]
        counts.append(len(calls))
    assert counts == [2, 2, 3]


def test_the_order_of_asking_does_not_matter():
    """Asking for the last key first, or appending between, gives the keys of the whole chain."""
    whole = hashes(range(20))
    backwards = TokenKeys(range(20), BLOCK_SIZE)
    assert [backwards[i] for i in reversed(range(5))] == whole[::-1]

    grown = TokenKeys(range(6), BLOCK_SIZE)
    assert (len(grown), grown[0]) == (1, whole[0])
    grown.append(range(6, 20))
    assert [grown[i] for i in range(len(grown))] == whole


def test_a_key_covers_everything_before_it():
    """A changed token changes its own block and all later ones, and none before."""
    whole, other = hashes(range(16)), hashes([0, 1, 2, 3, 4, 99, *range(6, 16)])
    assert [a == b for a, b in zip(whole, other, strict=True)] == [True, False, False, False]
    assert len({*hashes([7] * 16)}) == 4


def test_equal_image_names_need_not_be_one_object():
    """An image twice in one block: two equal strings give the key that one string gives.

    pickle writes a back-reference for an object it has met before, so identity could enter.
    """
    name = distinct("image-a")
    one_object = [Image(name, 0, 2), Image(name, 2, 2)]
    two_objects = [Image(name, 0, 2), Image(distinct("image-a"), 2, 2)]
    assert two_objects[0].identifier is not two_objects[1].identifier
    assert hashes(range(8), images=one_object) == hashes(range(8), images=two_objects)


@pytest.mark.parametrize("function", HASH_FUNCTIONS)
def test_equal_names_of_different_things_need_not_be_one_object(function):
    """A LoRA, its path, an image and a salt of the same name: identity does not enter the key."""
    name = distinct("same")
    one_object = {"lora": (name, name), "images": [Image(name, 0, 3)], "salt": name}
    many_objects = {
        "lora": (distinct("same"), distinct("same")),
        "images": [Image(distinct("same"), 0, 3)],
        "salt": distinct("same"),
    }
    expected = hashes(range(8), hash_function=function, **one_object)
    assert hashes(range(8), hash_function=function, **many_objects) == expected


@pytest.mark.parametrize("function", HASH_FUNCTIONS)
def test_equal_token_ids_of_other_integer_types_give_the_same_key(function):
    """NumPy's integers, as read from an array, are the same content as Python's."""
    keys = hashes(np.arange(8), hash_function=function)
    assert keys == hashes(range(8), hash_function=function)


def test_a_hash_function_that_does_not_exist_is_refused():
    """The error names the value and what is known."""
    keys = TokenKeys(range(8), BLOCK_SIZE, hash_function="md5")
    with pytest.raises(ConfigError, match="'md5' is unknown; use sha256, sha256_cbor, xxhash, xx"):
        _ = keys[0]


def test_a_block_that_does_not_exist_has_no_key():
    """Asking beyond the last full block is an IndexError, not a shorter block's hash."""
    with pytest.raises(IndexError, match="block 2 of a chain with 2 full blocks"):
        _ = TokenKeys(range(11), BLOCK_SIZE)[2]


@pytest.mark.parametrize(("library", "function"), [("cbor2", "sha256_cbor"), ("xxhash", "xxhash")])
def test_a_missing_hash_library_is_a_mendable_error(library, function, monkeypatch):
    """Without the optional library the error says what to install; sha256 needs none."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{library}; pip install 'kvsim\[hashing\]'"):
        block_hash(function, b"parent", (1, 2), None)
    assert len(block_hash("sha256", b"parent", (1, 2), None)) == 32
