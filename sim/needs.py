"""What a policy must be given before a run: hints that the workload has, or the whole future."""

from __future__ import annotations

from sim.cache import BlockManager, EvictionPolicy
from sim.errors import ConfigError
from sim.workload import Workload


def policy_of(manager: BlockManager) -> EvictionPolicy | None:
    """The eviction policy that *manager* asks; None if it has none of its own."""
    policy = getattr(manager, "policy", None)
    return policy if isinstance(policy, EvictionPolicy) else None


def check_needs(manager: BlockManager, workload: Workload) -> None:
    """ConfigError if the manager's policy needs a hint that *workload* does not give."""
    policy = policy_of(manager)
    missing = sorted(policy.needs - workload.hints) if policy is not None else []
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise ConfigError(
            f"{type(policy).__name__} needs the hint{plural} {', '.join(missing)}; "
            f"{type(workload).__name__} gives {', '.join(sorted(workload.hints)) or 'none'}; "
            "take another policy, or a workload that gives them"
        )


def prepare(manager: BlockManager, workload: Workload, warm: Workload | None = None) -> None:
    """Check the needs of the manager's policy, and show it the future if it is offline.

    *warm*: what is served before *workload* (`sim.state.warm_start`).
    """
    parts = [workload] if warm is None else [warm, workload]
    for part in parts:
        check_needs(manager, part)
    policy = policy_of(manager)
    if policy is not None and policy.is_offline:
        policy.prepare([request for part in parts for request in part])
