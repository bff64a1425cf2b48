"""Prompts put together from shared pieces: retrieved passages, examples, images, documents."""

from __future__ import annotations

from typing import Literal

import numpy as np

from sim.traffic import Lengths, Prompts, Turns
from workloads.arguments import one_of, real_number, whole_number
from workloads.length_models import Geometric, Lognormal, counts, lengths_of, whole
from workloads.library import Library
from workloads.streams import stream
from workloads.turn_builder import TurnBuilder


class _Asking(Prompts):
    """What the models of this file have in common: a question of its own, and an answer."""

    def __init__(
        self, question_tokens: Lengths | float | None, answer_tokens: Lengths | float | None
    ) -> None:
        def given(value: Lengths | float | None, mean: float, name: str) -> Lengths:
            return (
                Lognormal(mean) if value is None else lengths_of(value, type(self).__name__, name)
            )

        self._questions = given(question_tokens, 40, "question_tokens")
        self._answers = given(answer_tokens, 200, "answer_tokens")

    def _asked(self, num: int, seed: np.random.SeedSequence) -> list[tuple[int, int]]:
        """Lengths of *num* questions and answers."""
        questions = whole(self._questions.draw(num, stream(seed, "question")))
        answers = whole(self._answers.draw(num, stream(seed, "answer")))
        return list(zip(questions.tolist(), answers.tolist(), strict=True))


class Rag(_Asking):
    """System prompt, *num_retrieved* of *num_passages* passages, question.

    Passages are chosen by Zipf. *order*: `retrieved` (the best first, differently each time),
    `popular` (the most popular first) or `sorted` (one fixed order): what is equal in another order
    is not shared. RAGPulse, recorded, hits 18 % of its pieces as prefixes and 69 % anywhere.
    """

    def __init__(
        self,
        num_passages: int = 5000,
        *,
        num_retrieved: int = 6,
        zipf: float = 0.8,
        order: Literal["retrieved", "popular", "sorted"] = "retrieved",
        system_tokens: Lengths | float = 1000,
        passage_tokens: Lengths | float | None = None,
        question_tokens: Lengths | float | None = None,
        answer_tokens: Lengths | float | None = None,
    ) -> None:
        super().__init__(question_tokens, answer_tokens)
        passage = Lognormal(350) if passage_tokens is None else passage_tokens
        self._passages = Library("Rag", "passage", num_passages, zipf, passage)
        self._system = Library("Rag", "system", 1, 0.0, system_tokens)
        self.num_retrieved = whole_number("Rag", "num_retrieved", num_retrieved, 1)
        self.order = one_of("Rag", "order", order, ("retrieved", "popular", "sorted"))

    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        build = TurnBuilder(1)
        system = int(self._system.tokens(seed)[0])
        tokens = self._passages.tokens(seed).tolist()
        sets = self._passages.choose_sets(num_sessions, self.num_retrieved, seed)
        if self.order != "retrieved":  # contents are numbered by popularity
            sets = np.sort(sets, axis=1)
        if self.order == "sorted":
            names = stream(seed, "names").permutation(self._passages.num)
            sets = np.take_along_axis(sets, np.argsort(names[sets], axis=1), axis=1)
        for session, (chosen, asked) in enumerate(
            zip(sets.tolist(), self._asked(num_sessions, seed), strict=True)
        ):
            context, parent = build.begin([(0, system)]), 0
            for passage in chosen:
                parent = build.chained(parent, passage)
                context.append(parent, tokens[passage])
            context.append(build.new_id(), asked[0])
            build.add(context, session, asked[1], build.new_id())
        return build.done()


