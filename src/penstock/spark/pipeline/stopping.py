"""SIGTERM and Ctrl-C while a pipeline runs."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Counts the signals that ask for a stop, in place of the handlers that were there: the session has its own.

    Outside the main thread Python allows no handlers, and nothing is asked.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def is_asked(self) -> bool:
        """Whether to finish the block in hand, and stop."""
        return self._asked > 0

    @property
    def is_urgent(self) -> bool:
        """Whether to stop at once."""
        return self._asked > 1

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._ask) for one in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked += 1
