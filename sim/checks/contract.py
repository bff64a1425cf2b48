"""What a check says when a policy or a manager breaks its contract."""

from __future__ import annotations

from collections.abc import Sequence

from sim.errors import KvsimError


class ContractBroken(AssertionError):
    """A rule of `sim.cache` was broken.

    *rule*: the rule in words. *seen*: what happened instead. *program*: the operations that lead
    there, the last one failing. *claim*: of the check that found it.
    """

    claim = ""

    def __init__(self, rule: str, seen: str, program: Sequence[str] = ()) -> None:
        super().__init__(rule, seen, tuple(program))
        self.rule, self.seen, self.program = rule, seen, tuple(program)

    def __str__(self) -> str:
        lines = [f"check: {self.claim}"] if self.claim else []
        lines += [f"rule: {self.rule}", f"seen: {self.seen}"]
        if self.program:
            lines += ["program:", *(f"  {line}" for line in self.program)]
        return "\n".join(lines)


class NotPrepared(KvsimError):
    """An offline policy refuses to learn from as little as a check shows it: nothing is checked."""

    def __init__(self, refusal: KvsimError) -> None:
        super().__init__(
            f"check: prepare() refuses the small programs of a check ({refusal}); give arguments "
            "with which it does not, as in '{use: learned, horizon: 4, min_examples: 0}'"
        )


def require(holds: bool, rule: str, seen: str) -> None:
    """Raise `ContractBroken` unless *holds*."""
    if not holds:
        raise ContractBroken(rule, seen)
