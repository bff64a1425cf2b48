"""A recorded trace as a closed loop: turns wait for answers, users think as long as recorded."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from sim.errors import ConfigError
from sim.request import Request
from sim.workload import Workload
from workloads.arguments import real_number
from workloads.transforms import Transform


class CloseLoop(Transform):
    """*of* with every later turn of a session arriving after the simulated answer before it.

    The pause in between is what was recorded: arrival minus the end of the answer before. When
    that was is the hint `api_s` or `total_s` after its arrival, or guessed: *guess_ttft_s* +
    *guess_tpot_s* per token. First turns keep their times, as does all of a replay without clock.

    Requests with the hint `agent` are a branch of their own: its first follows the request of the
    session that was the last to end before it, and the session waits for the branches that had
    ended when it went on.
    """

    def __init__(
        self, of: Workload, *, guess_ttft_s: float = 0.2, guess_tpot_s: float = 0.02
    ) -> None:
        super().__init__(of)
        self.guess_ttft_s = real_number("CloseLoop", "guess_ttft_s", guess_ttft_s)
        self.guess_tpot_s = real_number("CloseLoop", "guess_tpot_s", guess_tpot_s)
        self._plans: dict[int | str, tuple[tuple[int | str, ...], float]] = {}
        self._plan()
        if not self._plans:
            raise ConfigError(
                "CloseLoop: no session has a second request, so nothing can wait; take a trace "
                "with sessions"
            )
        self.notes += (f"{len(self._plans)} of {len(of)} requests wait for an answer",)

    def __iter__(self) -> Iterator[Request]:
        for request in self.of:
            plan = self._plans.get(request.request_id)
            if plan is not None:
                request.follows, request.think_time = plan
            yield request

    def __len__(self) -> int:
        return len(self.of)

    def _plan(self) -> None:
        sessions: dict[Hashable, dict[Hashable, _Last]] = {}  # branch -> its latest request
        for request in self.of:
            if request.session is None:
                continue
            branches = sessions.setdefault(request.session, {})
            branch = (request.hints or {}).get("agent")
            now = request.arrival_time
            before = self._before(branches, branch, now)
            if before:
                pause = max(0.0, now - max(last.end for last in before))
                names = tuple(last.name for last in before)
                self._plans[request.request_id] = (names, pause)
            branches[branch] = _Last(request.request_id, now + self._service(request))

    def _before(self, branches: dict[Hashable, _Last], branch: Hashable, now: float) -> list[_Last]:
        """What a request of *branch* that came *now* waited for; ended branches are forgotten."""
        own = branches.get(branch)
        if branch is not None:
            main = branches.get(None)
            return [last for last in (own or main,) if last is not None]
        ended = [b for b, last in branches.items() if b is not None and last.end <= now]
        joined = [branches.pop(b) for b in ended]
        return [*([own] if own else []), *joined]

    def _service(self, request: Request) -> float:
        hints = request.hints or {}
        recorded = next((hints[n] for n in ("api_s", "total_s") if hints.get(n) is not None), None)
        if recorded is not None:
            return float(recorded)
        return self.guess_ttft_s + self.guess_tpot_s * request.max_tokens


class _Last(NamedTuple):
    """The latest request of a branch, and when its answer ended."""

    name: int | str
    end: float
