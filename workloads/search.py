"""Several answers to one prompt: parallel sampling, and search in a tree of partial answers."""

from __future__ import annotations

import numpy as np

from sim.errors import ConfigError
from sim.traffic import Lengths, Prompts, Turns
from workloads.arguments import whole_number
from workloads.length_models import Lognormal, lengths_of, whole
from workloads.streams import stream
from workloads.turn_builder import TurnBuilder

MOST_STEPS = 2**20  # of one search


class ParallelSampling(Prompts):
    """*num_samples* answers to every prompt (vLLM's n): as many requests at one moment.

    *prompt_tokens*, *answer_tokens*: lengths. Prompts of different sessions share nothing.
    """

    def __init__(
        self,
        num_samples: int = 8,
        *,
        prompt_tokens: Lengths | float | None = None,
        answer_tokens: Lengths | float | None = None,
    ) -> None:
        self.num_samples = whole_number("ParallelSampling", "num_samples", num_samples, 1)
        self._prompts = _given(prompt_tokens, 500, "ParallelSampling", "prompt_tokens")
        self._answers = _given(answer_tokens, 300, "ParallelSampling", "answer_tokens")

    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        build, num = TurnBuilder(), self.num_samples
        prompts = whole(self._prompts.draw(num_sessions, stream(seed, "prompt"))).tolist()
        answers = iter(
            whole(self._answers.draw(num_sessions * num, stream(seed, "answer"))).tolist()
        )
        for session, tokens in enumerate(prompts):
            prompt = build.new_id()
            for _ in range(num):
                context = build.begin([(prompt, tokens)])
                build.add(context, session, next(answers), build.new_id())
        return build.done()


class TreeSearch(Prompts):
    """Beam or tree search: *depth* levels, on each *width* partial answers with *branching* steps.

    All *width* x *branching* continuations of a level are requests at one moment; when all have
    ended, *width* of them are kept at random and go on. With *branching* 1 the beams only grow.
    *prompt_tokens*, *step_tokens*: lengths. Hint: turn, the level from 1.
    """

    hints = frozenset({"turn"})

    def __init__(
        self,
        width: int = 4,
        branching: int = 4,
        depth: int = 8,
        *,
        prompt_tokens: Lengths | float | None = None,
        step_tokens: Lengths | float | None = None,
    ) -> None:
        self.width = whole_number("TreeSearch", "width", width, 1)
        self.branching = whole_number("TreeSearch", "branching", branching, 1)
        self.depth = whole_number("TreeSearch", "depth", depth, 1)
        if self.width * self.branching * self.depth > MOST_STEPS:
            raise ConfigError(
                f"TreeSearch: width x branching x depth is {width * branching * depth}; it must be "
                f"at most {MOST_STEPS}"
            )
        self._prompts = _given(prompt_tokens, 500, "TreeSearch", "prompt_tokens")
        self._steps = _given(step_tokens, 60, "TreeSearch", "step_tokens")

    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        build = TurnBuilder()
        prompts = whole(self._prompts.draw(num_sessions, stream(seed, "prompt"))).tolist()
        for session, tokens in enumerate(prompts):
            self._search(build, session, tokens, stream(seed, "session", str(session)))
        return build.done()

    def _search(
        self, build: TurnBuilder, session: int, tokens: int, rng: np.random.Generator
    ) -> None:
        beams = [[(build.new_id(), tokens)]]
        follows: tuple[int, ...] = ()
        for level in range(1, self.depth + 1):
            num_each = self.branching if level > 1 else self.width * self.branching
            steps = whole(self._steps.draw(len(beams) * num_each, rng)).tolist()
            grown, indices = [], []
            for i, num_tokens in enumerate(steps):
                beam = beams[i // num_each]
                step = (build.new_id(), num_tokens)
                indices.append(
                    build.add(
                        build.begin(beam), session, num_tokens, step[0], follows=follows, turn=level
                    )
                )
                grown.append([*beam, step])
            kept = np.sort(rng.permutation(len(grown))[: self.width]).tolist()
            beams, follows = [grown[i] for i in kept], tuple(indices)


def _given(value: Lengths | float | None, mean: float, owner: str, name: str) -> Lengths:
    return Lognormal(mean) if value is None else lengths_of(value, owner, name)
