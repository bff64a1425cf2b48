from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies.vllm import VLLMBlockManager
from sim.errors import ConfigError, TraceError
from sim.keys import TokenKeys
from sim.replay import replay
from workloads.conversations import exchanges
from workloads.text_log import TextLog
from workloads.tokenizers import tokenizer

Write = Callable[..., Path]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_every_layout_gives_the_same_exchange() -> None:
    """OpenAI messages, a LiteLLM payload and a ShareGPT conversation say the same."""
    messages = [{"role": "system", "content": "be brief"}, user("hi")]
    completion = {"choices": [{"message": {"role": "assistant", "content": "hello"}}]}
    prompt = "<|system|>\nbe brief\n<|user|>\nhi\n<|assistant|>\n"
    for row in (
        {"messages": messages, "output": "hello", "timestamp": 12, "session_id": "s"},
        {"messages": messages, "response": completion, "startTime": 12.0, "trace_id": "s"},
        {"messages": messages, **completion, "created": 12, "user": "s"},
        {"messages": [messages[0], user([{"type": "text", "text": "hi"}])],
         "completion": "hello", "timestamp": "1970-01-01T00:00:12Z", "session_id": "s"},
    ):  # fmt: skip
        (found,) = exchanges(row)
        assert found == (prompt, "hello", 12.0, "s", 2)
    conversation = [
        {"from": "system", "value": "be brief"},
        {"from": "human", "value": "hi"},
        {"from": "gpt", "value": "hello"},
        {"from": "human", "value": "more"},
        {"from": "gpt", "value": "no"},
    ]
    first, second = exchanges({"id": "s", "conversations": conversation})
    assert first == (prompt, "hello", None, "s", 2)
    assert second.prompt == f"{prompt}hello\n<|user|>\nmore\n<|assistant|>\n"


@pytest.mark.parametrize(
    ("time", "seconds"),
    [(1_760_000_000, 1_760_000_000), (1_760_000_000_123, 1_760_000_000.123),
     (1_760_000_000_123_456, 1_760_000_000.123456), (4.5, 4.5)],
)  # fmt: skip
def test_the_unit_of_a_time_is_seen_from_its_size(time: float, seconds: float) -> None:
    (found,) = exchanges({"input": "a", "output": "b", "timestamp": time})
    assert found.time == pytest.approx(seconds, abs=1e-6)


def test_an_answer_that_the_next_prompt_repeats_is_hit(write: Write) -> None:
    """Prompt 8 and answer 8 characters, then a prompt of 24 that begins with both: 16 hit."""
    path = write(
        {"input": "question", "output": "replying", "timestamp": 0},
        {"input": "questionreplyingfollowup", "output": "x", "timestamp": 9},
    )
    manager = VLLMBlockManager(100, 4)
    assert replay(manager, TextLog(path, 4), decode=True).hit_tokens == 12
    # The last token of an answer is never stored, so its last block of 4 is not.


@pytest.mark.parametrize("hash_function", ["sha256", "sha256_cbor", "xxhash"])
def test_hashed_and_numbered_blocks_hit_the_same(write: Write, hash_function: Any) -> None:
    """The specified hashing of tokens gives the hits of the numbered chain."""
    texts = ["abcd" * 9, "abcd" * 9 + "xyz", "bbcd" * 9, "abcd" * 4 + "____" * 5]
    path = write(*({"input": t, "output": "ok " * 7, "timestamp": i} for i, t in enumerate(texts)))
    workload = TextLog(path, 4, hash_function=hash_function)
    assert all(isinstance(request.keys, TokenKeys) for request in workload)
    hits = [replay(VLLMBlockManager(99, 4), w, decode=True) for w in (workload, TextLog(path, 4))]
    assert hits[0] == hits[1]
    assert hits[0].hit_tokens == 36 + 16


