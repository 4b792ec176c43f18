"""`Shutdown`: the event that ends a run, of threads or of asyncio, asked in the same way."""

from __future__ import annotations

import asyncio
import threading
import time

from penstock.errors import InvalidInput


class Shutdown:
    """Asks an event from the thread of a run.

    An `asyncio.Event` belongs to its loop's thread; to ask whether it is set is one read, and does no harm in another.
    Raises `InvalidInput` for what is no event.
    """

    def __init__(self, event: object) -> None:
        if event is not None and not isinstance(event, threading.Event | asyncio.Event):
            kind = type(event).__name__
            raise InvalidInput(f"shutdown must be a threading.Event or an asyncio.Event, not {kind}")
        self._event = event

    def is_set(self) -> bool:
        """Whether the run is to end."""
        return self._event is not None and self._event.is_set()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it is set. Only for short waits: an `asyncio.Event` is not waited for."""
        if isinstance(self._event, threading.Event):
            self._event.wait(seconds)
        else:
            time.sleep(seconds)
