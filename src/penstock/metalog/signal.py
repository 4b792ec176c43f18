"""A signal between threads: something has changed, look again."""

from __future__ import annotations

import threading


class Signal:
    """Those who wait are told of every change since they last looked; nobody is registered anywhere."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._changes = 0

    @property
    def changes(self) -> int:
        """How often it was given so far: ask before looking, and wait for more than that."""
        return self._changes

    def give(self) -> None:
        """Let everybody look again."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def wait(self, changes: int, timeout: float) -> None:
        """Return when it was given more often than that, or the time is over."""
        with self._changed:
            if self._changes == changes:
                self._changed.wait(timeout)
