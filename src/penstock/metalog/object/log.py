"""`ObjectMetadataLog`: a log on an object store, for production without a broker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from penstock.core import (
    Backoff,
    Closing,
    begin_anew_in_child,
    call_with_retries,
    check_config,
    check_seconds,
    close_at_exit,
    decode_fields,
    encode_fields,
    forget,
    get_logger,
)
from penstock.errors import AlreadyExists, CorruptData, InvalidInput, NotFound
from penstock.metalog.change_signal import ChangeSignal
from penstock.metalog.object.chain import Chain, PartitionEnd
from penstock.metalog.object.feed import ObjectFeed
from penstock.metalog.object.format import LogObject
from penstock.metalog.object.recent_objects import RecentObjects
from penstock.metalog.object.roll_ups import RollUps
from penstock.metalog.object.settings import ObjectLogSettings
from penstock.metalog.object.writer import PartitionWriter
from penstock.metalog.records import MAX_PARTITIONS, PartitionStart, as_payload, check_partition, check_partition_count
from penstock.metalog.subscription import Feed, Subscription
from penstock.storage import ObjectStore, get_at_most, open_store, url_of

if TYPE_CHECKING:
    from penstock.core import Threads

_ABOUT = "log.json"
_VERSION = 1
_MAX_ABOUT_BYTES = 64 << 10
_MAX_READER_THREADS = 8
_TRIES = 5
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.02, 1.0
_SETTINGS = ObjectLogSettings()

_T = TypeVar("_T")

_log = get_logger(__name__)


class ObjectMetadataLog(Closing):
    """A metadata log on an object store; any number of processes may have it open, forked children too.

    `where` is a URL or a store, `options` are the store's. `partition_count`, 1 to 10,000, is fixed when the log is
    made; None takes that of the existing log, or raises `NotFound`. A subscription looks for new objects every
    `poll_interval` seconds, and less often, up to once a second, while there are none. A publish that gets no answer
    from the store is tried for `give_up_after` seconds, and then raises `OutcomeUnknown`.

    >>> log = ObjectMetadataLog("memory://doctest-metalog", 2)
    >>> log.publish(1, b"hello"), log.high_water_marks()
    (0, [0, 1])
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | ObjectStore,
        partition_count: int | None = None,
        *,
        poll_interval: float = 0.05,
        give_up_after: float = 60.0,
        settings: ObjectLogSettings = _SETTINGS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        **options: object,
    ) -> None:
        super().__init__()
        if partition_count is not None:
            check_partition_count(partition_count)
        check_seconds("poll_interval", poll_interval)
        check_seconds("give_up_after", give_up_after, zero=True)
        check_config(settings, ObjectLogSettings)
        self._store = open_store(where, **options)
        self._where = url_of(self._store)
        self._poll_interval = poll_interval
        self._give_up_after = give_up_after
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._begin(self._with_retries(lambda: _agreed_count(self._store, self._where, partition_count)))
        begin_anew_in_child(self)
        close_at_exit(self)

    def begin_anew(self) -> None:
        """Replace what threads share in a forked child: a thread of the parent may have been in the middle of it."""
        self._begin(self.partition_count)

    def _begin(self, count: int) -> None:
        self._signal = ChangeSignal()
        self._roll_ups = RollUps()
        recent = RecentObjects()
        self._chains = [Chain(self._store, partition, recent, self._settings) for partition in range(count)]
        self._writers = [
            PartitionWriter(
                chain,
                self._where,
                self._note_of(chain),
                give_up_after=self._give_up_after,
                clock=self._clock,
                sleep=self._sleep,
            )
            for chain in self._chains
        ]
        self._readers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ObjectMetadataLog({self._where!r}, {self.partition_count} partitions)"

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return len(self._chains)

    def publish(self, partition: int, payload: bytes) -> int:
        """Append a payload, and return its offset when it is on the store.

        Raises `PartitionOutOfRange`; `Closed`; `OutcomeUnknown` when the store gave no answer for `give_up_after`
        seconds: it may be in the log, or appear there later; another `StorageError` if it is not; and `CorruptData` if
        the partition's last object cannot be read.
        """
        check_partition(partition, self.partition_count)
        self._check_open()
        return self._writers[partition].publish(as_payload(payload))

    async def publish_async(self, partition: int, payload: bytes) -> int:
        """Do what `publish` does, without blocking the loop.

        Cancelled before a write to the store has begun, it is not published. Cancelled later it is like
        `OutcomeUnknown`: to find out, read the partition from the high-water mark that it had before.
        """
        check_partition(partition, self.partition_count)
        self._check_open()
        return await self._writers[partition].publish_async(as_payload(payload))

    def high_water_marks(self) -> list[int]:
        """One past the last offset of each partition, as it is on the store now. Raises `StorageError`."""
        self._check_open()
        if self.partition_count == 1:
            return [self.partition_end(0).offset]
        return [end.offset for end in self._pool().map(self.partition_end, range(self.partition_count))]

    async def high_water_marks_async(self) -> list[int]:
        """Do what `high_water_marks` does, without blocking the loop."""
        return await self._threads.run(self.high_water_marks)

    def partition_end(self, partition: int) -> PartitionEnd:
        """The high-water mark of a partition and the number of its objects, as it is on the store now.

        Raises `PartitionOutOfRange`, `Closed`, `StorageError`, and `CorruptData` if its last object cannot be read.
        """
        check_partition(partition, self.partition_count)
        self._check_open()
        return self._with_retries(self._chains[partition].find_end)

    async def partition_end_async(self, partition: int) -> PartitionEnd:
        """Do what `partition_end` does, without blocking the loop."""
        return await self._threads.run(self.partition_end, partition)

    def subscribe(self, starts: Iterable[PartitionStart]) -> Subscription:
        """Deliver the records from each start on, then new ones as they are published. Raises `Closed`."""
        return Subscription(self.open_feed(), self.partition_count, starts)

    def open_feed(self) -> Feed:
        """Where one subscription gets its records. Raises `Closed`."""
        self._check_open()
        return ObjectFeed(
            self._chains,
            self._signal,
            self._check_open,
            self._pool,
            self._poll_interval,
            self._clock,
            lambda: self._threads,
        )

    def close(self) -> None:
        """Close the log and its subscriptions, when what is being published is on the store."""
        with self._lock:
            self._is_closed = True
            readers, self._readers = self._readers, None
        self._signal.notify()
        for writer in self._writers:
            writer.close()
        self._roll_ups.close()
        if readers is not None:
            readers.shutdown()
        forget(self)

    def _with_retries(self, call: Callable[[], _T]) -> _T:
        backoff = Backoff(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS, sleep=self._sleep)
        return call_with_retries(call, backoff, tries=_TRIES, unless=NotFound, warn=_warn)

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            self._check_open()
            if self._readers is None:
                threads = min(_MAX_READER_THREADS, self.partition_count)
                self._readers = ThreadPoolExecutor(threads, "penstock-metalog-read")
            return self._readers

    @cached_property
    def _threads(self) -> Threads:
        """The threads for the requests of coroutines. They may wait for those of the pool, so they are others."""
        from penstock.core import Threads  # callers that do not await need not load asyncio

        return Threads("metalog-read", _MAX_READER_THREADS)

    def _note_of(self, chain: Chain) -> Callable[[LogObject], None]:
        signal, roll_ups = self._signal, self._roll_ups

        def wrote(one: LogObject) -> None:
            signal.notify()
            roll_ups.wrote(chain, one)

        return wrote


