"""docs/policies.md lists every policy as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policies import POLICIES
from sim.spec.names import find
from sim.spec.parameters import Parameters
from sim.spec.place import Place

TEXT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text("utf-8")
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in TEXT.splitlines()
    if len(cells := [cell.strip() for cell in line.split("|")[1:-1]]) == 5
    and cells[0].startswith("`")
}


def test_the_table_has_every_policy_and_no_other():
    """A policy that is registered is documented, and the other way round."""
    assert set(ROWS) == set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
def test_the_parameters_are_those_of_the_constructor(name):
    """The third column is the signature, defaults included."""
    parameters = str(Parameters.of(find("policy", name, Place())))
    expected = "" if parameters == "nothing" else f"`{parameters}`"
    assert ROWS[name][1] == expected, f"write {expected} into the row of {name}"


@pytest.mark.parametrize("name", POLICIES)
def test_needs_are_told(name):
    """What a policy needs from a workload stands in its row."""
    for hint in find("policy", name, Place()).needs:
        assert f"`{hint}`" in ROWS[name][3]


def test_the_example_runs():
    """The policy that the text shows keeps the contract."""
    from sim.testing import check_eviction_policy

    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert code
    names: dict[str, type] = {}
    exec(code[1], names)
    check_eviction_policy(names["SystemPrompts"], seconds=2)
