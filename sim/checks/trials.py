"""Random programs and whole runs that bring out what is wrong with a policy or a manager.

When a program fails, shorter ones that fail in the same way are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import process_time
from typing import Any

import numpy as np

from sim.cache import BlockManager
from sim.checks.contract import ContractBroken, require
from sim.checks.guard import Guard
from sim.checks.letters import Letters
from sim.checks.twins import MakeManager, Twins
from sim.checks.witness import Witness
from sim.request import Request

LENGTHS = (6, 12, 25, 60)  # operations of a program
NUM_PROGRAMS = 600
SHORTENING_SECONDS = 0.5

Hints = Callable[[np.random.Generator], Mapping[str, Any]]


class SaltedText(str):
    """Text whose hash differs from one *salt* to the next, as it does between processes."""

    __slots__ = ("salt",)
    salt: int

    def __hash__(self) -> int:
        return hash((self.salt, str(self)))


class SaltedLetters(Letters):
    """Letters whose keys have a salted hash."""

    def __init__(self, text: str, block_size: int, salt: int) -> None:
        super().__init__(text, block_size)
        self.salt = salt

    def __getitem__(self, i: int, /) -> str:
        key = SaltedText(super().__getitem__(i))
        key.salt = self.salt
        return key


class Trial(Twins):
    """A random program on two managers under observation; `ContractBroken` with the program.

    *rule*: what it means if the two decide differently. *hints*: draws what each request carries.
    """

    def __init__(
        self,
        one: MakeManager,
        other: MakeManager,
        seed: int,
        *,
        rule: str,
        hints: Hints | None = None,
        salt: int = 0,
    ) -> None:
        self.witnesses: list[Witness] = []
        super().__init__(self._witnessed(one), self._witnessed(other), seed)
        self.rule, self.salt = rule, salt
        self.hints = hints
        self.hints_rng = np.random.default_rng(seed)

    def _witnessed(self, make: MakeManager) -> MakeManager:
        def made(num_blocks: int, block_size: int) -> BlockManager:
            self.witnesses.append(Witness(make(num_blocks, block_size)))
            return self.witnesses[-1]  # type: ignore[return-value]

        return made

    def run(self, num_operations: int) -> None:
        super().run(num_operations)
        self._do(self._take_every_block)

    def _take_every_block(self) -> None:
        """Evict everything, one by one: whatever was lost on the way is missed now."""
        num_free = min(manager.num_free_blocks for manager in self.managers)
        text = "z" * (num_free * self.block_size)
        request = Request("last", Letters(text, self.block_size), len(text), max_tokens=1)
        request.hints = self.hints(self.hints_rng) if self.hints else None
        given = self._both(
            lambda m: m.allocate_slots(request, len(text), has_scheduled_reqs=False) is not None
        )
        require(given, "what fits into the free blocks is not refused", f"{num_free} were free")
        request.num_computed_tokens = len(text)
        self._both(lambda m: m.free(request))

    def _do(self, operation: Callable[[], Any]) -> None:
        try:
            operation()
            self._compare()
        except ContractBroken as broken:
            raise ContractBroken(broken.rule, broken.seen, self.program()) from broken
        except AssertionError as error:
            raise ContractBroken(self.rule, str(error), self.program()) from error
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
            rule = "no call raises, and what is listed can be listed"
            raise ContractBroken(rule, seen, self.program()) from error

    def program(self) -> list[str]:
        """The calls so far, the one that is running last."""
        last = max(self.witnesses, key=lambda w: (w.is_running, len(w.program)))
        sizes = f"block_size {self.block_size}, {last.manager.num_blocks} blocks"
        return [sizes, *last.program, *([last.call] if last.is_running else [])]

    def running(self) -> str:
        """The call that is running, or ran last: the policy's, if a policy is guarded."""
        witness = max(self.witnesses, key=lambda w: (w.is_running, len(w.program)))
        policy = getattr(witness.manager, "policy", None)
        return f"{policy.call}()" if isinstance(policy, Guard) else witness.call

    def decisions(self) -> list[Any]:
        """All that was decided."""
        policies = (getattr(each.manager, "policy", None) for each in self.witnesses)
        victims = [policy.victims for policy in policies if isinstance(policy, Guard)]
        return [*(witness.history for witness in self.witnesses), *victims]

    def _new(self) -> None:
        num_requests = self.num_requests
        super()._new()
        if self.num_requests > num_requests:
            request = self.requests[-1]
            assert isinstance(request.keys, Letters)
            if self.salt:
                request.keys = SaltedLetters(request.keys.text, self.block_size, self.salt)
            if self.hints:
                request.hints = self.hints(self.hints_rng)

    def _has_order(self) -> bool:
        policies = [getattr(witness.manager, "policy", None) for witness in self.witnesses]
        return all(getattr(policy, "lists_in_order", True) for policy in policies)


