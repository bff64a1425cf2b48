from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from sim.errors import TraceError
from workloads.servegen import ServeGen, ServeGenLengths
from workloads.streams import stream


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients: Gamma in the first window, Weibull in the second; lengths 10 and 30."""
    rows = {0: "0,2,1,Gamma,1,0.5\n600,0,0,,0,0\n", 1: "0,0,0,,0,0\n600,4,2,Weibull,0.6,0.2\n"}
    for client, text in rows.items():
        (tmp_path / f"chunk-{client}-trace.csv").write_text(text)
        lengths = {"0": {"input_tokens": "{10: 0.75, 30: 0.25}", "output_tokens": "{0: 1, 7: 1}"},
                   "21600": {"input_tokens": "{}", "output_tokens": "{}"}}  # fmt: skip
        (tmp_path / f"chunk-{client}-dataset.json").write_text(json.dumps(lengths))
    return tmp_path


def test_windows_have_their_rates(folder: Path) -> None:
    """2 a second for 600 s, 4 a second for 600 s, and again."""
    times = ServeGen(folder).times(7200, stream(3, "t"))
    assert (np.diff(times) >= 0).all()
    counts = np.histogram(times, bins=[0, 600, 1200, 1800])[0]
    np.testing.assert_allclose(counts, [1200, 2400, 1200], rtol=0.1)
    np.testing.assert_allclose(ServeGen(folder).times(50, stream(3, "t")), times[:50])


def test_it_can_begin_later_and_faster(folder: Path) -> None:
    times = ServeGen(folder, start_s=900, rate_scale=10).times(12_000, stream(3, "t"))
    assert times[0] < 1
    assert times[-1] == pytest.approx(300, rel=0.1)


def test_lengths_are_drawn_by_share(folder: Path) -> None:
    """An answer of 0 tokens cannot be served and is not drawn."""
    drawn = ServeGenLengths(folder).draw(10_000, stream(0, "t"))
    assert set(drawn) == {10, 30}
    assert (drawn == 10).mean() == pytest.approx(0.75, abs=0.02)
    assert set(ServeGenLengths(folder, "answer").draw(100, stream(0, "t"))) == {7}


def test_an_archive_is_as_good_as_a_folder(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.add(folder, "data")
    a, b = (ServeGen(p).times(100, stream(0, "t")) for p in (folder, path))
    assert a.tolist() == b.tolist()


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("chunk-0-trace.csv", "0,1,1,Gamma,1\n", "chunk-0-trace.csv:1: the row has 5 fields"),
        ("chunk-0-trace.csv", "0,1,1,Zipf,1,1\n", "is no window with traffic"),
        ("chunk-0-trace.csv", "0,1,1,Weibull,0.001,1\n", "is no window with traffic"),
        ("chunk-0-trace.csv", "0,1,1,Gamma,1e-300,1\n", "is no window with traffic"),
        ("chunk-0-trace.csv", "0,nan,1,Gamma,1,1\n", "rate is 'nan'"),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "print(1)"}}', "must hold ServeGen's"),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "[1]"}}', "is no dict"),
        ("chunk-0-dataset.json", "{", "not JSON"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, text: str, what: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=what):
        (ServeGen if name.endswith("csv") else ServeGenLengths)(tmp_path)


def test_what_is_no_servegen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"has traffic; is it ServeGen's\?"):
        ServeGen(tmp_path)
    (tmp_path / "s.tar").write_bytes(b"junk" * 500)
    with pytest.raises(TraceError, match="no archive that can be read"):
        ServeGen(tmp_path / "s.tar")


def test_the_published_statistics(kvsim_data: Path) -> None:
    """About 1.38 M requests a day: the first hour and a half as the rates say."""
    path = kvsim_data / "servegen" / "servegen_deepseek-r1_73clients.tar.xz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    arrivals = ServeGen(path)
    rates = {n: sum(w.rate for _, w in group) for n, group in arrivals._windows.items()}
    assert 600 * sum(rates.values()) == pytest.approx(1_383_669, rel=1e-4)
    num = round(600 * sum(rates[n] for n in range(9)))
    assert arrivals.times(num, stream(0, "t"))[-1] == pytest.approx(5400, rel=0.1)
    assert ServeGenLengths(path, "answer").draw(1000, stream(0, "t")).min() >= 1


def test_next_to_no_traffic_is_refused(tmp_path: Path) -> None:
    """A rate of a request in a thousand years would never come to an end."""
    (tmp_path / "chunk-0-trace.csv").write_text("0,1e-11,1,Gamma,1,1\n")
    with pytest.raises(TraceError, match="requests in all of its windows"):
        ServeGen(tmp_path)
