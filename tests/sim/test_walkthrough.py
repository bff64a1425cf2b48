"""The specification's worked example, told by the manager itself.

The recorded text is what `kvsim example configs/seed_example.yaml` prints.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.analysis.walkthrough import walkthrough
from sim.errors import ConfigError
from sim.spec.config import load

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "configs" / "seed_example.yaml"


def told(source):
    """Per time: its sentence, and the value of each label."""
    moments = {}
    for part in walkthrough(source).split("\n\nTime ")[1:]:
        time, sentence = re.match(r"(\S+)\. (.*)", part).groups()
        facts = dict(re.findall(r"(?m)^  (\S.{10}) (.*(?:\n {14}.*)*)$", part))
        facts = {label.strip(): re.sub(r"\s+", " ", value) for label, value in facts.items()}
        moments[int(time)] = {"says": sentence} | facts
    return moments


def variant(**manager):
    """The example with another manager."""
    script = load(EXAMPLE).data
    return script | {"manager": script["manager"] | manager}


@pytest.fixture(scope="module")
def moments():
    return told(EXAMPLE)


def test_the_text_is_as_recorded():
    """Every character is as in tests/golden/seed_example.txt, and no line is over 100 columns."""
    text = walkthrough(EXAMPLE)
    assert text + "\n" == (ROOT / "tests" / "golden" / "seed_example.txt").read_text()
    assert max(map(len, text.splitlines())) <= 100


def test_time_1(moments):
    """The cache is empty; four blocks, three full and cached, the fourth with 3 of 4 tokens."""
    now = moments[1]
    assert now["says"] == "Request 0 arrives with 15 tokens: 0 blocks hit (0 tokens), 4 new."
    assert (now["hit"], now["new"], now["evicted"]) == ("none", "0 1 2 3", "none")
    assert now["request 0"] == "0* 1* 2* 3 (3/4)"
    assert now["cached"] == "0 [0 1 2 3] 1 [4 5 6 7] 2 [8 9 10 11]"
    assert now["free queue"] == "4 5 6 7 8 9"


def test_time_2(moments):
    """Request 0 fills block 3, which is cached, and gets block 4 to go on decoding."""
    now = moments[2]
    assert now["says"] == "Request 0 decodes 2 tokens, fills block 3 and gets block 4."
    assert now["new"] == "4"
    assert now["request 0"] == "0* 1* 2* 3* 4 (1/4)"
    assert now["cached"].endswith("3 [12 13 14 15]")


def test_time_3(moments):
    """Request 1: 14 tokens, the first 10 equal; two blocks (8 tokens) hit, not the third."""
    now = moments[3]
    assert now["says"] == "Request 1 arrives with 14 tokens: 2 blocks hit (8 tokens), 2 new."
    assert (now["hit"], now["new"]) == ("0 1", "5 6")
    assert now["request 1"] == "0* 1* 5* 6 (2/4)"
    assert now["cached"].endswith("5 [8 9 50 51]")
    assert now["free queue"] == "7 8 9"


def test_time_4(moments):
    """Request 0 ends: 4, 3, 2 join the queue, 2 and 3 still cached; 0 and 1 stay in use."""
    now = moments[4]
    assert now["freed"] == "4 3 2"
    assert now["says"].endswith("0 1 still in use.")
    assert now["free queue"] == "7 8 9 4 3 2"
    assert "2 [8 9 10 11] 3 [12 13 14 15]" in now["cached"]
    assert "request 0" not in now


def test_time_5(moments):
    """Request 1 ends: the free queue is 7 8 9 4 3 2 6 5 1 0."""
    now = moments[5]
    assert now["freed"] == "6 5 1 0"
    assert now["free queue"] == "7 8 9 4 3 2 6 5 1 0"


def test_time_6(moments):
    """Request 2 hits 0, 1, 2, which leave the queue first; then 7 8 9 4 3, and 3 is evicted."""
    now = moments[6]
    assert now["says"] == "Request 2 arrives with 29 tokens: 3 blocks hit (12 tokens), 5 new."
    assert now["hit"] == "0 1 2, which leaves 7 8 9 4 3 6 5 in the free queue"
    assert now["new"] == "7 8 9 4 3"
    assert now["evicted"] == "3 [12 13 14 15]"
    assert now["request 2"] == "0* 1* 2* 7* 8* 9* 4* 3 (1/4)"
    assert now["free queue"] == "6 5"


def test_with_a_null_block_every_id_is_one_higher(moments):
    """Real vLLM needs 11 blocks for the same story: the ids are the example's plus one."""
    shifted = told(variant(num_blocks=11, null_block=True))
    for label in ("hit", "new", "free queue"):
        ids = re.findall(r"\d+", moments[6][label])
        assert re.findall(r"\d+", shifted[6][label]) == [str(int(i) + 1) for i in ids]
    assert shifted[6]["evicted"].startswith("4 ")


