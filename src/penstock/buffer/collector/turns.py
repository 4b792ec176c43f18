"""Turns of collectors: of all collectors of a buffer, usually one runs a cycle in each interval.

A mark beside the data objects is replaced before each cycle, by compare-and-set. This saves work, and is not needed for
safety: two collectors at once are safe, and after one that died in its turn another runs an interval later.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.core import get_logger
from penstock.errors import AlreadyExists, Conflict, NotFound, StorageError
from penstock.storage import Object, ObjectStore, get_at_most, url_of

MARK = ".collected"

_DAY = 86_400.0
_MAX_MARK_BYTES = 64 << 10  # it holds a host, a process and a random part

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """Permission to run a cycle. `taken_at` is when it began, in the store's time; None where that is not known."""

    taken_at: datetime | None


@dataclass(eq=False)
class CollectorTurns:
    """Takes turns for one collector. `interval` is in seconds; `uptime` is a monotonic clock."""

    store: ObjectStore
    prefix: str
    interval: float
    clock: Callable[[], float] = time.time
    uptime: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._path = f"{self.prefix}/{MARK}"
        self._lock = threading.Lock()
        self._seen: tuple[str, float] | None = None

    def take(self, manifest_written: datetime | None) -> Turn | None:
        """Take the turn, if an interval has passed since the last one; None where it is not due, or another has it.

        It is due if the manifest was written an interval after the mark, both in the store's time, or if this process
        has seen the same mark for an interval of its uptime: no host's clock decides. A mark that is dated more than a
        day ahead of both the manifest and this host's clock is ignored: the store's clock was wrong when it was
        written, and short processes would wait until that date.

        A cycle runs also where the mark cannot be written, for example on a full disk.
        """
        with self._lock:
            try:
                mark = get_at_most(self.store, self._path, _MAX_MARK_BYTES)
            except NotFound:
                mark = None
            if mark is not None and not self._is_due(mark, manifest_written):
                return None
            try:
                self._seen = self._write(mark), self.uptime()
            except (Conflict, AlreadyExists):
                return None
            except StorageError as error:
                _log.warning("marking a cycle in %s: %s; the cycle is run anyway", self._where, error)
                return Turn(None)
            return Turn(self._written_at())

    @property
    def _where(self) -> str:
        return f"{url_of(self.store)}/{self._path}"

    def _is_due(self, mark: Object, manifest_written: datetime | None) -> bool:
        if manifest_written is not None and manifest_written - mark.last_modified >= timedelta(seconds=self.interval):
            return True
        if self._is_far_ahead(mark, manifest_written):
            return True
        now = self.uptime()
        if self._seen is None or self._seen[0] != mark.version:
            self._seen = mark.version, now
        return now - self._seen[1] >= self.interval

    def _is_far_ahead(self, mark: Object, manifest_written: datetime | None) -> bool:
        latest = self.clock()
        if manifest_written is not None:
            latest = max(latest, manifest_written.timestamp())
        return mark.last_modified.timestamp() - latest > max(_DAY, self.interval)

    def _write(self, mark: Object | None) -> str:
        # With a random part: some stores derive the version from the content, and a version must not repeat.
        content = f"{socket.gethostname()}:{os.getpid()} {secrets.token_urlsafe(12)}\n".encode()
        if mark is None:
            return self.store.put_if_absent(self._path, content)
        return self.store.put_if_match(self._path, content, mark.version)

    def _written_at(self) -> datetime | None:
        try:
            return self.store.head(self._path).last_modified
        except StorageError as error:
            _log.info("reading the date of %s: %s", self._where, error)
            return None
