"""ServeGen's statistics of a production service: rates and lengths of each client, by window.

A folder or a .tar(.gz, .xz) of `chunk-N-trace.csv`, without header, `window_start_s, rate, cv,
Gamma | Weibull | "", shape, scale` (600-s windows; an empty pattern is a window without traffic),
and `chunk-N-dataset.json`, by window of 6 h the shares of lengths as *text* of a Python dict.
Source: alibaba/ServeGen, `data/`.
"""

from __future__ import annotations

import ast
import math
import os
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sim.errors import TraceError
from sim.traffic import Arrivals, Floats, Lengths
from workloads import fields
from workloads.arguments import one_of, real_number
from workloads.data import find
from workloads.lines import fields as csv_fields
from workloads.lines import parse

WINDOW = 600.0  # s
LARGEST_FILE = 2**26  # bytes
TRACE = re.compile(r"chunk-(\d+)-trace\.csv$")
DATASET = re.compile(r"chunk-(\d+)-dataset\.json$")
SHAPES = {"Gamma": (1e-4, 1e6), "Weibull": (0.01, 1e3)}  # beyond these floats give no gaps


class Window(NamedTuple):
    """The traffic of one client from *start* s on."""

    start: float
    rate: float
    pattern: str
    shape: float


class ServeGen(Arrivals):
    """All clients of ServeGen's statistics together, from *start_s* on; the day repeats.

    Each client's gaps have the window's rate, distribution and shape. *rate_scale* multiplies all
    rates; the variation of the gaps stays.
    """

    def __init__(
        self, path: str | os.PathLike[str], start_s: float = 0.0, rate_scale: float = 1.0
    ) -> None:
        self.start_s = real_number("ServeGen", "start_s", start_s)
        self.rate_scale = real_number("ServeGen", "rate_scale", rate_scale, above=0)
        self._windows: dict[int, list[tuple[int, Window]]] = defaultdict(list)
        source = find(path)
        self.inputs = (source,)
        for client, name, data in _members(source, TRACE):
            for window in _windows(f"{source}: {name}", data):
                self._windows[int(window.start // WINDOW)].append((client, window))
        if not self._windows:
            raise TraceError(f"{source}: no chunk-N-trace.csv has traffic; is it ServeGen's?")
        self._num_windows = max(self._windows) + 1
        num = WINDOW * sum(w.rate for group in self._windows.values() for _, w in group)
        if num * self.rate_scale < 1:
            raise TraceError(
                f"{source}: has {num:.2g} requests in all of its windows; it must have at least 1 "
                "to go on from; is it ServeGen's, and is rate_scale what was meant?"
            )

    def times(self, num: int, rng: np.random.Generator) -> Floats:
        parts, count = list[Floats](), 0
        number = int(self.start_s // WINDOW)
        entropy = int(rng.integers(2**63))
        while count < num:
            start = number * WINDOW
            for client, window in sorted(self._windows.get(number % self._num_windows, [])):
                own = np.random.default_rng([entropy, number, client])
                inside = start + self._inside(window, own)
                parts.append(inside[inside >= self.start_s])
                count += len(parts[-1])
            number += 1
        return np.sort(np.concatenate(parts))[:num] - self.start_s

    def _inside(self, window: Window, rng: np.random.Generator) -> Floats:
        """Arrivals of one client in one window, from its start on."""
        rate = window.rate * self.rate_scale
        times, last = list[Floats](), 0.0
        while last < WINDOW:
            num = int(rate * WINDOW) + 16
            if window.pattern == "Gamma":
                gaps = rng.standard_gamma(window.shape, num) / window.shape
            else:
                gaps = rng.weibull(window.shape, num) / math.gamma(1 + 1 / window.shape)
            if not times:
                gaps[0] *= rng.random()  # the window begins somewhere within a gap
            times.append(last + np.cumsum(gaps) / rate)
            last = float(times[-1][-1])
        found = np.concatenate(times)
        return found[found < WINDOW]


class ServeGenLengths(Lengths):
    """Token counts of all clients and windows of ServeGen's statistics, each with equal weight.

    *part*: `prompt` or `answer`.
    """

    def __init__(
        self, path: str | os.PathLike[str], part: Literal["prompt", "answer"] = "prompt"
    ) -> None:
        one_of("ServeGenLengths", "part", part, ("prompt", "answer"))
        source = find(path)
        self.inputs = (source,)
        name = "input_tokens" if part == "prompt" else "output_tokens"
        shares: dict[int, float] = defaultdict(float)
        for _, file, data in _members(source, DATASET):
            for tokens, share in _shares(f"{source}: {file}", data, name):
                shares[tokens] += share
        if not shares:
            raise TraceError(f"{source}: no chunk-N-dataset.json has {name}; is it ServeGen's?")
        self.values = np.array(sorted(shares), dtype=np.float64)
        total = np.cumsum([shares[int(value)] for value in self.values])
        self._total = total / total[-1]

    def draw(self, num: int, rng: np.random.Generator) -> Floats:
        drawn: Floats = self.values[
            np.minimum(np.searchsorted(self._total, rng.random(num)), len(self.values) - 1)
        ]
        return drawn


def _members(source: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, str, bytes]]:
    """Number, name and content of every file whose name fits, in the order of the numbers."""
    found = sorted(_matching(source, pattern), key=lambda one: one[0])
    yield from found


def _matching(source: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, str, bytes]]:
    if source.is_dir():
        for path in source.rglob("chunk-*"):
            if match := pattern.search(path.name):
                yield int(match[1]), path.name, path.read_bytes()
        return
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                match = pattern.search(member.name)
                if match and member.isfile() and member.size <= LARGEST_FILE:
                    file = archive.extractfile(member)
                    assert file is not None
                    yield int(match[1]), member.name, file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = " ".join(str(error).split())
        raise TraceError(
            f"{source}: is no folder and no archive that can be read ({reason}); copy it again"
        ) from None


def _windows(place: str, data: bytes) -> Iterator[Window]:
    """The windows with traffic."""
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            values = csv_fields(line)
            if len(values) != 6:
                raise ValueError(f"the row has {len(values)} fields; it needs 6")
            start, rate = (fields.number(values[i], n) for i, n in ((0, "start"), (1, "rate")))
            pattern, shape = values[3], fields.number(values[4], "shape")
            if not pattern:
                continue
            low, high = SHAPES.get(pattern, (1.0, 0.0))
            if not (0 <= start < 1e7 and 0 < rate < 1e6 and low <= shape <= high):
                raise ValueError(f"{line[:60]!r} is no window with traffic")
        except ValueError as fault:
            raise TraceError(f"{place}:{number}: {fault}; correct or remove the line") from None
        yield Window(start, rate, pattern, shape)


def _shares(place: str, data: bytes, name: str) -> Iterator[tuple[int, float]]:
    """Tokens and their share, of all windows that have some."""
    try:
        for window, row in fields.record(parse(data)).items():
            text = fields.text(fields.record(row, f"window {window}"), name)
            counts: Any = ast.literal_eval(text)
            if not isinstance(counts, dict):
                raise ValueError(f"{name} is no dict")
            for tokens, share in counts.items():
                if type(tokens) not in (int, float) or not 0 < tokens < 2**30:
                    continue  # an answer of 0 tokens cannot be served
                yield int(tokens), fields.time({"share": share}, "share", "a share")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as fault:
        reason = " ".join(str(fault).split())[:200]
        raise TraceError(f"{place}: {reason}; it must hold ServeGen's statistics") from None
