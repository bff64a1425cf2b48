"""The state of a block manager in a file: a run may begin where another one ended.

The file is a line of JSON that says what it is, and the state (`sim.state.object_graph`). It holds
blocks and queues, ghosts, counters and random generators, all that later decisions depend on: what
is restored decides as if it had gone on. It is written whole or not at all, and read by the code
that wrote it only.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sim.cache import BlockManager
from sim.errors import ConfigError, KvsimError
from sim.needs import policy_of
from sim.state.object_graph import Unsaved, dumps, loads

FORMAT = 1
OURS = frozenset({"sim", "policies", "workloads"})
SAVE = "write one with kvsim replay --save-state FILE"


class StateFile:
    """*path*, as a place for the state of managers like *manager*, which is empty.

    ConfigError if such a state cannot be kept: requests hold blocks, or the policy has seen the
    future, which another run does not have. *num_blocks*: the pool's size as it was given, for
    errors; managers know only how many they can use.
    """

    def __init__(self, path: Path, manager: BlockManager, num_blocks: int | None = None) -> None:
        self.path = path
        self._given = num_blocks
        self.manager = manager
        policy = policy_of(manager)
        if policy is not None and policy.is_offline:
            raise ConfigError(
                f"{path}: {type(policy).__name__} is shown the future, which is another in every "
                "run; its state cannot be kept; take another policy"
            )
        self._roots = [manager] if policy is None else [manager, policy]
        self._settings = dict(_settings(manager)) | dict(_settings(policy, "policy."))

    def save(self) -> None:
        """Write the state that the manager has now; the time is taken to be 0."""
        manager = self.manager
        if manager.num_free_blocks != manager.num_blocks:
            raise ConfigError(f"{self.path}: requests hold blocks; save when none is running")
        events, manager.events = manager.events, None
        try:
            body = zlib.compress(dumps(self._roots, self._packages()), 1)
        except Unsaved as error:
            raise ConfigError(f"{self.path}: the state cannot be saved: {error}") from None
        finally:
            manager.events = events
        digest = hashlib.sha256(body).hexdigest()
        about = {"kvsim_state": FORMAT, "code": self._code(), "sha256": digest}
        about |= {"given_num_blocks": self._given}
        line = json.dumps(about | {"settings": self._settings})
        _write(self.path, line.encode() + b"\n" + body)

    def restore(self) -> None:
        """Give the manager the state in the file; evictions are counted from 0.

        ConfigError if there is none, or if it is of another manager, pool, policy or code.
        """
        about, body = _read(self.path)
        self._compare(about["settings"], about.get("given_num_blocks"))
        if about["code"] != self._code():
            raise ConfigError(
                f"{self.path}: was saved by other code of kvsim or of the policy; {SAVE}"
            )
        events = self.manager.events
        try:
            loads(zlib.decompress(body), self._roots, self._packages())
        except (Unsaved, pickle.UnpicklingError, zlib.error, LookupError, ValueError) as error:
            raise ConfigError(f"{self.path}: cannot be restored ({error}); {SAVE}") from error
        self.manager.events = events
        self.manager.num_evicted_blocks = 0
        self.manager.check()

    def _compare(self, saved: dict[str, Any], given: int | None) -> None:
        here = json.loads(json.dumps(self._settings))
        names = [n for n in {**here, **saved} if here.get(n) != saved.get(n)]
        if names:  # the class first, what is private last
            name = min(names, key=lambda n: (not n.endswith("class"), n.startswith("_"), n))
            was, here_is = saved.get(name), here.get(name)
            if name == "num_blocks" and given and was and here_is:  # as they were written
                as_written = self._given or here_is + given - was
                if as_written == given:
                    name += " without the null block"
                else:
                    was, here_is = given, as_written
            raise ConfigError(
                f"{self.path}: was saved of another manager: {name} was {was!r}, here "
                f"it is {here_is!r}; give both the same"
            )

    def _packages(self) -> frozenset[str]:
        """Those that classes may come from: kvsim's and that of the manager and its policy."""
        return OURS | {type(root).__module__.partition(".")[0] for root in self._roots}

    def _code(self) -> str:
        """A hash of the code that the state is made for."""
        from sim.studies.unit import own_code

        digest = hashlib.sha256(own_code().encode())
        for module in sorted({type(root).__module__ for root in self._roots}):
            if module.partition(".")[0] not in OURS and module != "__main__":
                spec = find_spec(module)
                if spec and spec.origin and Path(spec.origin).is_file():
                    digest.update(Path(spec.origin).read_bytes())
        return digest.hexdigest()


def block_size_of(path: Path) -> int:
    """Tokens per block of the state in *path*; ConfigError if it is none."""
    return int(_read(path)[0]["settings"]["block_size"])


def _settings(one: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What a new manager or policy was made with: its class and its plain attributes."""
    yield prefix + "class", f"{type(one).__module__}:{type(one).__qualname__}"
    for name, value in sorted(getattr(one, "__dict__", {}).items()):
        plain = value is None or isinstance(value, bool | int | float | str)
        if plain and name != "events":
            yield prefix + name, value
        elif isinstance(value, tuple) and all(isinstance(v, int | float | str) for v in value):
            yield prefix + name, list(value)


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """What *path* says of itself, and the state; ConfigError unless both are whole."""
    try:
        line, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; {SAVE}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        about = json.loads(line)
        number = about["kvsim_state"]
    except (ValueError, LookupError, TypeError):
        raise ConfigError(f"{path}: is no saved state of kvsim; {SAVE}") from None
    if number != FORMAT:
        raise ConfigError(f"{path}: has format {number}, this kvsim reads {FORMAT}; {SAVE}")
    if hashlib.sha256(body).hexdigest() != about.get("sha256"):
        raise ConfigError(f"{path}: is damaged, its checksum is another; {SAVE}")
    return about, body


def _write(path: Path, data: bytes) -> None:
    """Write *path*, whole or not at all."""
    scratch = path.with_name(f".saving-{path.name}-{os.getpid()}")
    try:
        try:
            with scratch.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise KvsimError(f"{path}: cannot write the state: {error.strerror or error}") from error
