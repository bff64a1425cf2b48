"""Ghosts: what a list of single blocks would remember, at the cost of runs."""

from __future__ import annotations

import numpy as np
import pytest

import policies.ghosts
from policies.ghosts import LONG_WALK, SPARE_ENDS, Ghosts, Run, cut_by
from sim.cache import Pool, Span
from sim.checks.letters import Letters


class Plain:
    """The same, block by block: keys from the one forgotten first to the newest."""

    def __init__(self):
        self.notes: dict[str, int] = {}

    def push(self, keys, start, stop, note):
        for i in range(stop - 1, start - 1, -1):
            self.notes.pop(keys[i], None)
            self.notes[keys[i]] = note

    def find(self, keys, start, stop):
        return {i: self.notes[keys[i]] for i in range(start, stop) if keys[i] in self.notes}

    def take(self, keys, start, stop):
        return {i: self.notes.pop(keys[i]) for i in range(start, stop) if keys[i] in self.notes}

    def trim(self, num_blocks):
        for key in list(self.notes)[: max(0, len(self.notes) - num_blocks)]:
            del self.notes[key]


def blocks(runs):
    return {i: run.note for run in runs for i in range(run.start, run.stop)}


def nodes(ghosts):
    """Every node of the tree but the root."""
    stack, found = [ghosts._root], []
    while stack:
        node = stack.pop()
        stack += node.children.values()
        found += node.children.values()
    return found


@pytest.mark.parametrize("long_walk", [1, LONG_WALK])
@pytest.mark.parametrize("seed", range(40))
def test_equal_to_a_list_of_blocks(seed, long_walk, monkeypatch):
    """Random evictions and look-ups of related prompts: the same blocks, notes and order.

    Every other time where the last one ended, be it beyond that text or in another's.
    """
    monkeypatch.setattr(policies.ghosts, "LONG_WALK", long_walk)
    monkeypatch.setattr(policies.ghosts, "SPARE_ENDS", seed % 3 * 10)
    rng = np.random.default_rng(seed)
    ghosts, plain, texts, last, stop = Ghosts(), Plain(), [""], "", 0
    for note in range(120):
        base = texts[rng.integers(len(texts))]
        text = base[: rng.integers(len(base) + 1)] + "".join(rng.choice(list("ab"), size=6))
        if rng.random() < 0.5:
            text, start = last[: 2 * stop] + text[-6:], stop
            stop += int(rng.integers(1, 4))
        else:
            start, stop = sorted(rng.integers(0, len(text) // 2 + 1, size=2).tolist())
        last, keys = text, Letters(text, 2)
        texts.append(text)
        match rng.integers(4):
            case 0 | 1 if start < stop:
                ghosts.push(keys, start, stop, note // 4)
                plain.push(keys, start, stop, note // 4)
            case 2:
                assert blocks(ghosts.take(keys, start, stop)) == plain.take(keys, start, stop)
            case 3:
                most = int(rng.integers(4, 20))
                ghosts.trim(most)
                plain.trim(most)
        assert ghosts.num_blocks == len(plain.notes)
        whole = Letters(texts[rng.integers(len(texts))], 2)
        assert blocks(ghosts.find(whole, 0, len(whole))) == plain.find(whole, 0, len(whole))
    assert all(node.is_listed or node.children for node in nodes(ghosts)), "a dead node"


def test_a_run_is_one_entry_however_it_was_evicted():
    """A prompt of 100 blocks, evicted block by block from its end, is one node; so is its rest."""
    ghosts, keys = Ghosts(), Letters("a" * 100, 1)
    for i in range(99, -1, -1):
        ghosts.push(keys, i, i + 1)
    assert len(nodes(ghosts)) == 1
    ghosts.trim(40)
    assert ghosts.find(keys, 0, 100) == [Run(0, 40, None)]
    assert len(nodes(ghosts)) == 1


class Counted(Letters):
    """Counts how often a key is asked for."""

    num_asked = 0

    def __getitem__(self, i, /):
        self.num_asked += 1
        return super().__getitem__(i)


def test_a_push_costs_the_same_however_many_runs_are_above_it():
    """Two prompts of 300 blocks, evicted in turns, block by block from their starts."""
    ghosts, prompts = Ghosts(), (Counted("a" * 300, 1), Counted("b" * 300, 1))
    for i in range(300):
        for keys in prompts:
            ghosts.push(keys, i, i + 1)
    assert len(nodes(ghosts)) == 600
    assert all(keys.num_asked <= 300 * 3 * LONG_WALK for keys in prompts)


def test_known_ends_do_not_grow_with_the_run():
    """As many as there are blocks and some to spare, whatever was pushed and forgotten since."""
    ghosts = Ghosts()
    for letter in map(chr, range(100, 400)):
        for i in range(LONG_WALK + 1):
            ghosts.push(Letters(letter * 20, 1), i, i + 1)
        ghosts.trim(20)
    assert len(ghosts._ends) <= 20 + SPARE_ENDS + 1


class Cutting(Pool):
    """Cuts spans and nothing else."""

    num_blocks = 100
    block_size = 1

    def cut(self, span, num_blocks):
        upper = Span(span.num_blocks - num_blocks, span.start)
        span.start += upper.num_blocks
        span.num_blocks = num_blocks
        return upper


@pytest.mark.parametrize(
    ("runs", "pieces"),
    [
        ([(2, 5)], [(5, 10, False), (2, 5, True), (0, 2, False)]),
        ([(0, 3), (9, 10)], [(9, 10, True), (3, 9, False), (0, 3, True)]),
        ([(0, 10)], [(0, 10, True)]),
        ([], [(0, 10, False)]),
    ],
)
def test_a_span_is_cut_by_the_runs_found(runs, pieces):
    """The pieces come deepest first, as they would be released block by block."""
    made = cut_by(Cutting(), Span(10), [Run(start, stop, None) for start, stop in runs])
    assert pieces == [(s.start, s.start + s.num_blocks, run is not None) for s, run in made]
