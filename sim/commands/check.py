"""`kvsim check`: a policy or a manager, held to its contract."""

from __future__ import annotations

from argparse import Namespace

from sim.errors import KvsimError
from sim.spec.yaml_text import parse
from sim.testing import ContractBroken, check_block_manager, check_eviction_policy, kind_of


def run(arguments: Namespace) -> int:
    """Hold a policy or a manager to its contract."""
    if not arguments.seconds > 0:
        raise KvsimError(f"--seconds is {arguments.seconds}; it must be greater than 0")
    spec = parse(arguments.target, "TARGET")
    checker = check_eviction_policy if kind_of(spec) == "policy" else check_block_manager
    try:
        checker(spec, seconds=arguments.seconds, report=lambda claim: print(f"ok      {claim}"))
    except ContractBroken as broken:
        print(f"FAILED  {broken.claim}", *str(broken).splitlines()[1:], sep="\n")
        return 1
    print("nothing is broken, as far as these programs show")
    return 0
