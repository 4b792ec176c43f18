"""`StopOnSignal`: SIGINT and SIGTERM as an event that a loop looks at between two steps."""

from __future__ import annotations

import os
import select
import signal
import threading
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal(threading.Event):
    """Is set by the first SIGINT (Ctrl-C) or SIGTERM in a `with` block; a second one ends the process at once.

    For the main thread: Python allows handlers nowhere else. It interrupts nothing but its own waits. An exception
    would come in the middle of anything; and to set a plain `threading.Event` in a handler can deadlock, on its lock
    that the interrupted code holds. So the waits are for a pipe. The interpreter itself writes to it when a signal
    arrives, also one that arrives just before a wait begins.

    >>> with StopOnSignal() as stop:
    ...     stop.wait(0.01), stop.signal
    (False, None)
    """

    def __init__(self) -> None:
        super().__init__()
        self.signal: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end)
        self._handlers_before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read_end)
        os.close(self._write_end)

    def is_set(self) -> bool:
        """Whether a signal came, or `set` was called. Takes no lock."""
        return self.signal is not None or super().is_set()

    def set(self) -> None:
        """Do what a signal does. Not for signal handlers."""
        super().set()
        os.write(self._write_end, b"\0")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a signal, at most so many seconds, and return whether one came."""
        self._wait(timeout)
        return self.is_set()

    def wait_for_input(self, descriptor: int, timeout: float | None = None) -> bool:
        """Wait until a descriptor can be read, and return whether it can; False after a signal, or the timeout."""
        return self._wait(timeout, descriptor) and not self.is_set()

    def _wait(self, timeout: float | None, *descriptors: int) -> bool:
        ready, _, _ = select.select([self._read_end, *descriptors], [], [], timeout)
        if self._read_end in ready and not self.is_set():
            os.read(self._read_end, 4096)  # of another signal that the program handles, or the handler is about to run
        return any(one in ready for one in descriptors)

    def _note(self, number: int, _: FrameType | None) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        self.signal = signal.Signals(number)
        os.write(self._write_end, b"\0")
