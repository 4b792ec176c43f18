"""What a command does while it starts: a line every two seconds at a terminal, or log lines."""

from __future__ import annotations

import sys
import threading
import time

from penstock.cli.output import say
from penstock.core import get_logger

_QUIET_SECONDS = 1.0  # in which most commands have answered
_LINE_SECONDS = 2.0

_log = get_logger("penstock.cli")


class Starting:
    """Shows what is being done until it is left."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._doing = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="penstock-starting", daemon=True)

    def __enter__(self) -> Starting:
        if self._is_terminal:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._is_terminal:
            self._thread.join()

    def say(self, doing: str, *, logged: bool = True) -> None:
        """Note what is being done now; where there is no terminal it is logged, unless that is over in a moment."""
        self._doing = doing
        if logged and not self._is_terminal:
            _log.info("%s", doing)

    def _show(self) -> None:
        wait = _QUIET_SECONDS
        while not self._is_over.wait(wait):
            say(f"{self._doing} ({time.monotonic() - self._began:.0f} s)", err=True)
            wait = _LINE_SECONDS
