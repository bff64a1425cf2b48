"""A script for the walkthrough: a manager, a few requests with token ids, and what happens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from sim.cache import BlockManager
from sim.errors import ConfigError
from sim.spec.build import build
from sim.spec.config import Config, load
from sim.spec.parameters import Parameters
from sim.spec.place import Place, did_you_mean, show

Verb = Literal["arrive", "decode", "finish"]
VERBS: tuple[Verb, ...] = ("arrive", "decode", "finish")
SECTIONS = ("manager", "requests", "steps")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request of the script: its name and the token ids of its prompt."""

    id: int | str
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What happens at one time: a request arrives, decodes *tokens*, or finishes."""

    time: int | float
    arrive: int | str | None = None
    decode: int | str | None = None
    finish: int | str | None = None
    tokens: tuple[int, ...] = ()

    @property
    def verb(self) -> Verb:
        """The one verb that is given."""
        return next(verb for verb in VERBS if getattr(self, verb) is not None)

    @property
    def name(self) -> int | str:
        """The request that it is about."""
        name: int | str = getattr(self, self.verb)
        return name


class Script:
    """A checked script: a YAML file or the same as a mapping; ConfigError with file and line."""

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, object]) -> None:
        config = load(source, least="'manager:', 'requests:' and 'steps:'")
        root = config.root
        for key in config.data:
            if key not in SECTIONS:
                hint = did_you_mean(key, SECTIONS)
                raise ConfigError(f"{root / key}: unknown{hint} (it takes: {', '.join(SECTIONS)})")
        self.manager: BlockManager = build(
            "manager", config.data.get("manager"), where=root / "manager"
        )
        self.prompts: dict[int | str, Prompt] = {}
        for place, spec in _listed(config, "requests"):
            prompt = _made(Prompt, spec, place)
            if prompt.id in self.prompts:
                raise ConfigError(f"{place / 'id'} is {show(prompt.id)} again; give each its own")
            if not prompt.prompt:
                raise ConfigError(f"{place / 'prompt'} is empty; it must have at least one token")
            self.prompts[prompt.id] = prompt
        self.steps = [(place, _step(spec, place)) for place, spec in _listed(config, "steps")]


def _step(spec: object, place: Place) -> Step:
    step = _made(Step, spec, place)
    if sum(getattr(step, verb) is not None for verb in VERBS) != 1:
        raise ConfigError(f"{place}: a step is one of {', '.join(VERBS)}")
    if (step.verb == "decode") != bool(step.tokens):
        raise ConfigError(f"{place}: decode needs tokens, the sampled token ids; the others none")
    return step


def _listed(config: Config, section: str) -> Iterator[tuple[Place, object]]:
    place, value = config.root / section, config.data.get(section)
    if not isinstance(value, list):
        raise ConfigError(f"{place} is {show(value)}; it must be a list")
    return ((place / i, spec) for i, spec in enumerate(value))


T = TypeVar("T", Prompt, Step)


def _made(kind: type[T], spec: object, place: Place) -> T:
    parameters = Parameters.of(kind)
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{place} is {show(spec)}; it must be a mapping of {parameters}")
    for key in spec:
        if key not in parameters.by_name:
            hint = did_you_mean(key, parameters.by_name)
            raise ConfigError(f"{place / key}: unknown{hint} (it takes: {parameters})")
    for key in parameters.required:
        if key not in spec:
            raise ConfigError(f"{place}: needs {key} (it takes: {parameters})")
    return kind(**{key: parameters.check(key, value, place / key) for key, value in spec.items()})
