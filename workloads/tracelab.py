"""TraceLab's rounds: coding agents at commercial providers, with what the providers' caches hit.

A row is one request: `{"session_id", "round_index", "model", "input_tokens_total", "prefix_tokens",
"newly_append_tokens", "output_tokens", "timing_events": [{"event_type", "timestamp"}], "tools"}`.
There are no ids: what stands in a prompt is not known, only how much of it was hit. Source:
uw-syfi/TraceLab.
"""

from __future__ import annotations

import os
from array import array
from typing import Any, ClassVar

from sim.keys import BlockKeys, SegmentKeys
from workloads import fields
from workloads.conversations import moment
from workloads.lines import lines, parse
from workloads.recorded import Recorded, Row

INPUTS = ("user_message", "tool_result")

Context = list[tuple[int, int]]  # segments: id, end


class TraceLab(Recorded):
    """The rounds of all sessions, by the time of their last input, with content that fits the hits.

    A prompt begins with the first `prefix_tokens` tokens of the round before it in its session (of
    a text that all sessions of the model share, in the first round); the rest is new. That is the
    least sharing that explains what was hit, and no more than a model of the content: a note says
    so. Arguments as for Mooncake. Hints: turn, tool (the first that the answer calls, or None),
    prefix_tokens.
    """

    format_name: ClassVar[str] = "TraceLab"
    time_field: str = "timing_events"
    hints = frozenset({"turn", "tool", "prefix_tokens"})

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int = 16,
        *,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        super().__init__(path, block_size, limit=limit, time_scale=time_scale, lenient=lenient)
        self.trace_block_size = 1
        self._ends = array("q")
        self._contexts: dict[int | str | None, Context] = {}
        self._models: dict[str, int] = {}
        self._num_ids = 0
        self._load(lines(self.path), self._row)
        del self._contexts, self._models
        self.notes += (
            "the trace has no ids; content was made up so that it explains what the providers' "
            "caches hit",
        )

    def _keys(self, row: int, start: int, stop: int, num_prompt: int, num_output: int) -> BlockKeys:
        return SegmentKeys(self._id_view[start:stop], self._ends[start:stop], self.block_size)

    def _row(self, line: bytes) -> Row:
        row = fields.record(parse(line))
        num_prompt = fields.whole(row, "input_tokens_total")
        prefix = fields.whole(row, "prefix_tokens", 0)
        new = fields.whole(row, "newly_append_tokens", 0)
        num_output = max(1, fields.whole(row, "output_tokens", 0))
        if num_prompt != prefix + new:
            raise ValueError(
                f"input_tokens_total is {num_prompt}; it must be prefix_tokens + "
                f"newly_append_tokens, {prefix + new}"
            )
        fields.check_length(num_prompt + num_output, self.block_size, "the number of tokens")
        session, model = fields.name_of(row, "session_id"), fields.text(row, "model")
        hints = {
            "turn": fields.whole(row, "round_index", 0) + 1,
            "tool": _first_tool(row),
            "prefix_tokens": prefix,
        }
        time = _last_input(row)
        context = self._kept(session, model, prefix)
        if not context or context[-1][1] < num_prompt:
            context.append((self._new_id(), num_prompt))
        context.append((self._new_id(), num_prompt + num_output))
        self._contexts[session] = context
        self._ends.extend(end for _, end in context)
        ids = [one for one, _ in context]
        return Row(time, num_prompt, num_output, ids, session, hints)

    def _kept(self, session: int | str | None, model: str, prefix: int) -> Context:
        """The first *prefix* tokens of the round before, or of the text of the model."""
        before = self._contexts.get(session)
        if before is None:
            shared = self._models.get(model)
            if shared is None:
                shared = self._models[model] = self._new_id()
            before = [(shared, prefix)]
        kept, start = Context(), 0
        for one, end in before:
            if start >= prefix:
                break
            kept.append((one, min(end, prefix)))
            start = end
        return kept

    def _new_id(self) -> int:
        self._num_ids += 1
        return self._num_ids - 1


def _first_tool(row: fields.Record) -> str | None:
    tools = row.get("tools") or []
    if type(tools) is not list:
        raise ValueError("tools is no list")
    return fields.text(fields.record(tools[0], "a tool"), "tool_name") if tools else None


def _last_input(row: fields.Record) -> float:
    """When the last message or result before the answer had come, in seconds."""
    events = fields.field(row, "timing_events")
    if type(events) is not list or not events:
        raise ValueError("timing_events is empty; it must say when the round began")
    last: Any = None
    for event in events:
        named = fields.record(event, "an event")
        if last is not None and fields.text(named, "event_type") not in INPUTS:
            break
        last = moment(fields.text(named, "timestamp"), "timestamp")
    return float(last)
