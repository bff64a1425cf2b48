from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from sim.cli import main
from sim.errors import ConfigError, TraceError
from workloads import WORKLOADS, catalog
from workloads.catalog import DATASETS, Dataset, File
from workloads.data import find
from workloads.datasets import is_present
from workloads.detect import detect

ROW = json.dumps({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}).encode()
SHA256 = hashlib.sha256(ROW).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serves the folder `web` on this machine."""
    (tmp_path / "web").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "web")))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders `data` and `cache`, which the environment names."""
    for name, folder in (("KVSIM_DATA", "data"), ("KVSIM_CACHE", "cache")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    return tmp_path


def offer(monkeypatch: pytest.MonkeyPatch, url: str, sha256: str = SHA256) -> None:
    """Make `one` the only dataset."""
    one = Dataset("mooncake", "none", "a test", (File("m/one.jsonl", sha256, url),))
    for place in (catalog.DATASETS,):
        monkeypatch.setitem(place, "one", one)


def test_every_entry_is_complete() -> None:
    """A known reader, a licence, a whole SHA-256; URLs are pinned to a commit."""
    for name, entry in DATASETS.items():
        assert entry.use in WORKLOADS, name
        assert entry.licence
        assert entry.source
        for file in entry.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert not file.url or any(len(part) == 40 for part in file.url.split("/"))


@pytest.mark.slow
def test_what_is_in_the_folder_is_what_the_catalog_says(
    kvsim_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, digests and formats of all datasets that are there."""
    monkeypatch.setenv("KVSIM_DATA", str(kvsim_data))
    there = [name for name in DATASETS if is_present(name)]
    for name in there:
        assert detect(f"dataset:{name}") == DATASETS[name].use
    if not there:
        pytest.skip(f"no dataset under {kvsim_data}")


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_dataset_is_found_however_compressed(
    folders: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    offer(monkeypatch, "")
    path = folders / "data" / "m" / f"one.jsonl{suffix}"
    path.parent.mkdir()
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](ROW))
    assert find("dataset:one") == path
    assert detect("dataset:one") == "mooncake"
    assert main(["trace", "info", "dataset:one"]) == 0


def test_another_content_is_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that was edited is no longer that dataset; its file can still be named itself."""
    offer(monkeypatch, "")
    path = folders / "data" / "m" / "one.jsonl"
    path.parent.mkdir()
    path.write_bytes(ROW + b"\n")
    with pytest.raises(TraceError, match=r"has the SHA-256 .* name the file itself"):
        find("dataset:one")
    assert find("m/one.jsonl") == path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_dataset_is_fetched_once(
    folders: Path, server: str, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Downloaded, verified, kept; the second time nothing is asked of the server."""
    pytest.importorskip("pooch")
    offer(monkeypatch, f"{server}/one.jsonl{suffix}")
    there = folders / "web" / f"one.jsonl{suffix}"
    there.write_bytes(gzip.compress(ROW) if suffix else ROW)
    path = find("dataset:one")
    assert path == folders / "cache" / "one" / f"one.jsonl{suffix}"
    there.unlink()
    assert find("dataset:one") == path
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_failed_download_leaves_nothing(
    folders: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is not there, or another one than expected: one line with a remedy."""
    pytest.importorskip("pooch")
    offer(monkeypatch, f"{server}/one.jsonl")
    with pytest.raises(TraceError, match=r"cannot be fetched from http.* under the folder KVSIM"):
        find("dataset:one")
    (folders / "web" / "one.jsonl").write_bytes(b"something else")
    with pytest.raises(TraceError, match="has the SHA-256"):
        find("dataset:one")
    assert not any(p.is_file() for p in (folders / "cache").rglob("*"))


def test_without_pooch_or_url_the_message_says_what_to_do(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, "")
    with pytest.raises(TraceError, match=r"it is made of a test; put it at m/one.jsonl"):
        find("dataset:one")
    offer(monkeypatch, "http://localhost/one.jsonl")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(TraceError, match=r"install kvsim\[datasets\] to fetch it"):
        find("dataset:one")
    with pytest.raises(ConfigError, match=r"no dataset is called 'on'; did you mean 'one'"):
        find("dataset:on")


def test_the_list_says_what_is_there(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("mooncake_conversation") for line in lines)
    assert all("Apache-2.0" in line for line in lines if line.startswith("mooncake"))
