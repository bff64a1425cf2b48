"""Popular system prompts, each followed by a question of its own: the simplest shared traffic."""

from __future__ import annotations

import numpy as np

from sim.traffic import Lengths, Prompts, Turns
from workloads.length_models import Lognormal, lengths_of, whole
from workloads.library import Library
from workloads.streams import stream


class SharedPrompts(Prompts):
    """One request a session: one of *num_prompts* system prompts (Zipf), then a question.

    *prompt_tokens*, *question_tokens*, *answer_tokens*: lengths. Questions are never shared.
    """

    def __init__(
        self,
        num_prompts: int = 200,
        *,
        zipf: float = 1.0,
        prompt_tokens: Lengths | float = 1024,
        question_tokens: Lengths | float | None = None,
        answer_tokens: Lengths | float | None = None,
    ) -> None:
        self._prompts = Library("SharedPrompts", "prompt", num_prompts, zipf, prompt_tokens)
        self._questions = _or(question_tokens, Lognormal(256), "question_tokens")
        self._answers = _or(answer_tokens, Lognormal(128), "answer_tokens")

    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        num = num_sessions
        chosen = self._prompts.choose(num, seed)
        first = self._prompts.tokens(seed)[chosen]
        prompts = first + whole(self._questions.draw(num, stream(seed, "question")))
        outputs = whole(self._answers.draw(num, stream(seed, "answer")))
        own = self._prompts.num + 2 * np.arange(num)
        starts = 3 * np.arange(num)
        return Turns(
            sessions=np.arange(num),
            pauses=np.zeros(num),
            prompts=prompts,
            outputs=outputs,
            starts=starts,
            stops=starts + 3,
            ids=np.column_stack([chosen, own, own + 1]).ravel(),
            ends=np.column_stack([first, prompts, prompts + outputs]).ravel(),
        )


def _or(value: Lengths | float | None, default: Lengths, name: str) -> Lengths:
    return default if value is None else lengths_of(value, "SharedPrompts", name)
