"""Synthetic traffic, put together: an arrival process, a prompt model, and who asks.

Every component has a random stream of its own (workloads/streams.py): another arrival process
leaves the prompts as they are, and a longer workload begins with the shorter one's sessions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import ConfigError
from sim.keys import POSITION_BITS, SegmentKeys
from sim.request import Request
from sim.traffic import Arrivals, Floats, Ints, Lengths, Prompts, Turns
from sim.workload import Workload
from workloads.arguments import real_number, whole_number
from workloads.arrivals import Poisson, arrival_times
from workloads.length_models import MOST_TURNS
from workloads.library import Library
from workloads.shared_prompts import SharedPrompts
from workloads.streams import seed_of, stream


class Synthetic(Workload):
    """*num_sessions* sessions that begin as *arrivals* says and ask what *prompts* says.

    *closed_loop*: a turn comes when the simulated answer before it has ended and the user has
    thought, so that a better policy changes the arrivals. Else, and for a replay without clock,
    turns come as if every answer took *guess_ttft_s* + *guess_tpot_s* per token.

    *num_tenants* (chosen with weights k ** -*tenant_zipf*) share nothing with each other, as with
    cache salts; so do *num_adapters* LoRA adapters (0: none). *priorities*: share of the sessions
    by priority, e.g. `{0: 0.2, 1: 0.8}`. Hints `tenant` and `adapter`, where there are some.
    """

    def __init__(
        self,
        num_sessions: int = 1000,
        *,
        arrivals: Arrivals | None = None,
        prompts: Prompts | None = None,
        closed_loop: bool = False,
        guess_ttft_s: float = 0.2,
        guess_tpot_s: float = 0.02,
        num_tenants: int = 1,
        tenant_zipf: float = 1.0,
        num_adapters: int = 0,
        adapter_zipf: float = 1.0,
        priorities: dict[int, float] | None = None,
        block_size: int = 16,
        seed: int = 0,
    ) -> None:
        def whole(name: str, value: int, least: int) -> int:
            return whole_number("Synthetic", name, value, least)

        self.block_size = whole("block_size", block_size, 1)
        self.seed = whole("seed", seed, 0)
        num = whole("num_sessions", num_sessions, 1)
        if num > MOST_TURNS:
            raise ConfigError(f"Synthetic: num_sessions is {num}; at most {MOST_TURNS} can be made")
        arrivals, prompts = arrivals or Poisson(), prompts or SharedPrompts()
        self._inputs = tuple(dict.fromkeys((*_inputs(arrivals), *_inputs(prompts))))
        self.closed_loop = closed_loop or arrivals.num_users is not None
        self._turns = turns = prompts.turns(num, seed_of(self.seed, "prompts"))
        self._check_lengths(turns)
        self._choose_owners(
            num,
            (whole("num_tenants", num_tenants, 1), tenant_zipf),
            (whole("num_adapters", num_adapters, 0), adapter_zipf),
            priorities,
        )
        self.hints = prompts.hints | frozenset(self._owners)
        starts = arrival_times(arrivals, num, stream(self.seed, "arrivals"))
        ttft = real_number("Synthetic", "guess_ttft_s", guess_ttft_s)
        tpot = real_number("Synthetic", "guess_tpot_s", guess_tpot_s)
        guesses = np.asarray(ttft + tpot * turns.outputs, dtype=np.float64)
        plan = _Plan(turns, starts, guesses, arrivals.num_users)
        self._follows, self._pauses = plan.follows, plan.pauses
        self._order = np.argsort(plan.times, kind="stable")
        self._times = plan.times[self._order]

    @property
    def inputs(self) -> tuple[Path, ...]:
        return self._inputs

    def __iter__(self) -> Iterator[Request]:
        turns, order = self._turns, self._order
        ids, ends = memoryview(self._ids), memoryview(turns.ends)  # type: ignore[arg-type]
        columns: tuple[Any, ...] = (
            order, self._times, turns.starts[order], turns.stops[order], turns.prompts[order],
            turns.outputs[order], turns.sessions[order],
        )  # fmt: skip
        has_more = bool(self.hints) or self.closed_loop or self._priority is not None
        # Memoryviews yield plain Python numbers, one at a time.
        for row, time, start, stop, num_prompt, num_output, session in zip(
            *(memoryview(column) for column in columns), strict=True
        ):
            keys = SegmentKeys(ids[start:stop], ends[start:stop], self.block_size)
            request = Request(row, keys, num_prompt, num_output, time, session=session)
            if has_more:
                self._complete(request, row, session)
            yield request

    def __len__(self) -> int:
        return len(self._order)

    def _complete(self, request: Request, row: int, session: int) -> None:
        """Hints, priority and what it follows."""
        if self.hints:
            hints = {name: values[row] for name, values in self._turns.hints.items()}
            request.hints = hints | {name: v[session] for name, v in self._owners.items()}
        if self._priority is not None:
            request.priority = self._priority[session]
        if self.closed_loop and self._follows is not None and self._follows[row]:
            request.follows, request.think_time = self._follows[row], self._pauses[row]

    def _choose_owners(
        self,
        num: int,
        tenants: tuple[int, float],
        adapters: tuple[int, float],
        priorities: Mapping[int, float] | None,
    ) -> None:
        """Whose each session is; contents of different owners get different ids."""
        self._owners: dict[str, list[int]] = {}
        owner = np.zeros(num, dtype=np.int64)
        for name, (count, zipf) in (("tenant", tenants), ("adapter", adapters)):
            zipf = real_number("Synthetic", f"{name}_zipf", zipf)
            if count > (name == "tenant"):
                weights = np.arange(1, count + 1, dtype=np.float64) ** -zipf
                chosen = _pick(num, weights, stream(self.seed, name))
                self._owners[name] = chosen.tolist()
                owner = owner * count + chosen
        self._ids = self._turns.ids
        num_owners = int(owner.max()) + 1
        if num_owners > 1:
            segment_owner = np.zeros(len(self._ids), dtype=np.int64)
            for start, stop, one in zip(
                self._turns.starts, self._turns.stops, owner[self._turns.sessions], strict=True
            ):
                segment_owner[start:stop] = one
            self._ids = self._ids * num_owners + segment_owner
        self._priority: list[int] | None = None
        if priorities is not None:
            self._priority = self._priorities(num, priorities)

    def _priorities(self, num: int, shares: Mapping[int, float]) -> list[int]:
        levels = [whole_number("Synthetic", "a priority", level, -(2**31)) for level in shares]
        weights = np.array([real_number("Synthetic", "a share", s) for s in shares.values()])
        if not weights.sum() > 0:
            raise ConfigError("Synthetic: priorities have no share above 0; give one a share")
        chosen = _pick(num, weights, stream(self.seed, "priority"))
        return np.array(levels)[chosen].tolist()  # type: ignore[no-any-return]

    def _check_lengths(self, turns: Turns) -> None:
        longest = int((turns.prompts + turns.outputs).max())
        if longest // self.block_size >> POSITION_BITS:
            raise ConfigError(
                f"Synthetic: a request has {longest} tokens; at most 2**{POSITION_BITS} blocks of "
                f"{self.block_size} can be counted; ask for shorter ones"
            )


class _Plan:
    """When requests come if nothing but the guesses is known, and what each follows."""

    def __init__(
        self, turns: Turns, starts: Floats, guesses: Floats, num_users: int | None
    ) -> None:
        self.follows: list[tuple[int, ...]] | None = None
        if turns.follows is None and num_users is None:
            self.pauses: Any = turns.pauses
            self.times: Floats = starts[turns.sessions] + turns.pauses
            return
        follows = turns.follows or [()] * len(turns.sessions)
        self.follows, self.pauses = list(follows), turns.pauses.tolist()
        times, ends = [0.0] * len(follows), guesses.tolist()
        last: dict[int, list[int]] = {}  # the requests that a session ends with
        for i, session in enumerate(turns.sessions.tolist()):
            before = self.follows[i]
            if before:
                came = max(ends[j] for j in before)
            elif num_users is None or session < num_users:
                came = float(starts[session])
            else:  # the user's session before
                self.follows[i] = before = tuple(last[session - num_users])
                self.pauses[i] += float(starts[session])
                came = max(ends[j] for j in before)
            times[i] = came + self.pauses[i]
            ends[i] += times[i]
            leaves = last.setdefault(session, [])
            leaves[:] = [j for j in leaves if j not in before] + [i]
        self.times = np.array(times)


def _inputs(part: object) -> Iterator[Path]:
    """The files that a component, or a component of it, was read from."""
    if isinstance(part, Arrivals | Prompts | Lengths | Library):
        yield from getattr(part, "inputs", ())
        for inner in vars(part).values():
            yield from _inputs(inner)


def _pick(num: int, weights: Floats, rng: np.random.Generator) -> Ints:
    """*num* draws from 0, 1, ... with these weights; more draws begin with the same ones."""
    total = np.cumsum(weights / weights.sum())
    return np.minimum(np.searchsorted(total, rng.random(num), side="right"), len(weights) - 1)
