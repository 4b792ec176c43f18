"""SIGTERM and Ctrl-C while a pipeline runs."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from penstock.core import get_logger

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NEWS = ("", "stopping after the block in hand; a second signal stops at once", "stopping at once")

_log = get_logger(__name__)


class Stopping:
    """Counts the signals that ask for a stop, instead of the handlers that were there: the session has its own.

    Outside the main thread Python allows no handlers, and no signal is counted.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._logged = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def is_asked(self) -> bool:
        """Whether to finish the block in hand, and stop."""
        return self._asked > 0

    @property
    def is_urgent(self) -> bool:
        """Whether to stop at once."""
        return self._asked > 1

    def log_news(self) -> None:
        """Log each signal that was counted since. Not in the handler: a logger's lock may be held where it runs."""
        while self._logged < min(self._asked, 2):
            self._logged += 1
            _log.info(_NEWS[self._logged])

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._ask) for one in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked += 1