def _warn(error: Exception) -> None:
    if not isinstance(error, AlreadyExists):  # another process made the log first
        _log.warning("reading the metadata log: %s; trying again", error)


def _agreed_count(store: ObjectStore, where: str, requested: int | None) -> int:
    """How many partitions the log has. A log that does not exist is made with so many, if a number was given.

    Raises `StorageError` where another process made the log meanwhile, or may have: the next try finds its number.
    """
    found = _stored_count(store, where)
    if found is None and requested is None:
        raise NotFound(f"there is no metadata log at {where}: give a partition_count to make one")
    if found is None and requested is not None:
        store.put_if_absent(_ABOUT, encode_fields({"version": _VERSION, "partition_count": requested}))
        return requested
    if found is None or requested not in (None, found):
        raise InvalidInput(f"partition_count must be {found}, which the log at {where} has, not {requested}")
    return found


def _stored_count(store: ObjectStore, where: str) -> int | None:
    try:
        data = get_at_most(store, _ABOUT, _MAX_ABOUT_BYTES).data
    except NotFound:
        return None
    try:
        count = int(decode_fields(data, {"partition_count": int}, _VERSION)["partition_count"])
    except CorruptData as error:
        raise CorruptData(f"{where}/{_ABOUT}: {error}") from error
    if not 1 <= count <= MAX_PARTITIONS:
        raise CorruptData(f"{where}/{_ABOUT} has a partition_count of {count}, and a log has 1 to {MAX_PARTITIONS}")
    return count
