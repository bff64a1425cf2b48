"""What a results folder says of its experiment: its baseline, and who was shown the future."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.errors import ConfigError, KvsimError
from sim.results import Results
from sim.spec.names import find
from sim.spec.place import Place


def lru_of(config: dict[str, Any], results: Results) -> str | None:
    """The first policy that is plain LRU, as `sim.studies.experiment.lru_label` has it."""
    specs = config.get("policies") or {}
    for label, spec in specs.items():
        spec = {"use": spec} if isinstance(spec, str) else spec
        eviction = spec.get("eviction") or "lru"
        name = eviction.get("use") if isinstance(eviction, dict) else eviction
        if name == "lru" and spec.get("enable_caching") is not False:
            return label if label in set(results.summary["policy"]) else None
    return None


def offline_of(config: dict[str, Any]) -> frozenset[str]:
    """The labels of policies that are shown the future."""
    found = set()
    for label, spec in (config.get("policies") or {}).items():
        eviction = spec.get("eviction") if isinstance(spec, dict) else None
        name = eviction.get("use") if isinstance(eviction, dict) else eviction
        try:
            if name and getattr(find("policy", name, Place()), "is_offline", False):
                found.add(label)
        except ConfigError:  # a policy of somebody else's machine
            continue
    return frozenset(found)


def text_of(path: Path) -> str:
    """What stands in *path*; KvsimError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise KvsimError(f"{path}: cannot be read: {error.strerror}") from None
