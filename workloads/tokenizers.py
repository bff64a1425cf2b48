"""From text to token ids: what stands between a log of conversations and blocks.

Built in are `bytes`, `characters` and `words` (each with the white space before it), with the
libraries installed `tokenizers:FILE-or-NAME` and `tiktoken:ENCODING`; others are `module:function`.
Absolute hit rates need the tokenizer of the model that was served; the built-in ones do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from sim.errors import ConfigError
from sim.spec.names import imported
from sim.spec.place import Place

Tokenize = Callable[[str], Sequence[int]]

WORD = re.compile(r"\s*\S+|\s+$")


def tokenizer(name: str) -> Tokenize:
    """The function that *name* names; ConfigError, with what is known, if it names none."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    library, colon, which = name.partition(":")
    if colon and library in LIBRARIES:
        return LIBRARIES[library](which)
    if colon:
        found = imported(name, Place(path=("tokenizer",)))
        if callable(found):
            return found  # type: ignore[no-any-return]
    known = (*BUILT_IN, *(f"{library}:..." for library in LIBRARIES), "module:function")
    raise ConfigError(f"tokenizer is {name!r}; it must be one of {', '.join(known)}")


def _bytes() -> Tokenize:
    return lambda text: text.encode("utf-8", "surrogatepass")


def _characters() -> Tokenize:
    return lambda text: [ord(character) for character in text]


def _words() -> Tokenize:
    numbers: dict[str, int] = {}
    return lambda text: [numbers.setdefault(word, len(numbers)) for word in WORD.findall(text)]


def _huggingface(which: str) -> Tokenize:
    tokenizers = _library("tokenizers")
    kind = tokenizers.Tokenizer
    try:
        made = kind.from_file(which) if Path(which).is_file() else kind.from_pretrained(which)
    except Exception as error:  # the library raises bare exceptions
        raise ConfigError(f"tokenizer {which!r} cannot be loaded ({_line(error)})") from None
    return lambda text: made.encode(text, add_special_tokens=False).ids


def _tiktoken(which: str) -> Tokenize:
    tiktoken = _library("tiktoken")
    try:
        encoding = tiktoken.get_encoding(which)
    except Exception as error:  # also what a network raises
        raise ConfigError(f"encoding {which!r} cannot be loaded ({_line(error)})") from None
    return lambda text: encoding.encode(text, disallowed_special=())


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _library(name: str):  # type: ignore[no-untyped-def]
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"tokenizer {name}:... needs {name}; pip install {name}") from None


BUILT_IN: dict[str, Callable[[], Tokenize]] = {
    "bytes": _bytes,
    "characters": _characters,
    "words": _words,
}
LIBRARIES: dict[str, Callable[[str], Tokenize]] = {
    "tokenizers": _huggingface,
    "tiktoken": _tiktoken,
}