def test_a_json_array_is_read_too(tmp_path: Path) -> None:
    """ShareGPT is one array over many lines; bad items are named by the line they begin in."""
    turns = [{"from": "human", "value": "a\nb"}, {"from": "gpt", "value": "c"}]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"id": i, "conversations": turns} for i in range(50)], indent=2))
    workload = TextLog(path)
    assert [request.session for request in workload] == list(range(50))
    assert workload.notes == ("no times are recorded; requests arrive 1 s apart",)
    path.write_text('[\n{"id": 1,\n "conversations": []},\n\n{"id": 2}\n]')
    with pytest.raises(TraceError, match=r":5: .*it must have input, messages or conversations"):
        TextLog(path)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"input": "a"}, "the answer is missing"),
        ({"input": 5, "output": "b"}, "input is 5; it must be text"),
        ({"input": "", "output": "b"}, "the prompt has no tokens"),
        ({"messages": [], "output": "b"}, "messages is empty"),
        ({"messages": [5], "output": "b"}, "a message is 5"),
        ({"messages": [user(5)], "output": "b"}, "content is 5"),
        ({"messages": [user("a")], "choices": []}, "the answer is \\[\\]"),
        ({"input": "a", "output": "b", "timestamp": -1}, "timestamp is -1"),
        ({"input": "a", "output": "b", "timestamp": "soon"}, "timestamp is 'soon'"),
        ({"input": "a", "output": "b", "session_id": {}}, "session_id is {}"),
        ([], "the row is \\[\\]"),
    ],
)
def test_bad_rows_are_named(write: Write, row: Any, what: str) -> None:
    with pytest.raises(TraceError, match=f":2: .*{what}"):
        TextLog(write({"input": "a", "output": "b"}, row))


def test_some_times_are_not_enough(write: Write) -> None:
    """Case K3: a file in which only some requests have a time is refused."""
    path = write({"input": "a", "output": "b", "timestamp": 5}, {"input": "a", "output": "b"})
    with pytest.raises(TraceError, match="1 of 2 requests have a time"):
        TextLog(path)


def test_an_empty_answer_is_one_token(write: Write) -> None:
    workload = TextLog(write({"input": "a", "output": ""}))
    assert [request.max_tokens for request in workload] == [1]
    assert "1 of 1 answers are empty" in workload.notes[-1]


def test_tokenizers() -> None:
    """Bytes, characters, words; a function by its path; what is unknown is named."""
    assert list(tokenizer("bytes")("aé")) == [97, 195, 169]
    assert list(tokenizer("characters")("aé")) == [97, 233]
    words = tokenizer("words")
    assert list(words("to be or\n to be ")) == [0, 1, 2, 3, 1, 4]
    assert list(words("to")) == [0]
    assert list(tokenizer("builtins:bytes") and [1]) == [1]
    with pytest.raises(ConfigError, match="tokenizer is 'gpt'; it must be one of bytes"):
        tokenizer("gpt")
    with pytest.raises(ConfigError, match="cannot import nowhere"):
        tokenizer("nowhere:split")


def test_a_tokenizer_of_the_library_is_used(tmp_path: Path, write: Write) -> None:
    """`tokenizers:FILE` reads a tokenizer.json; a file that is none is an error of one line."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"to": 0, "be": 1, "or": 2, "[UNK]": 3}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    name = f"tokenizers:{tmp_path / 'tokenizer.json'}"
    assert list(tokenizer(name)("to be or not to be")) == [0, 1, 2, 3, 0, 1]
    (request,) = TextLog(write({"input": "to be or not", "output": "to be"}), 2, tokenizer=name)
    assert (request.num_prompt_tokens, request.max_tokens, len(request.keys)) == (4, 2, 3)
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        tokenizer(f"tokenizers:{tmp_path / 'broken.json'}")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tokenizers", "tiktoken"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=f"needs {name}; pip install {name}"):
            tokenizer(f"{name}:anything")


def test_an_encoding_that_does_not_exist_is_named() -> None:
    pytest.importorskip("tiktoken")
    with pytest.raises(ConfigError, match="encoding 'no-such' cannot be loaded"):
        tokenizer("tiktoken:no-such")
