"""Logs of text as prompts and answers: LMCache agents, OpenAI messages, LiteLLM, ShareGPT.

| layout | one JSON object is |
| --- | --- |
| LMCache | a request: `input`, `output`, `timestamp`, `session_id` |
| OpenAI, LiteLLM | a request: `messages`, and the answer in `output`, `response` or `choices` |
| ShareGPT | `conversations`, in which each turn of `gpt` is the answer to a request |

Messages are rendered by a neutral template: a line with the role, then the content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from reprlib import repr as short_repr
from typing import Any, NamedTuple

from workloads import fields

TIMES = ("timestamp", "created", "startTime", "start_time", "created_at")
SESSIONS = ("session_id", "conversation_id", "trace_id", "user", "end_user")
ANSWERS = ("output", "response", "choices", "completion")
ROLES = {"human": "user", "gpt": "assistant"}
ASSISTANT = "assistant"

MICROSECONDS, MILLISECONDS = 1e14, 1e11  # times since 1970 are above these in these units


class Exchange(NamedTuple):
    """A prompt and its answer; *time* in seconds from any origin, None if it is not recorded."""

    prompt: str
    answer: str
    time: float | None
    session: int | str | None
    turn: int


def exchanges(value: Any) -> Iterator[Exchange]:
    """The requests in one JSON object; ValueError if it has none of the layouts."""
    row = fields.record(value)
    if "conversations" in row:
        yield from _sharegpt(row)
    elif "messages" in row:
        messages = _messages(row["messages"])
        answer = _answer(row)
        yield Exchange(rendered(messages), answer, _time(row), _session(row), len(messages))
    elif "input" in row:
        prompt = fields.text(row, "input")
        yield Exchange(prompt, _answer(row), _time(row), _session(row), 0)
    else:
        raise ValueError(
            f"the row has {short_repr(sorted(row))}; it must have input, messages or conversations"
        )


def rendered(messages: list[tuple[str, str]]) -> str:
    """A conversation as text that ends where the assistant begins to speak."""
    turns = (f"<|{role}|>\n{content}\n" for role, content in messages)
    return f"{''.join(turns)}<|{ASSISTANT}|>\n"


def _sharegpt(row: fields.Record) -> Iterator[Exchange]:
    turns = [
        (ROLES.get(role, role), content)
        for role, content in _pairs(row["conversations"], "from", "value")
    ]
    session, time = row.get("id"), _time(row)
    for i, (role, content) in enumerate(turns):
        if role == ASSISTANT and i:
            name = session if type(session) in (int, str) else None
            yield Exchange(rendered(turns[:i]), content, time, name, i)


def _messages(value: Any) -> list[tuple[str, str]]:
    messages = list(_pairs(value, "role", "content"))
    if not messages:
        raise ValueError("messages is empty; a request has at least one")
    return messages


def _pairs(value: Any, role: str, content: str) -> Iterator[tuple[str, str]]:
    if type(value) is not list:
        raise ValueError(f"the messages are {short_repr(value)}; they must be a list")
    for message in value:
        row = fields.record(message, "a message")
        yield fields.text(row, role), _content(row.get(content))


def _content(value: Any) -> str:
    """The text of a message: a string, a list of parts, or nothing (a call of a tool)."""
    if value is None:
        return ""
    if type(value) is str:
        return value
    if type(value) is list:
        return "".join(_part(part) for part in value)
    raise ValueError(f"content is {short_repr(value)}; it must be text or a list of parts")


def _part(part: Any) -> str:
    row = fields.record(part, "a part of content")
    return fields.text(row, "text") if "text" in row else f"<{row.get('type')}>"


def _answer(row: fields.Record) -> str:
    name = next((name for name in ANSWERS if row.get(name) is not None), None)
    if name is None:
        raise ValueError(f"the answer is missing; it must be one of {', '.join(ANSWERS)}")
    return _answer_text(row[name])


def _answer_text(value: Any) -> str:
    """The text of an answer: as it is, in a message, or in the first choice of a response."""
    for _ in range(4):  # response -> choices -> message -> content
        if type(value) is str:
            return value
        if type(value) is list and value:
            value = value[0]
        elif isinstance(value, Mapping):
            inner = ("choices", "message", "content", "text")
            found = next((value[name] for name in inner if value.get(name) is not None), "")
            value = found
        else:
            break
    if type(value) is str:
        return value
    raise ValueError(f"the answer is {short_repr(value)}; it must be text or a chat completion")


def _session(row: fields.Record) -> int | str | None:
    return next((fields.name_of(row, name) for name in SESSIONS if row.get(name) is not None), None)


def _time(row: fields.Record) -> float | None:
    """Seconds; whether a number since 1970 counts s, ms or us is seen from its size."""
    name = next((name for name in TIMES if row.get(name) is not None), None)
    if name is None:
        return None
    value = row[name]
    if type(value) is str:
        return moment(value, name)
    time = fields.time(row, name, "a time")
    scale = 1e6 if time >= MICROSECONDS else 1e3 if time >= MILLISECONDS else 1.0
    return time / scale


def moment(text: str, name: str) -> float:
    """Seconds since 1970 of a time as text, in UTC if it names no zone."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{name} is {short_repr(text)}; it must be a time such as "
            "2026-01-31T12:00:00Z, or a number"
        ) from None
