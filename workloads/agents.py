"""Agents: loops of model and tools on one growing context, with sub-agents that branch off."""

from __future__ import annotations

import numpy as np

from sim.traffic import Lengths, Prompts, Turns
from workloads.arguments import real_number, whole_number
from workloads.length_models import Geometric, Lognormal, counts, lengths_of, whole
from workloads.library import Library
from workloads.streams import stream
from workloads.turn_builder import TurnBuilder

TOOLS = ("read", "edit", "search", "run")
SUBAGENT = "subagent"


class Agents(Prompts):
    """A session is a task: *num_steps* answers of the model, each but the last calling a tool.

    The result of a tool (*result_tokens*, after *tool_s* seconds) joins the context. With chance
    *branching* a step starts *num_subagents* instead; each has *subagent_steps* steps on a context
    of its own behind the prompt of another agent, and the task goes on when all have ended.
    *num_agents* prompts of *prompt_tokens* (instructions and tools) are chosen by Zipf. Hints: type
    (`agent` or `subagent`), turn, tool (what the answer calls, or None).

    The defaults are near the mini-SWE log (20 tasks with 20 steps on average).
    """

    hints = frozenset({"type", "turn", "tool"})

    def __init__(
        self,
        num_agents: int = 5,
        *,
        zipf: float = 1.0,
        prompt_tokens: Lengths | float = 2000,
        task_tokens: Lengths | float | None = None,
        num_steps: Lengths | float | None = None,
        answer_tokens: Lengths | float | None = None,
        result_tokens: Lengths | float | None = None,
        tool_s: Lengths | float | None = None,
        branching: float = 0.0,
        num_subagents: int = 3,
        subagent_steps: Lengths | float | None = None,
    ) -> None:
        def given(value: Lengths | float | None, default: Lengths, name: str) -> Lengths:
            return default if value is None else lengths_of(value, "Agents", name)

        self._agents = Library("Agents", "agent", num_agents, zipf, prompt_tokens)
        self._tasks = given(task_tokens, Lognormal(800), "task_tokens")
        self._steps = given(num_steps, Geometric(20), "num_steps")
        self._answers = given(answer_tokens, Lognormal(150), "answer_tokens")
        self._results = given(result_tokens, Lognormal(600, 1.5), "result_tokens")
        self._tool_times = given(tool_s, Lognormal(2.0, 2.0), "tool_s")
        self._subagent_steps = given(subagent_steps, Geometric(6), "subagent_steps")
        self.branching = real_number("Agents", "branching", branching)
        self.num_subagents = whole_number("Agents", "num_subagents", num_subagents, 1)

    def turns(self, num_sessions: int, seed: np.random.SeedSequence) -> Turns:
        build = TurnBuilder(self._agents.num)
        self._tokens = self._agents.tokens(seed).tolist()
        chosen = self._agents.choose(num_sessions, seed).tolist()
        for session, agent in enumerate(chosen):
            rng = stream(seed, "session", str(session))
            self._run(build, session, agent, self._steps, rng, nested=False)
        return build.done()

    def _run(
        self,
        build: TurnBuilder,
        session: int,
        agent: int,
        steps: Lengths,
        rng: np.random.Generator,
        *,
        nested: bool,
        follows: tuple[int, ...] = (),
    ) -> int:
        """All steps of one agent; the index of its last request."""
        num = int(counts(steps.draw(1, rng), "Agents", "num_steps")[0])
        answers = whole(self._answers.draw(num, rng)).tolist()
        results = whole(self._results.draw(num, rng)).tolist()
        times = self._tool_times.draw(num, rng).tolist()
        branches = (rng.random(num) < (0 if nested else self.branching)).tolist()
        tools = rng.integers(len(TOOLS), size=num).tolist()
        task = int(whole(self._tasks.draw(1, rng))[0])
        held = [(agent, self._tokens[agent]), (build.new_id(), task)]
        context, index, pause = build.begin(held), -1, 0.0
        for step in range(num):
            is_last, branch = step == num - 1, branches[step]
            index = build.add(
                context,
                session,
                answers[step],
                build.new_id(),
                pause=pause,
                follows=follows,
                type=SUBAGENT if nested else "agent",
                turn=step + 1,
                tool=None if is_last else SUBAGENT if branch else TOOLS[tools[step]],
            )
            if is_last:
                break
            follows, pause = (index,), times[step]
            if branch:
                held = context.segments()
                follows = self._branch(build, session, rng, index)
                context, pause = build.begin(held), 0.0
            context.append(build.new_id(), results[step])
        return index

    def _branch(
        self, build: TurnBuilder, session: int, rng: np.random.Generator, caller: int
    ) -> tuple[int, ...]:
        """Sub-agents that start when *caller* has answered; their last requests."""
        agents = rng.integers(self._agents.num, size=self.num_subagents).tolist()
        return tuple(
            self._run(
                build, session, agent, self._subagent_steps, rng, nested=True, follows=(caller,)
            )
            for agent in agents
        )
