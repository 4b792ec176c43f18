"""`ship`: from the durable queues of this host into a buffer."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from logging import INFO, WARNING
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
from penstock.queue import DurableEventQueue, WorkerQueues, is_queue, opening_of, queues_in
from penstock.storage import ObjectStore, local_path

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
_FOLDER_POLL_SECONDS = 1.0
_LOOKING_AGAIN = f"looking again every {_FOLDER_POLL_SECONDS:.0f} s"

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

    `queue` is an open queue (run this in a thread beside the application: see `Shipper`), or a path that no process
    has open: one queue, or a folder of queues. It ends when `stop` is set, or with `until_idle` when nothing is left. A
    crash at any point loses nothing; the block that was under way may be in the buffer twice.

    In a folder, the queues that `DurableEventQueue.for_worker` has made are left to their workers while these live;
    after that they are shipped, and removed when they are empty. A folder that is not there yet is waited for.

    While the store or the disk fails it logs that, and tries again until it works or `stop` is set; with `until_idle`
    the error is raised. Raises `EngineError` for what trying again does not mend; with `until_idle` `NotFound` where no
    queue is, and `StorageError` for a queue that another process has open, unless it is the queue of a live worker.

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
        return Shipping(sender, stop or threading.Event(), until_idle=until_idle).ship(queue)


class Shipping:
    """Moves events from queues to a sender, until `stop` is set."""

    def __init__(self, sender: BufferSender, stop: threading.Event, *, until_idle: bool) -> None:
        self._sender = sender
        self._stop = stop
        self._until_idle = until_idle
        self._engine = BatchEngine()
        self._noted = set[str]()  # at the last look at the folder

    def ship(self, queue: DurableEventQueue[Any] | str | os.PathLike[str]) -> EngineStats:
        """Ship an open queue, the queue in a directory, or those in a folder."""
        if isinstance(queue, DurableEventQueue):
            self._ship_queue(queue, until_idle=self._until_idle)
        elif is_queue(queue):
            with DurableEventQueue(queue) as opened:
                self._ship_queue(opened, until_idle=self._until_idle)
        else:
            self._ship_folder(local_path(queue))
        return self._engine.stats

    def _ship_queue(self, queue: DurableEventQueue[Any], *, until_idle: bool) -> None:
        backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, jitter=lambda: 1.0)
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
        workers = WorkerQueues(folder)
        shipped: dict[str, bytes | None] = {}  # the opening of a queue in which everything of it was shipped
        while not self._stop.is_set():
            if is_queue(folder):  # it was made while it was waited for
                self.ship(folder)
                return
            refused = list[PenstockError]()
            notes = dict[str, int]()
            for place in self._places_in(folder, workers, notes):
                if self._stop.is_set() or (place in shipped and shipped[place] == opening_of(place)):
                    continue
                of_worker = workers.has(place)
                if not of_worker and not is_queue(place):
                    continue  # another shipper has removed it: to open it would make it anew
                try:
                    claimed = workers.claim(place) if of_worker else place
                    if claimed is None:
                        if workers.has(place):
                            notes[f"the queue in {place} is left to its worker, which is alive"] = INFO
                        continue
                    with DurableEventQueue(claimed) as queue:
                        opening = opening_of(place)  # now: after the close another process may open it
                        self._ship_queue(queue, until_idle=True)
                    if of_worker and workers.remove(place):
                        continue
                except (StorageError, CorruptData, ReceiveFailed) as error:
                    refused.append(error)  # one queue that cannot be read does not hold up the others
                    continue
                shipped[place] = opening
            if refused and self._until_idle:
                for refusal in refused[1:]:
                    _log.warning("%s", refusal)
                raise refused[0]
            for refusal in refused:
                notes[f"{refusal}; {_LOOKING_AGAIN}"] = WARNING
            self._log_new(notes)
            if self._until_idle:
                return
            self._stop.wait(_FOLDER_POLL_SECONDS)

    def _places_in(self, folder: str, workers: WorkerQueues, notes: dict[str, int]) -> list[str]:
        """The queues in a folder. Without `until_idle` a folder that is not there yet, or empty, is waited for."""
        try:
            places = queues_in(folder)
            workers.tidy()
        except OSError as error:
            if not self._until_idle and isinstance(error, FileNotFoundError):
                notes[f"{folder} is not there yet; {_LOOKING_AGAIN}"] = WARNING
                return []
            raise NotFound(f"there is no durable queue in {folder}: {error.strerror}") from error
        if not places and self._until_idle and not workers.exist:
            raise NotFound(f"there is no durable queue in {folder}")
        return places

    def _log_new(self, notes: Mapping[str, int]) -> None:
        """Log the notes that the last look at the folder did not have."""
        for note, level in notes.items():
            if note not in self._noted:
                _log.log(level, "%s", note)
        self._noted = set(notes)
