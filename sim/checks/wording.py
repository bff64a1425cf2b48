"""Calls and states of a block manager in words, for programs that a check reports."""

from __future__ import annotations

from typing import Any

from sim.cache import BlockState, Hit
from sim.request import Request


def described(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """A call as one would write it, without what is left at its default."""
    words = [
        f"request {each.request_id}"
        if isinstance(each, Request)
        else f"hit of {each.num_tokens} tokens"
        if isinstance(each, Hit)
        else str(each)
        for each in arguments
        if not isinstance(each, Hit) or each.num_tokens
    ]
    usual = {"now": options.get("now"), "has_scheduled_reqs": True}
    words += [f"{key}={value}" for key, value in options.items() if value != usual.get(key, 0)]
    return f"{name}({', '.join(words)})"


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What has changed from one state to another."""
    names = [name for name in before if before[name] != after[name]]
    changes = [f"{name} was {before[name]}, is {after[name]}" for name in names]
    return "; ".join(changes) or "no other difference"


def show_table(table: list[BlockState]) -> str:
    """The contents of a table and how many requests use each."""
    return "[" + ", ".join(f"{block.key!r} x{block.ref_cnt}" for block in table) + "]"
