"""Whose an error is: kvsim's own, which needs a traceback, or that of a class of somebody else."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import FrameType

OURS = frozenset({"sim", "policies", "workloads", "gpu_backend"})
LIBRARIES = ("site-packages", "dist-packages")


def blame(error: BaseException) -> str | None:
    """*error* in one line, with the class and the line that raised it; None if it is kvsim's own.

    The innermost frame decides, libraries left aside: what somebody else's class asked of NumPy is
    theirs, what kvsim asked of it is kvsim's.
    """
    theirs: list[tuple[FrameType, int]] = []
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _is_ours(frame):
            break
        if not _is_library(frame):
            theirs.append((frame, line))
    if not theirs:
        return None
    (innermost, line), (entry, _) = theirs[0], theirs[-1]
    where = f"{Path(innermost.f_code.co_filename).name}:{line}"
    return f"{_name(entry)} raised {in_a_line(error)} ({where})"


def in_a_line(error: BaseException) -> str:
    """`ValueError: what it says`, whatever lines it says it in; its class alone if it is silent."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an exception of somebody else may fail to say anything
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_ours(frame: FrameType) -> bool:
    spec = frame.f_globals.get("__spec__")  # of `python -m sim.cli` too, which is __main__
    name = getattr(spec, "name", None) or frame.f_globals.get("__name__", "")
    return str(name).partition(".")[0] in OURS


def _is_library(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    path = Path(frame.f_globals.get("__file__") or filename)  # Cython's frames name no real file
    if filename.startswith("<frozen") or any(part in LIBRARIES for part in path.parts):
        return True
    return path.is_relative_to(sysconfig.get_path("stdlib"))


def _name(frame: FrameType) -> str:
    """`module:Class` of the object whose method *frame* is, else `module:function`."""
    made = frame.f_locals.get("self")
    if made is not None and "." in frame.f_code.co_qualname:
        return f"{type(made).__module__}:{type(made).__qualname__}"
    return f"{frame.f_globals.get('__name__', '')}:{frame.f_code.co_qualname}"
