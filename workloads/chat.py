"""Conversations that grow: every turn sends the whole history, answers included."""

from __future__ import annotations

from typing import Literal

import numpy as np

from sim.traffic import Lengths, Prompts, Turns
from workloads.arguments import one_of, whole_number
from workloads.length_models import Geometric, Lognormal, counts, lengths_of, whole
from workloads.library import Library
from workloads.streams import stream
from workloads.turn_builder import Context, TurnBuilder


class Chat(Prompts):
    """Sessions of several turns behind one of *num_prompts* system prompts. Hints: type, turn.

    *num_turns*, *prompt_tokens*, *question_tokens*, *answer_tokens*, *think_s*: distributions.
    A user thinks *think_s* seconds after an answer. When a prompt would exceed *max_context*
    tokens, *when_full* decides: `end` the session; `truncate` the oldest turns (half of the
    context stays); `compact` the history into a summary of *summary_tokens*. Truncated or compacted
    history is new content: nothing behind the system prompt is hit again.
    """

    hints = frozenset({"type", "turn"})

    def __init__(
        self,
        num_prompts: int = 20,
        *,
        zipf: float = 1.0,
        prompt_tokens: Lengths | float = 512,
        num_turns: Lengths | float | None = None,
        question_tokens: Lengths | float | None = None,
        answer_tokens: Lengths | float | None = None,
        think_s: Lengths | float | None = None,
        max_context: int = 131_072,
        when_full: Literal["end", "truncate", "compact"] = "end",
        summary_tokens: Lengths | float = 1000,
    ) -> None:
        def given(value: Lengths | float | None, default: Lengths, name: str) -> Lengths:
            return default if value is None else lengths_of(value, "Chat", name)

        self._prompts = Library("Chat", "prompt", num_prompts, zipf, prompt_tokens)
        self._num_turns = given(num_turns, Geometric(4), "num_turns")
        self._questions = given(question_tokens, Lognormal(120), "question_tokens")
        self._answers = given(answer_tokens, Lognormal(250), "answer_tokens")
        self._thinking = given(think_s, Lognormal(30), "think_s")
        self._summaries = lengths_of(summary_tokens, "Chat", "summary_tokens")
        self.max_context = whole_number("Chat", "max_context", max_context, 1)
        self.when_full = one_of("Chat", "when_full", when_full, ("end", "truncate", "compact"))

    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        build = TurnBuilder(self._prompts.num)
        tokens = self._prompts.tokens(seed)
        chosen = self._prompts.choose(num_sessions, seed)
        num_turns = self._num_turns.draw(num_sessions, stream(seed, "turns"))
        num_each = counts(num_turns, "Chat", "num_turns")
        total = int(num_each.sum())
        drawn = [
            whole(lengths.draw(total, stream(seed, name)))
            for name, lengths in (
                ("question", self._questions),
                ("answer", self._answers),
                ("summary", self._summaries),
            )
        ]
        pauses = self._thinking.draw(total, stream(seed, "think"))
        first = 0
        for session, (prompt, count) in enumerate(
            zip(chosen.tolist(), num_each.tolist(), strict=True)
        ):
            last = first + count
            rows = [column[first:last].tolist() for column in (*drawn, pauses)]
            self._session(build, session, (prompt, int(tokens[prompt])), rows)
            first = last
        return build.done()

    def _session(
        self, build: TurnBuilder, session: int, system: tuple[int, int], rows: list[list[float]]
    ) -> None:
        context = build.begin([system])
        before: tuple[int, ...] = ()
        for turn, (question, answer, summary, pause) in enumerate(zip(*rows, strict=True), start=1):
            question, answer = int(question), int(answer)
            if turn > 1 and context.num_tokens + question + answer > self.max_context:
                if self.when_full == "end":
                    return
                context = self._shortened(build, context, int(summary))
            context.append(build.new_id(), question)
            index = build.add(
                context,
                session,
                answer,
                build.new_id(),
                pause=pause if before else 0.0,
                follows=before,
                type="chat",
                turn=turn,
            )
            before = (index,)

    def _shortened(self, build: TurnBuilder, context: Context, summary: int) -> Context:
        """A new context with the system prompt and what is kept of the history."""
        system, *history = context.segments()
        if self.when_full == "compact":
            return build.begin([system, (build.new_id(), summary)])
        room = self.max_context // 2 - system[1]
        kept: list[int] = []
        for _, num_tokens in reversed(history):
            room -= num_tokens
            if room < 0:
                break
            kept.insert(0, num_tokens)
        return build.begin([system, *((build.new_id(), num_tokens) for num_tokens in kept)])
