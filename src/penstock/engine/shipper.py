"""`Shipper`: ships an open queue in a thread of its own, beside the application."""

from __future__ import annotations

import os
import threading
from typing import Any

from penstock.buffer import ProducerConfig
from penstock.core import Backoff, Closing, check_config, check_seconds, close_at_exit, forget, get_logger
from penstock.engine.runs import Health
from penstock.engine.shipping import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, Shipping
from penstock.engine.transports.buffer_sender import BufferSender
from penstock.errors import EngineError, InvalidInput, StorageError
from penstock.queue import DurableEventQueue
from penstock.storage import ObjectStore, open_store

_log = get_logger(__name__)


class Shipper(Closing):
    """Moves the events of an open queue into a buffer, in a thread of its own, until `close`.

    `close` goes on until the queue is empty, for `drain_seconds` at most, and waits for the block that is under way: a
    store that fails is tried for the `enqueue_deadline` of `config`. What is left then stays in the queue. It is closed
    before the queue is: by a `with`, or else when the process ends. While the store fails it tries again, also if it
    failed from the start. Raises `InvalidInput` for wrong arguments; `close` raises what has ended the thread, if that
    was nothing to try again: see `healthy`.

    >>> import tempfile
    >>> with (
    ...     DurableEventQueue.for_worker(tempfile.mkdtemp()) as queue,
    ...     Shipper(queue, "memory://doctest-shipper"),
    ... ):
    ...     _ = queue.push(b"an event")
    """

    _instead_in_child = "its thread is in the parent alone. Open a queue and a Shipper here, and none before the fork"

    def __init__(
        self,
        queue: DurableEventQueue[Any],
        where: str | os.PathLike[str] | ObjectStore,
        *,
        config: ProducerConfig | None = None,
        drain_seconds: float = 5.0,
    ) -> None:
        super().__init__()
        if not isinstance(queue, DurableEventQueue):
            raise InvalidInput(f"a Shipper takes an open DurableEventQueue, not {type(queue).__name__}")
        check_seconds("drain_seconds", drain_seconds, zero=True)
        config = ProducerConfig() if config is None else config
        check_config(config, ProducerConfig)
        self._queue = queue
        self._store = open_store(where)
        self._config = config
        self._drain_seconds = drain_seconds
        self._stop, self._hurry = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._is_joined = False
        self._thread = threading.Thread(target=self._ship, name="penstock-shipper", daemon=True)
        close_at_exit(self)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Shipper({self._queue!r})"

    @property
    def healthy(self) -> Health:
        """Whether it ships, or tries again. If not, events only gather in the queue."""
        if self._error is not None:
            return Health(False, f"it has ended with {type(self._error).__name__}: {self._error}")
        return Health(False, "it is closed") if self._is_closed else Health(True, "it ships")

    def close(self) -> None:
        """Ship what is in the queue, for `drain_seconds` at most, and stop. A second `close` does nothing."""
        self._check_process()
        self._is_closed = True
        self._stop.set()
        self._thread.join(self._drain_seconds)
        self._hurry.set()
        self._thread.join()
        forget(self)
        error, was_joined, self._is_joined = self._error, self._is_joined, True
        if error is not None and not was_joined:
            raise error

    def _ship(self) -> None:
        try:
            sender = self._opened_sender()
            if sender is not None:
                with sender:
                    Shipping(sender, self._stop, until_idle=False).ship(self._queue)
                    self._drain(sender)
        except Exception as error:  # noqa: BLE001  `close` raises it
            _log.error("%r has ended, and events only gather in the queue: %s", self, error)
            self._error = error
        else:
            if events := self._queue.approximate_len():
                _log.warning("%r is closed, and %d events stay in the queue until it is opened again", self, events)

    def _opened_sender(self) -> BufferSender | None:
        """Open the buffer; while that fails, try again. None if it is closed meanwhile."""
        backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, jitter=lambda: 1.0)
        while True:
            try:
                return BufferSender(self._store, self._config)
            except StorageError as error:
                if self._stop.is_set():
                    return None
                seconds = backoff.seconds()
                _log.warning("%r cannot open the buffer: %s; trying again in %.0f s", self, error, seconds)
                self._stop.wait(seconds)

    def _drain(self, sender: BufferSender) -> None:
        """Ship until the queue is empty, or there is no more time. A store that fails now is not tried again."""
        try:
            Shipping(sender, self._hurry, until_idle=True).ship(self._queue)
        except EngineError as error:
            if not isinstance(error.__cause__, StorageError):
                raise
            _log.warning("%r: %s", self, error)