def test_where_unhashed_blocks_go_first_nothing_is_evicted():
    """vLLM >= 0.24: 4 goes to the front, then 6; request 2 gets 6 4 7 8 9 and evicts nothing."""
    moments = told(variant(free_order="unhashed_first"))
    assert moments[4]["free queue"] == "4 7 8 9 3 2"
    assert moments[5]["free queue"] == "6 4 7 8 9 3 2 5 1 0"
    assert (moments[6]["new"], moments[6]["evicted"]) == ("6 4 7 8 9", "none")
    assert moments[6]["free queue"] == "3 5"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stps": []}, r"stps: unknown; did you mean 'steps'\? \(it takes: manager, requests, st"),
        ({"manager": None}, "manager is null; it must be the name of a block manager"),
        ({"requests": 3}, "requests is 3; it must be a list"),
        ({"requests": [{"id": 0}]}, r"requests\[0\]: needs prompt"),
        ({"requests": [{"id": 0, "prompt": []}]}, r"requests\[0\].prompt is empty; it must have"),
        ({"requests": [{"id": 0, "prompt": ["a"]}]}, r"requests\[0\].prompt"),
        ({"requests": [{"id": 0, "prompt": [1]}] * 2}, r"requests\[1\].id is 0 again"),
        ({"steps": ["go"]}, r"steps\[0\] is 'go'; it must be a mapping of time, arrive"),
        ({"steps": [{"time": 1, "arive": 0}]}, r"steps\[0\].arive: unknown; did you mean 'arrive'"),
        ({"steps": [{"time": 1}]}, r"steps\[0\]: a step is one of arrive, decode, finish"),
        ({"steps": [{"time": 1, "arrive": 0, "finish": 0}]}, "a step is one of arrive, decode, fi"),
        ({"steps": [{"time": 1, "decode": 0}]}, "decode needs tokens, the sampled token ids"),
        ({"steps": [{"time": 1, "arrive": 7}]}, r"arrive is 7; no such request waits \(0, 1, 2\)"),
        ({"steps": [{"time": 1, "finish": 0}]}, r"finish is 0; no such request runs \(none\)"),
    ],
)
def test_a_script_that_makes_no_sense_is_refused(change, message):
    """One line that says where, what and what would do."""
    with pytest.raises(ConfigError, match=message) as refused:
        walkthrough(load(EXAMPLE).data | change)
    assert "\n" not in str(refused.value)


def test_a_pool_that_is_too_small_is_refused():
    """A request without room has no story: the error names the step and the remedy."""
    with pytest.raises(ConfigError, match=r"steps\[5\].arrive: request 2 needs more than the 7 fr"):
        walkthrough(variant(num_blocks=7))


def test_a_manager_without_block_ids_has_no_story():
    """The span manager keeps no ids; the error names the one that does."""
    with pytest.raises(ConfigError, match="the manager has no block ids; write use: reference"):
        walkthrough(variant(use="vllm"))


def test_errors_name_the_line(tmp_path):
    """In a file, the error begins with file and line."""
    script = tmp_path / "script.yaml"
    script.write_text(EXAMPLE.read_text().replace("finish: 1", "finish: 9"))
    line = script.read_text().splitlines().index("  - {time: 5, finish: 9}") + 1
    with pytest.raises(ConfigError, match=rf"script.yaml:{line}: steps\[4\].finish is 9"):
        walkthrough(script)
