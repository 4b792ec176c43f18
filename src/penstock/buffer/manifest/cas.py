"""The object behind a queue: reading it, replacing it by compare-and-set, and waiting between tries."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from penstock.buffer.measures import WriteCounts
from penstock.core import get_logger
from penstock.errors import AlreadyExists, Conflict, CorruptData, NotFound, OutcomeUnknown, StorageError
from penstock.storage import Object, ObjectStore, Reserve, get_at_most, replace_with_reserve, url_of

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5
_READ_TRIES = 5
_UNKNOWN_TRIES = 30
MAX_MANIFEST_BYTES = 256 << 20  # of version 1 at four million entries; the head of version 2 has some 100 KiB

T = TypeVar("T")

_log = get_logger(__name__)

LOST = (Conflict, AlreadyExists, OutcomeUnknown)
"""What a compare-and-set raises that did not succeed: any of them may have happened all the same."""


class VersionChanged(Exception):
    """A manifest is of another version than the queue that read it, with what that queue was in doubt about."""

    def __init__(self, doubts: Sequence[object] = ()) -> None:
        super().__init__("the manifest is of another version")
        self.doubts = doubts


class ManifestObject:
    """One manifest on its store; `role` is `producer` or `consumer`, for the metrics."""

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        label: str,
        role: str,
        *,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self.path = path
        self.label = label
        self.where = f"{url_of(store)}/{path}"
        produces = role == "producer"
        self.reserve_to_create = Reserve.KEEP if produces else Reserve.USE  # of the manifest itself
        self.reserve_for_ids = None if produces else Reserve.USE  # of the small objects that say whose the data is
        self._counts = WriteCounts(label, role)
        self._sleep = sleep
        self._jitter = jitter

    @property
    def conflict_rate(self) -> float:
        """Percent of the writes that lost a compare-and-set."""
        return self._counts.conflict_rate

    def get(self) -> Object | None:
        """What is there; None where there is nothing. Raises `StorageError`."""
        try:
            return get_at_most(self.store, self.path, MAX_MANIFEST_BYTES)
        except NotFound:
            return None

    def decoded(self, decode: Callable[[bytes], T], data: bytes) -> T:
        """What the object's bytes are. Raises `CorruptData` naming the object."""
        return decoded(decode, data, self.where)

    def replace(self, version: str | None, data: bytes, reserve: Reserve = Reserve.USE) -> str:
        """Write over a version, or where there was nothing. Raises one of `LOST`, and `StorageError`.

        Producers write with `Reserve.KEEP`: on a full disk they wait, and acks, claims and collecting go on.
        """
        self._counts.tried()
        try:
            return replace_with_reserve(self.store, self.path, data, version, reserve)
        except (Conflict, AlreadyExists):
            self._counts.lost()
            raise

    def patiently(self, call: Callable[[], T]) -> T:
        """Call the store, and call it again a few times if it fails: whoever does has work behind it that would go."""
        pauses = self.pauses()
        for left in reversed(range(_READ_TRIES)):
            try:
                return call()
            except StorageError as error:
                if not left:
                    raise
                _log.warning("a call for %s: %s; trying again", self.where, error)
                next(pauses)
        raise AssertionError

    def pauses(self) -> Iterator[None]:
        """Wait a random while, up to twice as long each time: those who met once do not meet again."""
        longest = _FIRST_PAUSE
        while True:
            self._sleep(longest * self._jitter())
            longest = min(longest * 2, _LONGEST_PAUSE)
            yield


def decoded(decode: Callable[[bytes], T], data: bytes, where: str) -> T:
    """Read bytes that lie somewhere. Raises `CorruptData` that says where."""
    try:
        return decode(data)
    except CorruptData as error:
        raise CorruptData(f"{where}: {error}") from error


class Patience:
    """Losing to others is the way of the house; hearing nothing again and again is for the caller to know."""

    def __init__(self) -> None:
        self._unheard = 0

    def lost(self, error: StorageError) -> None:
        """Count a write that did not succeed. Raises its error after too many in a row whose outcome is unknown."""
        self._unheard = self._unheard + 1 if isinstance(error, OutcomeUnknown) else 0
        if self._unheard >= _UNKNOWN_TRIES:
            raise error
