"""Does a policy or a manager keep its contract? For built-ins, and for one's own before it is used.

    from sim.testing import check_eviction_policy
    check_eviction_policy(Mine)

The checks play many small random programs against the class and hold every call and answer to the
rules of `sim.cache`. They find what is broken; that nothing is found proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import process_time
from typing import Any, Protocol

import numpy as np

from sim.cache import BlockManager, EvictionPolicy
from sim.checks.contract import ContractBroken
from sim.checks.guard import Guard
from sim.checks.time_limit import Overdue, time_limit
from sim.checks.trials import Hints, Programs, Repetitions, Trial
from sim.checks.whole_runs import WholeRuns
from sim.errors import ConfigError, KvsimError
from sim.spec.build import Plan, plan
from sim.spec.names import CONTRACTS, Kind, a, find, imported, names
from sim.spec.place import Place, did_you_mean, show

__all__ = ["ContractBroken", "check_block_manager", "check_eviction_policy"]

PATIENCE = 1.0  # s of CPU time that one call may take longer than its check was given


class Body(Protocol):
    """What a check does: called with the CPU time at which it should end."""

    def __call__(self, end: float) -> None: ...

    def program(self) -> list[str]:
        """What runs now, to be read."""

    def running(self) -> str:
        """The call that runs now."""


@dataclass(frozen=True, slots=True)
class Check:
    """One of the checks: what is claimed, and how it is tried."""

    claim: str
    body: Body


def check_eviction_policy(
    policy: object,
    *,
    seconds: float = 10.0,
    hints: Mapping[str, Sequence[Any]] | None = None,
    report: Callable[[str], None] | None = None,
) -> None:
    """Raise `ContractBroken` if *policy* breaks a rule of `sim.cache.EvictionPolicy`.

    *policy*: a class, a short name or mapping as in YAML, an object (copied), or a function that
    returns a new policy. *seconds*: CPU time for all checks together. *hints*: for each hint that
    the policy needs, values to draw from (small integers by default). *report* is called with each
    claim that was checked. ConfigError if no policy can be built.
    """
    make = _maker("policy", policy)
    made = make()
    values = {name: tuple((hints or {}).get(name, range(4))) for name in sorted(made.needs)}
    _run(policy_checks(make, made, _drawing(values)), seconds, report)


def check_block_manager(
    manager: object,
    *,
    seconds: float = 10.0,
    report: Callable[[str], None] | None = None,
    **arguments: Any,
) -> None:
    """Raise `ContractBroken` if *manager* breaks a rule of `sim.cache.BlockManager`.

    *manager*: a class, a short name or mapping as in YAML; it is built with `num_blocks`,
    `block_size` and *arguments*. *seconds*, *report*: as in `check_eviction_policy`.
    """
    build = _maker("manager", manager, arguments)

    def make(num_blocks: int, block_size: int) -> BlockManager:
        made: BlockManager = build(num_blocks=num_blocks, block_size=block_size)
        return made

    make(8, 2)
    _run(manager_checks(make), seconds, report)


def kind_of(spec: object) -> Kind:
    """Whether *spec*, as in YAML, names a policy or a manager; ConfigError if neither."""
    place = Place(path=("check",))
    use = spec.get("use") if isinstance(spec, Mapping) else spec
    kinds: tuple[Kind, Kind] = ("policy", "manager")
    for kind in kinds:
        if use in names(kind):
            return kind
    if not isinstance(use, str) or ":" not in use:
        known = [name for kind in kinds for name in names(kind)]
        hint = did_you_mean(use, known)
        raise ConfigError(f"check: {show(use)} is no policy or manager{hint}; write module:Class")
    found = imported(use, place)
    for kind in kinds:
        if isinstance(found, type) and issubclass(found, CONTRACTS[kind]):
            return kind
    raise ConfigError(
        f"check: {use} is neither {a('policy')} nor {a('manager')}; derive it from "
        "sim.cache.EvictionPolicy or sim.cache.BlockManager"
    )


def policy_checks(
    make: Callable[[], EvictionPolicy], made: EvictionPolicy, hints: Hints | None
) -> list[Check]:
    """All checks of a policy; an offline one needs runs that are known beforehand."""

    def trial(one: str, other: str, rule: str, victims: str, seed: int, salt: int) -> Trial:
        options: dict[str, Any] = {
            "free_order": ("tail", "unhashed_first")[seed % 2],
            "null_block": seed % 3 > 0,
            "victims": victims,
        }
        makes = [partial(_guarded, name, make, **options) for name in (one, other)]
        return Trial(makes[0], makes[1], seed, rule=rule, hints=hints, salt=salt)

    def programs(one: str, other: str, rule: str, victims: str = "block") -> Programs:
        return Programs(partial(trial, one, other, rule, victims))

    alike = "the decisions for spans are those for single blocks (or the class sets max_span = 1)"
    steady = "two managers with the same policy decide the same: it is deterministic"
    repeated = partial(trial, "reference", "vllm", alike, "block")
    whole = [(name, partial(_guarded, name, make)) for name in ("reference", "vllm")]
    short = [
        Check(
            "offers only what it may, block by block", programs("reference", "reference", steady)
        ),
        Check("decides the same for spans as for blocks", programs("reference", "vllm", alike)),
        Check("keeps to leaves in leaf mode", programs("reference", "vllm", alike, "leaf")),
        Check("decides the same in every process", Repetitions(repeated)),
    ]
    runs = Check("serves whole runs in engine and replay", WholeRuns(whole, hints))
    return [runs] if made.is_offline else [*short, runs]


def manager_checks(make: Callable[[int, int], BlockManager]) -> list[Check]:
    """All checks of a manager."""
    rule = "two managers of the same class decide the same: it is deterministic"

    def trial(seed: int, salt: int) -> Trial:
        return Trial(make, make, seed, rule=rule, salt=salt)

    return [
        Check("keeps the books, changes nothing when it looks or refuses", Programs(trial)),
        Check("decides the same in every process", Repetitions(trial)),
        Check("serves whole runs in engine and replay", WholeRuns([("it", make)], None)),
    ]


def _guarded(
    name: str, make: Callable[[], EvictionPolicy], num_blocks: int, block_size: int, **options: Any
) -> BlockManager:
    """Our manager *name* with a new policy under guard."""
    manager_class = find("manager", name, Place())
    manager: BlockManager = manager_class(num_blocks, block_size, eviction=Guard(make()), **options)
    return manager


def _drawing(values: Mapping[str, tuple[Any, ...]]) -> Hints | None:
    """A function that draws a value for every hint."""
    if not values:
        return None

    def draw(rng: np.random.Generator) -> dict[str, Any]:
        return {name: each[int(rng.integers(len(each)))] for name, each in values.items()}

    return draw


def _run(checks: Sequence[Check], seconds: float, report: Callable[[str], None] | None) -> None:
    """Every check in turn, each with an equal share of the time that is left."""
    end = process_time() + seconds
    for i, check in enumerate(checks):
        share = max(0.0, end - process_time()) / (len(checks) - i)
        try:
            with time_limit(share + PATIENCE):
                check.body(process_time() + share)
        except ContractBroken as broken:
            broken.claim = check.claim
            raise
        except Overdue:
            seen = f"{check.body.running()} did not return"
            late = ContractBroken("every call returns, and soon", seen, check.body.program())
            late.claim = check.claim
            raise late from None
        if report:
            report(check.claim)


def _maker(
    kind: Kind, target: object, arguments: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """A function that builds a new object at each call; ConfigError if there is no building it."""
    if callable(target) and not isinstance(target, type):
        return partial(_called, kind, target)
    spec = target
    if arguments:
        spec = (
            {**target, **arguments} if isinstance(target, Mapping) else {"use": target, **arguments}
        )
    planned = plan(kind, spec, known={"num_blocks": 8, "block_size": 2, "seed": 0}, where="check")
    if not isinstance(planned, Plan) and kind == "manager":
        raise ConfigError(
            f"check: {show(target)} is in use; give its class, so that more are built"
        )

    def make(**known: Any) -> Any:
        each = planned
        if isinstance(each, Plan):
            each = replace(
                each, known={**each.known, **{k: v for k, v in known.items() if k in each.known}}
            )
        try:
            return each.build()
        except KvsimError:
            raise
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"check: {show(target)} cannot be built ({reason})") from error

    make()
    return make


def _called(kind: Kind, target: Callable[..., Any], **known: Any) -> Any:
    """What a function of the user's returns."""
    made = target(**known)
    if not isinstance(made, CONTRACTS[kind]):
        raise ConfigError(f"check: {show(target)} returned {show(made)}, which is not {a(kind)}")
    return made
