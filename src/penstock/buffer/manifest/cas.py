"""`VersionedObject`: one object on a store that is replaced by compare-and-set, and the one loop that does it.

A compare-and-set that did not succeed may have happened all the same. So after anything but a success the object is
read again, and evidence in it decides: `docs/design/manifest.md`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Generic, Protocol, TypeVar

from penstock import metrics
from penstock.core import Backoff, call_with_retries, get_logger
from penstock.errors import AlreadyExists, Conflict, CorruptData, NotFound, OutcomeUnknown
from penstock.storage import ObjectStore, Reserve, get_at_most, replace_with_reserve, url_of

_FIRST_WAIT = 0.005  # seconds
_LONGEST_WAIT = 0.5
READ_TRIES = 5
_UNKNOWN_TRIES = 30
_TRIES_PER_WARNING = 50
MAX_MANIFEST_BYTES = 256 << 20  # of version 1 at four million entries; the head of version 2 has some 100 KiB

_LOST = (Conflict, AlreadyExists, OutcomeUnknown)  # what a compare-and-set raises that may have happened all the same

_log = get_logger(__name__)


class State(Protocol):
    """What an object holds, decoded."""

    @property
    def evidence_lasts(self) -> bool:
        """Whether it shows that a write happened however late one looks."""

    def encode(self) -> bytes:
        """The bytes of the object."""


S = TypeVar("S", bound=State)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[S]):
    """A state, and the version of the object that it was read from; None where there is no object."""

    state: S
    version: str | None = None
    last_modified: datetime | None = None


@dataclass(frozen=True, slots=True)
class Change(Generic[S]):
    """A state that is to replace another; what has to be written before it; and until when it may be written."""

    state: S
    before: Sequence[object] = ()
    until: float | None = None
    """On the uptime clock. A change with a limit is tried until then, and any other until its outcome is unknown
    too often in a row."""


def never(_found: object) -> bool:
    """Say no: for changes that only a success reply makes true."""
    return False


class VersionedObject(Generic[S]):
    """One object, read through a cache of its last state. Safe to share between threads.

    `decode` reads its bytes. `absent` is its state where there is no object. `write_before` writes what a `Change` has
    before it. `seen` gets each state that is written, or read for the first time. `role` is `producer` or `consumer`,
    for the metrics.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        label: str,
        role: str,
        *,
        decode: Callable[[bytes], S],
        absent: S,
        write_before: Callable[[Sequence[object]], object] = lambda _objects: None,
        seen: Callable[[Versioned[S]], object] = lambda _found: None,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = random.random,
        uptime: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.path = path
        self.where = f"{url_of(store)}/{path}"
        self._decode = decode
        self.absent = absent
        self._write_before = write_before
        self._seen = seen
        self._writes = metrics.buffer_manifest_writes.labels(label, role)
        self._conflicts = metrics.buffer_manifest_conflicts.labels(label, role)
        self._tried = self._lost = 0
        self._backoff = partial(Backoff, _FIRST_WAIT, _LONGEST_WAIT, sleep=sleep, jitter=jitter)
        self._uptime = uptime
        self._latest: Versioned[S] | None = None
        self._latest_at = 0.0

    @property
    def conflict_rate(self) -> float:
        """Percent of the writes that lost a compare-and-set."""
        return 100.0 * self._lost / self._tried if self._tried else 0.0

    def kept(self, seconds: float) -> Versioned[S] | None:
        """The state of the last read or write, if that was no more than so many seconds ago."""
        return self._latest if self._uptime() - self._latest_at < seconds else None

    def read(self, *, fresh: bool = False, tries: int = 1) -> Versioned[S]:
        """Read the object. What has not changed since the last time is not decoded again, unless it is to be `fresh`.

        Raises `StorageError` after so many tries, and `CorruptData` naming the object.
        """
        latest = None if fresh else self._latest
        try:
            got = self.with_retries(lambda: get_at_most(self.store, self.path, MAX_MANIFEST_BYTES), tries, NotFound)
        except NotFound:
            return self._remember(Versioned(self.absent))
        is_known = latest is not None and latest.version == got.version
        state = latest.state if latest is not None and is_known else decoded(self._decode, got.data, self.where)
        return self._remember(Versioned(state, got.version, got.last_modified), is_known=is_known)

    def with_retries(
        self, call: Callable[[], T], tries: int = READ_TRIES, unless: type[Exception] | tuple[()] = ()
    ) -> T:
        """Call the store, and call it again a few times if it fails: there is work that would be lost with the call."""

        def warn(error: Exception) -> None:
            _log.warning("a call for %s: %s; trying again", self.where, error)

        return call_with_retries(call, self._backoff(), tries=tries, unless=unless, warn=warn)

    def update(
        self,
        step: Callable[[Versioned[S]], Change[S] | None],
        happened: Callable[[Versioned[S]], bool] = never,
        *,
        doing: str,
        start: Versioned[S] | None = None,
        reserve: Reserve = Reserve.USE,
        read_tries: int = READ_TRIES,
    ) -> Versioned[S]:
        """Replace the object by what `step` makes of it, and return what is there then. None of a step: it is right.

        After a write that did not succeed the object is read again, and `happened` says, by what is there, whether the
        change was made; if not, `step` is asked again. `start` is a state to try first, without a read.

        Raises what `step` and `happened` raise, `StorageError` where the object cannot be read, and `OutcomeUnknown`
        where the outcome of a change without a time limit is unknown too often in a row.
        """
        backoff = self._backoff()
        found, was_read = (self.read(tries=read_tries), True) if start is None else (start, False)
        tries = unknown = 0
        while (change := step(found)) is not None:
            if change.before:
                self._write_before(change.before)
            if change.until is not None and self._uptime() >= change.until:
                continue  # what was written first took too long: the step decides what to do about it
            data = change.state.encode()
            self._tried += 1
            self._writes.inc()
            try:
                version = replace_with_reserve(self.store, self.path, data, found.version, reserve)
                return self._remember(Versioned(change.state, version))
            except _LOST as error:
                tries += 1
                if isinstance(error, OutcomeUnknown):
                    unknown += 1
                    if unknown >= _UNKNOWN_TRIES and change.until is None:
                        raise
                else:
                    unknown = 0
                    self._lost += 1
                    self._conflicts.inc()
                level = _log.warning if tries % _TRIES_PER_WARNING == 0 else _log.info
                level("%s %s, try %d: %s; reading it again", doing, self.where, tries, error)
            if happened is not never and not found.state.evidence_lasts:
                # At once, and only then the wait: the longer one waits, the more of the evidence is gone.
                found = self.read(tries=read_tries)
                if happened(found):
                    return found
            if was_read:  # a state that was kept is expected to be old: the first read is as good as a wait
                backoff.wait()
            found, was_read = self.read(tries=read_tries), True
            if happened(found):
                return found
        return found

    def _remember(self, found: Versioned[S], *, is_known: bool = False) -> Versioned[S]:
        if not is_known:
            self._seen(found)
        self._latest = found if found.version is not None else None
        self._latest_at = self._uptime()
        return found


def decoded(decode: Callable[[bytes], T], data: bytes, where: str) -> T:
    """Decode the bytes of an object. Raises `CorruptData` that says where it lies."""
    try:
        return decode(data)
    except CorruptData as error:
        raise CorruptData(f"{where}: {error}") from error
