"""When a consumer that follows a queue looks again, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core import Backoff, check_seconds

_FIRST_POLL_SECONDS = 0.01
_LONGEST_POLL_SECONDS = 0.5


class Polls:
    """Waits that double while no batch comes, up to `timeout` seconds without one (None: for ever).

    Raises `InvalidInput` for a timeout that is none.
    """

    def __init__(self, uptime: Callable[[], float], timeout: float | None) -> None:
        if timeout is not None and timeout != float("inf"):
            check_seconds("timeout", timeout, zero=True)
        self._uptime = uptime
        self._timeout = float("inf") if timeout is None else timeout
        self._backoff = Backoff(_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS, jitter=lambda: 1.0)
        self.note_batch()

    def note_batch(self) -> None:
        """Begin anew: a batch came."""
        self._until = self._uptime() + self._timeout
        self._backoff.reset()

    def seconds(self) -> float | None:
        """How long to wait before the next look; None when it is time to give up."""
        remaining = self._until - self._uptime()
        return None if remaining <= 0 else min(self._backoff.seconds(), remaining)