class FewShot(_Asking):
    """One of *num_tasks* instructions, its *num_shots* examples, a question.

    *shuffled*: the examples of a task stand in another order each time, so that only the
    instruction and perhaps the first of them are shared.
    """

    def __init__(
        self,
        num_tasks: int = 50,
        *,
        num_shots: int = 5,
        zipf: float = 1.0,
        shuffled: bool = False,
        instruction_tokens: Lengths | float = 200,
        shot_tokens: Lengths | float = 300,
        question_tokens: Lengths | float | None = None,
        answer_tokens: Lengths | float | None = None,
    ) -> None:
        super().__init__(question_tokens, answer_tokens)
        self.num_shots = whole_number("FewShot", "num_shots", num_shots, 0)
        self.shuffled = shuffled
        self._tasks = Library("FewShot", "task", num_tasks, zipf, instruction_tokens)
        num_examples = max(1, num_tasks * self.num_shots)
        self._shots = Library("FewShot", "shot", num_examples, 0.0, shot_tokens)

    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        build = TurnBuilder(self._tasks.num)
        tasks, shots = self._tasks.tokens(seed).tolist(), self._shots.tokens(seed).tolist()
        order = stream(seed, "order")
        chosen = self._tasks.choose(num_sessions, seed).tolist()
        for session, (task, asked) in enumerate(
            zip(chosen, self._asked(num_sessions, seed), strict=True)
        ):
            examples = np.arange(task * self.num_shots, (task + 1) * self.num_shots)
            if self.shuffled:
                order.shuffle(examples)
            context, parent = build.begin([(task, tasks[task])]), task
            for shot in examples.tolist():
                parent = build.chained(parent, shot)
                context.append(parent, shots[shot])
            context.append(build.new_id(), asked[0])
            build.add(context, session, asked[1], build.new_id())
        return build.done()


class Images(_Asking):
    """System prompt, an image of *image_tokens* placeholder tokens, question; not all have one.

    *num_images* images are chosen by Zipf; a request has one with chance *share*. Equal image and
    equal text before it are equal blocks, as vLLM hashes the image into the placeholders.
    """

    def __init__(
        self,
        num_images: int = 1000,
        *,
        zipf: float = 0.7,
        share: float = 0.5,
        image_tokens: Lengths | float = 1024,
        system_tokens: Lengths | float = 200,
        question_tokens: Lengths | float | None = None,
        answer_tokens: Lengths | float | None = None,
    ) -> None:
        super().__init__(question_tokens, answer_tokens)
        self._images = Library("Images", "image", num_images, zipf, image_tokens)
        self._system = Library("Images", "system", 1, 0.0, system_tokens)
        self.share = real_number("Images", "share", share)

    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        build = TurnBuilder(1)
        system, tokens = int(self._system.tokens(seed)[0]), self._images.tokens(seed).tolist()
        chosen = self._images.choose(num_sessions, seed).tolist()
        with_image = (stream(seed, "share").random(num_sessions) < self.share).tolist()
        for session, (image, has_image, asked) in enumerate(
            zip(chosen, with_image, self._asked(num_sessions, seed), strict=True)
        ):
            context = build.begin([(0, system)])
            if has_image:
                context.append(build.chained(0, image), tokens[image])
            context.append(build.new_id(), asked[0])
            build.add(context, session, asked[1], build.new_id())
        return build.done()


class Documents(_Asking):
    """A long document and several questions about it: one after the other, each on its own.

    *num_documents* are chosen by Zipf; a session has *num_questions*, *think_s* seconds after each
    answer, none of which sees the others. Hints: type, turn.
    """

    hints = frozenset({"type", "turn"})

    def __init__(
        self,
        num_documents: int = 100,
        *,
        zipf: float = 0.8,
        document_tokens: Lengths | float | None = None,
        num_questions: Lengths | float | None = None,
        think_s: Lengths | float = 20.0,
        question_tokens: Lengths | float | None = None,
        answer_tokens: Lengths | float | None = None,
    ) -> None:
        super().__init__(question_tokens, answer_tokens)
        document = Lognormal(20_000, 0.5) if document_tokens is None else document_tokens
        self._documents = Library("Documents", "document", num_documents, zipf, document)
        self._counts = (
            Geometric(5)
            if num_questions is None
            else lengths_of(num_questions, "Documents", "num_questions")
        )
        self._thinking = lengths_of(think_s, "Documents", "think_s")

    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        build = TurnBuilder(self._documents.num)
        tokens = self._documents.tokens(seed).tolist()
        chosen = self._documents.choose(num_sessions, seed).tolist()
        drawn = self._counts.draw(num_sessions, stream(seed, "questions"))
        num_each = counts(drawn, "Documents", "num_questions").tolist()
        asked = iter(self._asked(sum(num_each), seed))
        pauses = iter(self._thinking.draw(sum(num_each), stream(seed, "think")).tolist())
        for session, (document, count) in enumerate(zip(chosen, num_each, strict=True)):
            follows: tuple[int, ...] = ()
            for turn in range(1, count + 1):
                question, answer = next(asked)
                context = build.begin([(document, tokens[document])])
                context.append(build.new_id(), question)
                pause = next(pauses)
                follows = (
                    build.add(
                        context, session, answer, build.new_id(), follows=follows,
                        pause=pause if follows else 0.0, type="document", turn=turn,
                    ),
                )  # fmt: skip
        return build.done()
