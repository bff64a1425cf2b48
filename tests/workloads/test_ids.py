from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workloads.ids import IdColumn, first_conflict


@given(st.lists(st.lists(st.integers(0, 2**70), max_size=4), max_size=6))
def test_ids_of_any_size_come_back_as_they_went_in(prompts: list[list[int]]) -> None:
    """Equal numbers mean equal ids, and `original` is exact, however large the ids are."""
    column = IdColumn()
    for prompt in prompts:
        column.extend(prompt)
    flat = [i for prompt in prompts for i in prompt]
    assert column.original(0, len(column)) == flat
    values = column.values.tolist()
    assert [values.index(value) for value in values] == [flat.index(i) for i in flat]


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=5))
def test_the_first_conflict_is_the_one_a_reader_meets(prompts: list[list[int]]) -> None:
    """Same verdict and same place as reading row by row with a dictionary."""
    seen: dict[int, tuple[int, int]] = {}
    place, expected = 0, None
    for prompt in prompts:
        for position, i in enumerate(prompt):
            history = position, prompt[position - 1] if position else -1
            if seen.setdefault(i, history) != history and expected is None:
                expected = place
            place += 1
    ids = np.array([i for prompt in prompts for i in prompt], dtype=np.uint64)
    offsets = np.cumsum([0, *map(len, prompts)])
    conflict = first_conflict(ids, offsets)
    assert (conflict and conflict[1]) == expected
    if conflict is not None:
        assert conflict[0] < conflict[1]
        assert ids[conflict[0]] == ids[conflict[1]]
