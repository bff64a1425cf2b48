"""What makes two blocks the same content for the reference manager, and what must not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from policies.reference import ReferenceBlockManager
from sim.keys import Image

LOG = """
from policies.reference import ReferenceBlockManager
from sim.keys import TokenKeys
from sim.request import Request

keys = TokenKeys(range(1, 13), 4, lora=("x", "/x"), salt="s")
print([keys[i].hex() for i in range(3)])
manager = ReferenceBlockManager(5, 4, events=print)
for name, tokens in {"a": range(1, 13), "b": range(1, 13), "c": range(50, 62)}.items():
    request = Request(name, TokenKeys(tokens, 4), 12, max_tokens=1)
    hit = manager.get_computed_blocks(request)
    manager.allocate_slots(request, 12 - hit.num_tokens, hit)
    manager.free(request)
"""


@pytest.fixture
def server(serving):
    """A roomy manager with blocks of 4 tokens."""
    return serving(ReferenceBlockManager(200, 4))


def test_hashes_and_events_are_the_same_in_every_process():
    """Case E1: PYTHONHASHSEED unset, 0, 1 and random: four identical outputs."""
    outputs = []
    for seed in (None, "0", "1", "random"):
        env = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
        env |= {"PYTHONPATH": os.pathsep.join(sys.path)} | (
            {"PYTHONHASHSEED": seed} if seed else {}
        )
        ran = subprocess.run([sys.executable, "-c", LOG], env=env, capture_output=True, check=True)
        outputs.append(ran.stdout)
    assert outputs[0].count(b"BlockStored") == 3
    assert b"BlockRemoved" in outputs[0]
    assert outputs == [outputs[0]] * 4


def test_lora_and_salt_are_different_fields(server):
    """Case E2: LoRA x, salt x, LoRA x again, both: hits 0, 0, 8, 0."""
    lora = ("x", "/lora/x")
    contents = [{"lora": lora}, {"salt": "x"}, {"lora": lora}, {"lora": lora, "salt": "x"}]
    assert [server.run(server.prompt(range(9), **c)) for c in contents] == [0, 0, 8, 0]


def test_a_lora_is_its_name_and_path(server):
    """Fact sheet 2: the same name at another path is other content."""
    loras = [("x", "/a"), ("x", "/b"), ("y", "/a"), ("x", "/a")]
    assert [server.run(server.prompt(range(9), lora=lora)) for lora in loras] == [0, 0, 0, 8]


@pytest.mark.parametrize(
    ("tokens", "offset", "images", "hits"),
    [
        ([1, 2, 9, 9, 9, 9, 9, 3, 4, 5, 6, 7, 8], 2, "XXYY", [0, 12, 0, 12]),
        ([1, 2, 3, 4, 9, 9, 9, 9, 9, 5, 6, 7, 8], 4, "XYX", [0, 4, 12]),
    ],
)
def test_images_enter_the_blocks_they_overlap(server, tokens, offset, images, hits):
    """Case E5: text before an image stays shared, blocks with and behind it are the image's."""
    requests = [server.prompt(tokens, images=[Image(name, offset, 5)]) for name in images]
    assert [server.run(request) for request in requests] == hits


def test_where_an_image_lies_in_a_block_matters(server):
    """Equal placeholders with the same image one token later are other content."""
    tokens = [9] * 13
    requests = [server.prompt(tokens, images=[Image("X", offset, 5)]) for offset in (2, 3, 2)]
    assert [server.run(request) for request in requests] == [0, 0, 12]


def test_token_boundaries_enter_the_key(serving):
    """Case E7: prompts whose digits concatenate alike share nothing: hits 0, 0, 0, 0."""
    server = serving(ReferenceBlockManager(20, 2))
    prompts = [[1, 23, 5], [12, 3, 5], [1, 2, 35], [123, 0, 5]]
    assert [server.run(server.prompt(tokens)) for tokens in prompts] == [0, 0, 0, 0]


def test_the_same_tokens_elsewhere_are_no_hit(serving):
    """Case E9: with A and B cached as first blocks, B A hits B only; a worker with A only, 0."""
    a, b = [1, 2, 3, 4], [5, 6, 7, 8]
    server, with_a, with_b = (serving(ReferenceBlockManager(20, 4)) for _ in range(3))
    for worker, blocks in ((server, (a, b)), (with_a, (a,)), (with_b, (b,))):
        for block in blocks:
            worker.run(worker.prompt([*block, 0]))
    assert [worker.look_up([*b, *a, 0]) for worker in (server, with_a, with_b)] == [4, 0, 4]


def test_salt_is_in_the_first_block_and_lora_in_all(server):
    """Easy mistake 7: the salt reaches later blocks through their parents only; "" is none."""
    salted = server.prompt(range(12), salt="s").keys
    assert salted.extra_keys(0, 3) == [(("cache_salt", "s"),), None, None]
    adapted = server.prompt(range(12), lora=("x", "/x")).keys
    assert adapted.extra_keys(0, 3) == [(("lora", "x", "/x"),)] * 3
    contents = [{}, {"salt": ""}, {"salt": "s"}, {"salt": "t"}, {"salt": "s"}]
    assert [server.run(server.prompt(range(13), **c)) for c in contents] == [0, 12, 0, 0, 12]
