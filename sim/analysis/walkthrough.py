"""A block manager step by step, in words: what every block holds after each of a few operations.

The text is made from what the manager did, never from what the script's author expected.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence

from sim.analysis.walkthrough_script import Prompt, Script, Step
from sim.cache import NO_HIT, BlockManager, Hit
from sim.errors import ConfigError
from sim.events import BlockRemoved, KVEvent
from sim.keys import TokenKeys
from sim.request import Request, RequestStatus
from sim.spec.place import Place, show

WIDTH = 100
LABEL_WIDTH = 14
Facts = list[tuple[str, str]]


def walkthrough(source: str | os.PathLike[str] | Mapping[str, object]) -> str:
    """The story of a script (configs/seed_example.yaml), as text for a terminal of 100 columns.

    *source*: a YAML file or the same as a mapping. ConfigError, naming file and line, if it
    cannot be read, if a step cannot happen, or if the manager has no block ids.
    """
    script = Script(source)
    walk = _Walk(script)
    return "\n\n".join([_title(script.manager), *(walk.take(*step) for step in script.steps)])


class _Walk:
    """The manager, the requests it serves, and what was read of its blocks."""

    def __init__(self, script: Script) -> None:
        self.manager = script.manager
        self.manager.events = self._listen
        self.waiting: dict[int | str, Prompt] = dict(script.prompts)
        self.running: dict[int | str, Request] = {}
        self.contents: dict[Hashable, Sequence[int]] = {}  # block key -> its token ids
        self.evicted: list[BlockRemoved] = []

    def _listen(self, event: KVEvent) -> None:
        if isinstance(event, BlockRemoved):
            self.evicted.append(event)

    def take(self, place: Place, step: Step) -> str:
        """What happens in one step, and how things stand after it."""
        self.evicted.clear()
        place, among = place / step.verb, self.waiting if step.verb == "arrive" else self.running
        if step.name not in among:
            state = "waits" if step.verb == "arrive" else "runs"
            names = ", ".join(map(show, among)) or "none"
            raise ConfigError(f"{place} is {show(step.name)}; no such request {state} ({names})")
        if step.verb == "arrive":
            sentence, facts = self._arrive(self.waiting.pop(step.name), place)
        elif step.verb == "decode":
            sentence, facts = self._decode(self.running[step.name], step.tokens, place)
        else:
            sentence, facts = self._finish(self.running.pop(step.name))
        facts += [(f"request {name}", self._table(r)) for name, r in self.running.items()]
        facts += [("free queue", _ids(self._queue())), ("cached", self._cached())]
        return "\n".join([f"Time {step.time}. {sentence}", *(_lines(*fact) for fact in facts)])

    def _arrive(self, prompt: Prompt, place: Place) -> tuple[str, Facts]:
        manager, queue, num_tokens = self.manager, self._queue(), len(prompt.prompt)
        keys = TokenKeys(prompt.prompt, manager.block_size)
        request = Request(prompt.id, keys, num_tokens, max_tokens=1)
        self.running[prompt.id] = request
        hit = manager.get_computed_blocks(request)
        self._allocate(request, num_tokens - hit.num_tokens, hit, place)
        table = self._ids_of(request)
        hits = table[: hit.num_tokens // manager.block_size]
        new = table[len(hits) :]
        sentence = (
            f"Request {prompt.id} arrives with {_count(num_tokens, 'token')}: "
            f"{_count(len(hits), 'block')} hit ({hit.num_tokens} tokens), {len(new)} new."
        )
        left = f", which leaves {_ids(i for i in queue if i not in hits)} in the free queue"
        hit_text = _ids(hits) + (left if set(hits) & set(queue) else "")
        return sentence, [("hit", hit_text), ("new", _ids(new)), ("evicted", self._evictions())]

    def _decode(self, request: Request, tokens: Sequence[int], place: Place) -> tuple[str, Facts]:
        """Each sampled token gets its slot in the step after, as in vLLM."""
        keys, before = request.keys, self.manager.table(request.request_id)
        assert isinstance(keys, TokenKeys)
        for token in tokens:
            keys.append([token])
            request.num_output_tokens += 1
            self._allocate(request, 1, NO_HIT, place)
        after = self.manager.table(request.request_id)
        new = _ids(block.block_id for block in after[len(before) :])
        stored = [b.block_id for b, old in zip(after, before, strict=False) if b.key != old.key]
        what = [f"fills block {_ids(stored)}"] if stored else []
        what += [f"gets block {new}"] if len(after) > len(before) else []
        sentence = f"Request {request.request_id} decodes {_count(len(tokens), 'token')}"
        sentence = f"{', '.join([sentence, *what[:1]])}{''.join(f' and {w}' for w in what[1:])}."
        return sentence, [("new", new), ("evicted", self._evictions())]

    def _finish(self, request: Request) -> tuple[str, Facts]:
        queue, table = self._queue(), self._ids_of(request)
        self.manager.free(request)
        freed = [i for i in self._queue() if i not in queue]
        kept = [i for i in table if i not in freed]
        sentence = f"Request {request.request_id} finishes: {_count(len(freed), 'block')} freed"
        sentence += f", {_ids(kept)} still in use." if kept else "."
        return sentence, [("freed", _ids(freed))]

    def _allocate(self, request: Request, num_tokens: int, hit: Hit, place: Place) -> None:
        if self.manager.allocate_slots(request, num_tokens, hit) is None:
            raise ConfigError(
                f"{place}: request {show(request.request_id)} needs more than the "
                f"{self.manager.num_free_blocks} free blocks; raise manager.num_blocks"
            )
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens += hit.num_tokens + num_tokens
        for i, block in enumerate(self.manager.table(request.request_id)):
            if block.block_id is None:
                raise ConfigError(f"{place}: the manager has no block ids; write use: reference")
            if block.key is not None:
                self.contents[block.key] = request.keys.tokens(i, i + 1) or ()

    def _table(self, request: Request) -> str:
        """`0*  1*  4 (1/4)`: a star for what can be hit, else how full the block is."""
        size, cells = self.manager.block_size, []
        for i, block in enumerate(self.manager.table(request.request_id)):
            num_tokens = max(0, min(size, request.num_computed_tokens - i * size))
            state = "*" if block.key is not None else f" ({num_tokens}/{size})"
            cells.append(f"{block.block_id}{state}")
        return "  ".join(cells)

    def _queue(self) -> list[int | None]:
        return [block.block_id for block in self.manager.free_blocks()]

    def _ids_of(self, request: Request) -> list[int | None]:
        return [block.block_id for block in self.manager.table(request.request_id)]

    def _evictions(self) -> str:
        return _contents(
            (event.block_id, self.contents[event.block_hash]) for event in self.evicted
        )

    def _cached(self) -> str:
        copies = [
            (block.block_id, content)
            for key, content in self.contents.items()
            for block in self.manager.copies(key)
        ]
        return _contents(sorted(copies, key=lambda copy: copy[0] or 0))


def _title(manager: BlockManager) -> str:
    return (
        f"{manager.num_blocks} blocks of {manager.block_size} tokens. "
        "3* is block 3, full and cached; 3 (2/4) is block 3 with 2 of 4 tokens.\n"
        "The free queue begins with the block that is handed out next."
    )


def _lines(label: str, value: str) -> str:
    """`  label   value`; a long value goes on below itself, its cells kept whole."""
    lines = [""]
    for cell in value.split("  "):
        if lines[-1] and LABEL_WIDTH + len(lines[-1]) + 2 + len(cell) > WIDTH:
            lines.append("")
        lines[-1] += ("  " if lines[-1] else "") + cell
    return f"  {label}".ljust(LABEL_WIDTH) + ("\n" + " " * LABEL_WIDTH).join(lines)


def _ids(block_ids: Iterable[int | None]) -> str:
    return " ".join(map(str, block_ids)) or "none"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _contents(blocks: Iterable[tuple[int | None, Sequence[int]]]) -> str:
    """`0 [0 1 2 3]  1 [4 5 6 7]`."""
    return "  ".join(f"{i} [{' '.join(map(str, tokens))}]" for i, tokens in blocks) or "none"