def programs(end: float) -> Iterator[tuple[int, int]]:
    """(number of operations, seed), short and long in turn, until the CPU time is *end*."""
    for seed in range(NUM_PROGRAMS):
        if process_time() > end:
            return
        yield LENGTHS[seed % len(LENGTHS)], seed


MakeTrial = Callable[[int, int], Trial]  # (seed, salt)


class Programs:
    """Many trials, one after the other; *trial* is the one that runs now."""

    def __init__(self, make: MakeTrial) -> None:
        self.make = make
        self.trial: Trial | None = None

    def __call__(self, end: float) -> None:
        """Every rule holds in all of them."""
        for num_operations, seed in programs(end):
            try:
                self._run(num_operations, seed)
            except ContractBroken as broken:
                raise self._shortened(broken, num_operations) from broken

    def _run(self, num_operations: int, seed: int) -> None:
        self.trial = self.make(seed, 0)
        self.trial.run(num_operations)

    def _shortened(self, broken: ContractBroken, num_operations: int) -> ContractBroken:
        """The same failure in a shorter program, if one is found soon."""
        end = process_time() + SHORTENING_SECONDS
        best = broken
        for length in (each for each in (2, *LENGTHS) if each <= num_operations):
            for seed in range(60):
                if process_time() > end or len(best.program) < length:
                    return best
                try:
                    self._run(length, seed)
                except ContractBroken as other:
                    if other.rule == broken.rule and len(other.program) < len(best.program):
                        best = other
        return best

    def program(self) -> list[str]:
        """What runs now."""
        return self.trial.program() if self.trial else []

    def running(self) -> str:
        """The call that runs now."""
        return self.trial.running() if self.trial else "the constructor"


class Repetitions(Programs):
    """Each trial twice, with other hashes and other addresses: the decisions must be the same."""

    def __call__(self, end: float) -> None:
        for num_operations, seed in programs(end):
            seen: list[Any] = []
            for salt in (1, 2):
                noise = _scattered_memory(seed * 2 + salt)
                self.trial = self.make(seed, salt)
                self.trial.run(num_operations)
                seen.append(self.trial.decisions())
                del noise
            require_same_decisions(seen[0], seen[1], self.program())


def require_same_decisions(one: list[Any], other: list[Any], program: Sequence[str]) -> None:
    """Both runs of a program decided the same."""
    for first, second in zip(one, other, strict=True):
        if first != second:
            where = next((a, b) for a, b in zip(first, second, strict=False) if a != b)
            raise ContractBroken(
                "the same program gives the same decisions in every process: they depend on no "
                "object's identity, hash or place in a set, nor on global random numbers",
                f"once {where[0]}, once {where[1]}",
                program,
            )


def _scattered_memory(seed: int) -> list[bytes]:
    """Memory with holes of every small size: new objects get addresses in another order."""
    rng = np.random.default_rng(seed)
    pieces = [bytes(size) for size in range(0, 320, 8) for _ in range(30)]
    order = rng.permutation(len(pieces)).tolist()
    return [pieces[i] for i in order[: len(order) // 2]]
