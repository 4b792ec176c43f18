"""`ship`: from the durable queues of this host into a buffer."""

from __future__ import annotations

import os
import threading
from typing import Any

from penstock.buffer import ProducerConfig
from penstock.core import Backoff, get_logger
from penstock.engine.batch_engine import BatchEngine
from penstock.engine.stats import EngineStats
from penstock.engine.transports.buffer_sender import BufferSender
from penstock.engine.transports.queue import QueueReceiver
from penstock.errors import (
    CorruptData,
    EngineError,
    InvalidInput,
    NotFound,
    PenstockError,
    ReceiveFailed,
    StorageError,
)
from penstock.queue import DurableEventQueue, is_queue, opening_of, queues_in
from penstock.storage import ObjectStore, local_path

_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 30.0
_FOLDER_POLL_SECONDS = 1.0

_log = get_logger(__name__)


def ship(
    queue: DurableEventQueue[Any] | str | os.PathLike[str],
    where: str | os.PathLike[str] | ObjectStore,
    *,
    stop: threading.Event | None = None,
    until_idle: bool = False,
    config: ProducerConfig | None = None,
) -> EngineStats:
    """Move the events of a queue into a buffer, on and on; an event is acked when the buffer has it durably.

    `queue` is an open queue (run this in a thread beside the application), or a path that no process has open: one
    queue, or a folder of queues. It ends when `stop` is set, or with `until_idle` when nothing is left. A crash at any
    point loses nothing; the block that was under way may be in the buffer twice.

    While the store or the disk fails it logs that, and tries again until it works or `stop` is set; with `until_idle`
    the error is raised. Raises `EngineError` for what trying again does not mend, `NotFound` where no queue is, and
    `StorageError` for a queue that another process has open.

    >>> import tempfile
    >>> with DurableEventQueue(tempfile.mkdtemp()) as queue:
    ...     _ = queue.push_many([b"one", b"two"])
    ...     ship(queue, "memory://doctest-ship", until_idle=True).processed, len(queue)
    (2, 0)
    """
    if not isinstance(queue, DurableEventQueue | str | os.PathLike):
        raise InvalidInput(f"ship takes an open DurableEventQueue or a path, not {type(queue).__name__}")
    if stop is not None and not isinstance(stop, threading.Event):
        raise InvalidInput(f"stop must be a threading.Event, not {type(stop).__name__}")
    with BufferSender(where, config) as sender:
        return _Shipper(sender, stop or threading.Event(), until_idle=until_idle).ship(queue)


class _Shipper:
    def __init__(self, sender: BufferSender, stop: threading.Event, *, until_idle: bool) -> None:
        self._sender = sender
        self._stop = stop
        self._until_idle = until_idle
        self._engine = BatchEngine()

    def ship(self, queue: DurableEventQueue[Any] | str | os.PathLike[str]) -> EngineStats:
        if isinstance(queue, DurableEventQueue):
            self._ship_queue(queue, until_idle=self._until_idle)
        elif is_queue(queue):
            with DurableEventQueue(queue) as opened:
                self._ship_queue(opened, until_idle=self._until_idle)
        else:
            self._ship_folder(local_path(queue))
        return self._engine.stats

    def _ship_queue(self, queue: DurableEventQueue[Any], *, until_idle: bool) -> None:
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS, jitter=lambda: 1.0)
        with QueueReceiver(queue) as receiver:
            while not self._stop.is_set():
                before = self._engine.stats.processed
                try:
                    self._engine.run(
                        receiver, lambda batch: batch, self._sender.send, shutdown=self._stop, until_idle=until_idle
                    )
                except EngineError as error:
                    if self._until_idle or not isinstance(error.__cause__, StorageError):
                        raise
                    if until_idle and isinstance(error, ReceiveFailed):
                        raise  # this queue of a folder cannot be read: the others come first
                    if self._engine.stats.processed > before:
                        backoff.reset()
                    seconds = backoff.seconds()
                    _log.warning("shipping from %r: %s; trying again in %.0f s", queue, error, seconds)
                    self._stop.wait(seconds)
                else:
                    return

    def _ship_folder(self, folder: str) -> None:
        """Ship every queue of a folder; without `until_idle`, again each time another process has opened it since."""
        logged = set[str]()
        shipped: dict[str, bytes | None] = {}  # the opening of a queue in which everything of it was shipped
        while not self._stop.is_set():
            places = _places_in(folder)
            if not places and self._until_idle:
                raise NotFound(f"there is no durable queue in {folder}")
            refused = list[PenstockError]()
            for place in places:
                if self._stop.is_set() or (place in shipped and shipped[place] == opening_of(place)):
                    continue
                try:
                    with DurableEventQueue(place) as queue:
                        opening = opening_of(place)  # now: after the close another process may open it
                        self._ship_queue(queue, until_idle=True)
                except (StorageError, CorruptData, ReceiveFailed) as error:
                    refused.append(error)  # one queue that cannot be read does not hold up the others
                    continue
                shipped[place] = opening
            if self._until_idle:
                for refusal in refused:
                    raise refusal
                return
            for refusal in refused:
                if str(refusal) not in logged:
                    _log.warning("%s; looking again every %.0f s", refusal, _FOLDER_POLL_SECONDS)
            logged = {str(refusal) for refusal in refused}
            self._stop.wait(_FOLDER_POLL_SECONDS)


def _places_in(folder: str) -> list[str]:
    try:
        return queues_in(folder)
    except OSError as error:
        raise NotFound(f"there is no durable queue in {folder}: {error.strerror}") from error
