"""`ChangeSignal`: wakes the threads that wait for something to change."""

from __future__ import annotations

import threading


class ChangeSignal:
    """Counts changes. A waiting thread notices every change since it last asked for the count; none registers."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self.changes = 0
        """How many there were. Ask before looking at what changes, and then `wait` for more than that."""

    def notify(self) -> None:
        """Count a change, and wake every thread that waits."""
        with self._changed:
            self.changes += 1
            self._changed.notify_all()

    def wait(self, changes: int, timeout: float) -> None:
        """Return when there were more changes than that, or after `timeout` seconds."""
        with self._changed:
            if self.changes == changes:
                self._changed.wait(timeout)
