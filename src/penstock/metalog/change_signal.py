"""`ChangeSignal`: wakes the threads that wait for something to change."""

from __future__ import annotations

import threading


class ChangeSignal:
    """Counts changes. A waiting thread notices every change since it last asked for the count; none registers."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._changes = 0

    @property
    def changes(self) -> int:
        """How many changes there were. Ask before looking at what changes, and then `wait` for more than that."""
        return self._changes

    def notify(self) -> None:
        """Count a change, and wake every thread that waits."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def wait(self, changes: int, timeout: float) -> None:
        """Return when there were more changes than that, or after `timeout` seconds."""
        with self._changed:
            if self._changes == changes:
                self._changed.wait(timeout)
