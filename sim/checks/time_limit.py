"""Stop code that does not come back: for checks of classes that may loop for ever."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time

POLL_SECONDS = 0.05


class Overdue(BaseException):
    """The time is up. Not an `Exception`, so that code under test does not handle it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Overdue` in the body once the process has used *seconds* of CPU time.

    CPU time, so that a busy machine makes nobody late. Python code is interrupted wherever it is;
    a single call into C that never returns is not.
    """
    watch = _Watch(seconds)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


class _Watch(threading.Thread):
    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self._target_id = ctypes.c_ulong(threading.get_ident())
        self._end = process_time() + seconds
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            with self._lock:
                if not self._is_over.is_set() and process_time() > self._end:
                    self._raise(ctypes.py_object(Overdue))  # again and again, in case it is caught

    def stop(self) -> None:
        """From when this returns, nothing is raised any more."""
        while not self._is_over.is_set():
            try:
                with self._lock:
                    self._raise(None)  # what was raised and has not arrived yet
                    self._is_over.set()
            except Overdue:
                continue

    def _raise(self, error: ctypes.py_object[type[Overdue]] | None) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._target_id, error)
