"""Workloads that were read or drawn once, for all runs that are given the same requests."""

from __future__ import annotations

import json
from collections import OrderedDict

from sim.spec.build import Plan, Ready
from sim.workload import Workload

NUM_KEPT = 2


class WorkloadCache:
    """The workloads last built; equal plans share one. It lives no longer than one experiment."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Workload] = OrderedDict()

    def build(self, plan: Plan | Ready) -> Workload:
        """What *plan* describes."""
        if isinstance(plan, Ready):
            made: Workload = plan.build()
            return made
        key = identity(plan)
        if key not in self._kept:
            self._kept[key] = plan.build()
            if len(self._kept) > NUM_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def identity(plan: Plan | Ready) -> str:
    """Text that is equal for plans of equal workloads."""
    known = dict(plan.known) if isinstance(plan, Plan) else {}
    return json.dumps([plan.resolved(), known], sort_keys=True, default=repr)
