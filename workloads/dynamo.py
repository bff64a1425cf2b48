"""Dynamo's request traces: JSON events of a frontend, with block hashes and measurements.

An event is `{"timestamp": ms, "event": {"event_type", "agent_context": {"session_id"}, ...}}`. One
of type `request_end` holds `request.replay.{trace_block_size, input_length,
input_sequence_hashes}` (ceil(input_length / trace_block_size) hashes), when the request was
received, and what was measured; `tool_start` names the tool that an agent called.
Source: ai-dynamo/dynamo, schema `dynamo.request.trace.v1`.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from workloads import fields
from workloads.lines import lines, parse
from workloads.recorded import Recorded, Row

TOOLS = frozenset({"tool_start", "tool_end", "tool_error"})


class Dynamo(Recorded):
    """The requests that ended in a Dynamo trace, by the time they were received.

    Arguments as for Mooncake; *block_size* is the trace's unless given. Hints: `tool`, what the
    answer called first, or None; `cached_tokens`, `ttft_s`, `total_s`, as the engine measured them
    (None where it did not).
    """

    format_name: ClassVar[str] = "Dynamo request"
    unit: str = "milliseconds"
    units_per_second: float = 1000.0
    time_field: str = "request_received_ms"
    hints = frozenset({"tool", "cached_tokens", "ttft_s", "total_s"})

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int | None = None,
        *,
        limit: int | None = None,
        time_scale: float = 1.0,
        lenient: bool = False,
    ) -> None:
        super().__init__(path, block_size or 1, limit=limit, time_scale=time_scale, lenient=lenient)
        self.trace_block_size = 0
        self._latest: dict[int | str | None, dict[str, Any]] = {}  # hints of a session's last row
        self._load(lines(self.path), self._row)
        del self._latest
        if block_size is None:
            self.block_size = self.trace_block_size

    def _row(self, line: bytes) -> Row | None:
        event = fields.record(fields.field(fields.record(parse(line)), "event"), "event")
        kind = fields.text(event, "event_type")
        context = fields.record(event.get("agent_context") or {}, "agent_context")
        session = fields.name_of(context, "session_id")
        if kind == "request_end":
            return self._request(session, fields.record(fields.field(event, "request"), "request"))
        if kind == "tool_start" and session in self._latest:
            tool = fields.record(fields.field(event, "tool"), "tool")
            hints = self._latest[session]
            hints["tool"] = hints["tool"] or fields.text(tool, "tool_class")
        return None

    def _request(self, session: int | str | None, request: fields.Record) -> Row:
        received = fields.time(request, "request_received_ms", self.unit)
        num_output = max(1, fields.whole(request, "output_tokens", 0))
        replay = fields.record(fields.field(request, "replay"), "replay")
        num_prompt = fields.whole(replay, "input_length")
        fields.check_length(num_prompt + num_output, self.block_size, "the number of tokens")
        hashes = fields.ids(replay, "input_sequence_hashes")
        chunk = fields.whole(replay, "trace_block_size")
        if chunk != (self.trace_block_size or chunk):
            raise ValueError(
                f"trace_block_size is {chunk}; it must be {self.trace_block_size} as before"
            )
        fields.check_num_ids(len(hashes), num_prompt, chunk, ("input_sequence_hashes", "input"))
        self.trace_block_size = chunk
        hints: dict[str, Any] = {"tool": None} | _measured(request)
        self._latest[session] = hints
        return Row(received, num_prompt, num_output, hashes, session, hints)


def _measured(request: fields.Record) -> dict[str, float | None]:
    """What the engine measured of this request."""
    has = {name for name, value in request.items() if value is not None}
    return {
        "cached_tokens": fields.whole(request, "cached_tokens", 0)
        if "cached_tokens" in has
        else None,
        **{
            name: fields.time(request, source, "milliseconds") / 1000 if source in has else None
            for name, source in (("ttft_s", "ttft_ms"), ("total_s", "total_time_ms"))
        },
    }
