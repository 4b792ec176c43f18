"""`ObjectMetadataLog`: a log on an object store, for production without a broker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from penstock.core import begin_anew_in_child, check_seconds, close_at_exit, decode_fields, encode_fields, forget
from penstock.errors import Closed, CorruptData, InvalidInput, NotFound, StorageError
from penstock.metalog.log import MAX_PARTITIONS, PartitionStart, as_payload, check_partition, check_partition_count
from penstock.metalog.object.chain import Chain
from penstock.metalog.object.feed import ObjectFeed
from penstock.metalog.object.format import LogObject
from penstock.metalog.object.recent_objects import RecentObjects
from penstock.metalog.object.roll_ups import RollUps
from penstock.metalog.object.writer import PartitionWriter
from penstock.metalog.patience import patiently
from penstock.metalog.signal import Signal
from penstock.metalog.subscription import Subscription
from penstock.storage import ObjectStore, get_at_most, open_store, url_of

_ABOUT = "log.json"
_VERSION = 1
_MAX_ABOUT_BYTES = 64 << 10
_READERS = 8
_TRIES = 5


class ObjectMetadataLog:
    """A metadata log on an object store; any number of processes may have it open, forked children too.

    `where` is a URL or a store, `options` are the store's. `partition_count`, 1 to 10,000, is fixed when the log is
    made; None takes that of the log that is there, or raises `NotFound`. A subscription looks for new objects every
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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        **options: object,
    ) -> None:
        if partition_count is not None:
            check_partition_count(partition_count)
        check_seconds("poll_interval", poll_interval)
        check_seconds("give_up_after", give_up_after, zero=True)
        store = open_store(where, **options)
        self._where = url_of(store)
        count = _agreed_count(store, self._where, partition_count, sleep)
        self._poll_interval = poll_interval
        self._clock = clock
        self._sleep = sleep
        self._store = store
        self._give_up_after = give_up_after
        self._is_closed = False
        self._begin(count)
        begin_anew_in_child(self)
        close_at_exit(self)

    def begin_anew(self) -> None:
        """Make what threads share anew in a forked child: a thread of the parent may be in the middle of each."""
        self._begin(self.partition_count)

    def _begin(self, count: int) -> None:
        self._signal = Signal()
        self._roll_ups = RollUps()
        recent = RecentObjects()
        self._chains = [Chain(self._store, partition, recent) for partition in range(count)]
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

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

    def high_water_marks(self) -> list[int]:
        """One past the last offset of each partition, as it is on the store now. Raises `StorageError`."""
        self._check_open()
        if self.partition_count == 1:
            return [self._end_of(self._chains[0])]
        return list(self._pool().map(self._end_of, self._chains))

    def subscribe(self, starts: Iterable[PartitionStart]) -> Subscription:
        """Deliver what is there from each start on, and then what comes. Raises `Closed`."""
        self._check_open()
        feed = ObjectFeed(self._chains, self._signal, self._check_open, self._pool, self._poll_interval, self._clock)
        return Subscription(feed, self.partition_count, starts)

    def close(self) -> None:
        """End it, and its subscriptions, when what is being published is on the store."""
        with self._lock:
            self._is_closed = True
            readers, self._readers = self._readers, None
        self._signal.give()
        for writer in self._writers:
            writer.close()
        self._roll_ups.close()
        if readers is not None:
            readers.shutdown()
        forget(self)

    def _end_of(self, chain: Chain) -> int:
        return patiently(chain.find_end, self._sleep).offset

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self!r} is closed")

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            self._check_open()
            if self._readers is None:
                self._readers = ThreadPoolExecutor(min(_READERS, self.partition_count), "penstock-metalog-read")
            return self._readers

    def _note_of(self, chain: Chain) -> Callable[[LogObject], None]:
        signal, roll_ups = self._signal, self._roll_ups

        def wrote(one: LogObject) -> None:
            signal.give()
            roll_ups.wrote(chain, one)

        return wrote


def _agreed_count(store: ObjectStore, where: str, asked: int | None, sleep: Callable[[float], object]) -> int:
    """How many partitions the log has; one that is not there is made, if it was said with how many."""
    for left in reversed(range(_TRIES)):
        found = patiently(lambda: _stored_count(store, where), sleep)
        if found is None and asked is None:
            raise NotFound(f"there is no metadata log at {where}: say with how many partitions to make one")
        if found is None and asked is not None:
            try:
                store.put_if_absent(_ABOUT, encode_fields({"version": _VERSION, "partition_count": asked}))
            except StorageError:  # AlreadyExists, OutcomeUnknown, or one that a later try may not meet
                if not left:
                    raise
                continue  # whoever made it: what is there counts
            return asked
        if asked is not None and asked != found:
            raise InvalidInput(f"partition_count must be {found}, which the log at {where} has, not {asked}")
        if found is not None:
            return found
    raise AssertionError


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
