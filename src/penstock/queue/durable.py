"""`DurableEventQueue`: an event is on disk when `push` returns, and stays there until it is acked."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from penstock.core import Closing, Waiters, check_seconds, check_whole, get_logger, opened_async
from penstock.errors import CorruptData, CorruptEvent, InvalidInput, StorageError, UnknownEvent
from penstock.queue.codecs import Codec, checked_codec, decoded, encoded
from penstock.queue.damage import shown
from penstock.queue.database import Database
from penstock.queue.event import DurableEvent
from penstock.queue.ledger import Ledger
from penstock.queue.lock import QueueLock
from penstock.queue.measures import Measures
from penstock.queue.repair import repair_queue
from penstock.queue.walk import Walk
from penstock.queue.workers import WorkerQueues
from penstock.queue.writer import ACK_BYTES, Change, QueueWriter, unix_milliseconds
from penstock.storage import local_path

if TYPE_CHECKING:
    from penstock.queue.awaiting import AwaitingQueue

Event = TypeVar("Event")

_log = get_logger(__name__)

_READ_AHEAD_BYTES = 1 << 20
_MAX_BYTES_PER_PUSH = 1 << 30  # RocksDB counts a record in 32 bits
_MAX_EVENTS_PER_LOCK = 1000


class DurableEventQueue(Closing, Generic[Event]):
    """A queue on this host's disk, for one process at a time and any number of its threads; at least once.

    What is pushed and not acked is there again after a restart or a crash, in the order of its ids. A `lazy` queue (the
    default) reads only keys when it is opened, and keeps about `read_ahead_bytes` of the events that come next in
    memory; otherwise all of them are in memory too. Events are `bytes`, unless there is a `codec`.

    Raises `StorageError` if another process has the queue open, or the disk refuses a write, `InvalidInput` for a path
    that is none, and `CorruptData` if it is damaged: events are missing, or cannot be read. With `skip_corrupt` such a
    queue is repaired first, as `penstock queue repair` does it, and what is missing is logged. See
    `docs/guides/durable-queue.md`.

    >>> import tempfile
    >>> with DurableEventQueue(tempfile.mkdtemp()) as queue:
    ...     pushed = queue.push(b"hello")
    ...     popped = queue.pop()
    ...     queue.ack(popped.id)
    ...     pushed == popped, len(queue)
    (True, 0)
    """

    _instead_in_child: ClassVar[str] = (
        "one process at a time has a queue open, and this one is open in its parent. Open queues after the fork, and "
        "none before it: in a server's hook for a new worker, by `DurableEventQueue.for_worker(folder)`"
    )

    @overload
    def __init__(
        self: DurableEventQueue[bytes],
        path: str | os.PathLike[str],
        *,
        lazy: bool = True,
        skip_corrupt: bool = False,
        clock: Callable[[], float] = time.time,
        read_ahead_bytes: int = _READ_AHEAD_BYTES,
    ) -> None: ...

    @overload
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lazy: bool = True,
        codec: Codec[Event],
        skip_corrupt: bool = False,
        clock: Callable[[], float] = time.time,
        read_ahead_bytes: int = _READ_AHEAD_BYTES,
    ) -> None: ...

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lazy: bool = True,
        codec: Codec[Any] | None = None,
        skip_corrupt: bool = False,
        clock: Callable[[], float] = time.time,
        read_ahead_bytes: int = _READ_AHEAD_BYTES,
    ) -> None:
        super().__init__()
        check_whole("read_ahead_bytes", read_ahead_bytes)
        self._path = os.path.realpath(local_path(path))  # RocksDB would open it twice under two names
        lock = path if isinstance(path, QueueLock) else None
        self._codec: Codec[Any] = checked_codec(codec)
        self._clock = clock
        self._lock = threading.Lock()
        self._ready = Waiters(self._lock)
        self._database = _opened(self._path, lock, skip_corrupt=skip_corrupt)
        try:
            self._measures = Measures(self._path)
            self._every_bad_key = tuple(self._database.whole.inventory.bad_keys)
            self._ledger = Ledger(
                self._database,
                window=read_ahead_bytes if lazy else math.inf,
                keeps=not lazy,
                on_skip=self._measures.note_skipped,
            )
            if not lazy:
                self._ledger.first()  # its window has no end: this reads everything
        except BaseException:
            self._database.close()
            raise
        self._writer = QueueWriter(
            self._database, self._ledger, self._lock, self._ready, self._measures, clock, repr(self)
        )
        self._closing = threading.Lock()
        self._for_coroutines: AwaitingQueue | None = None
        self._is_released = False
        self._measures.watch(
            self,
            DurableEventQueue.ready_len,
            DurableEventQueue._in_flight_len,
            lambda queue: queue.oldest_age() or 0.0,
        )

    @overload
    @classmethod
    def for_worker(cls, folder: str | os.PathLike[str], *, lazy: bool = True) -> DurableEventQueue[bytes]: ...

    @overload
    @classmethod
    def for_worker(
        cls, folder: str | os.PathLike[str], *, lazy: bool = True, codec: Codec[Event]
    ) -> DurableEventQueue[Event]: ...

    @classmethod
    def for_worker(
        cls, folder: str | os.PathLike[str], *, lazy: bool = True, codec: Codec[Any] | None = None
    ) -> DurableEventQueue[Any]:
        """Open a queue that is this process's own, in a folder that its workers share.

        That is the queue of a worker that has ended, with the events it left, or a new one. A damaged queue is logged,
        and passed over. `penstock ship FOLDER` ships and removes the queues of workers that have ended. Call it after
        the fork, in the worker: in a child that was forked after a queue was opened it raises `StorageError`. Raises
        `InvalidInput` for a folder that is a queue itself.
        """
        codec = checked_codec(codec)
        queues = WorkerQueues(folder)
        for lock in queues.free():
            try:
                return DurableEventQueue(lock, lazy=lazy, codec=codec)
            except (CorruptData, StorageError) as error:
                _log.warning("a worker passes over a queue: %s", error)
        lock = queues.make()
        try:
            return DurableEventQueue(lock, lazy=lazy, codec=codec)
        except BaseException:
            queues.unmake(lock.path)
            raise

    @classmethod
    async def for_worker_async(
        cls, folder: str | os.PathLike[str], *, lazy: bool = True, codec: Codec[Any] | None = None
    ) -> DurableEventQueue[Any]:
        """Do what `for_worker` does, without blocking the loop. Cancelled, it leaves nothing open."""
        return await opened_async(lambda: cls.for_worker(folder, lazy=lazy, codec=checked_codec(codec)))

    @property
    def path(self) -> str:
        """Its directory."""
        return self._path

    def __repr__(self) -> str:
        return f"DurableEventQueue({self._path!r})"

    def __enter__(self) -> Self:
        self._check()
        return self

    def close(self) -> None:
        """Release the database, when all writes under way have ended. A second `close` does nothing.

        A thread that waits in `poll` gets `Closed`. Events in flight are ready again when the queue is opened again.
        """
        if self._is_in_child:
            return  # it is the parent's
        with self._closing:
            if self._is_released:
                return
            with self._lock:
                self._is_closed = True
                self._ready.wake_all()
            self._measures.unwatch()
            self._writer.close()
            self._is_released = True

    def push(self, event: Event) -> DurableEvent[Event]:
        """Put an event on disk, and return it with its id.

        Raises `InvalidInput` for an event the codec cannot encode, `IdOverflow` when all ids are used, and
        `StorageError` when the disk refuses: it is not in the queue then.
        """
        change = self._push_of((encoded(self._codec, event),))
        self._writer.commits.commit(change)
        return DurableEvent(change.first_id, event)

    async def push_async(self, event: Event) -> DurableEvent[Event]:
        """Do what `push` does, without blocking the loop. It can be cancelled until its write begins."""
        change = self._push_of((encoded(self._codec, event),))
        await self._awaiting.written(change)
        return DurableEvent(change.first_id, event)

    def push_many(self, events: Iterable[Event]) -> list[DurableEvent[Event]]:
        """Put events on disk in one write: all of them, or none. Raises what `push` raises."""
        some, change = self._push_of_many(events)
        if some:
            self._writer.commits.commit(change)
        return [DurableEvent(identifier, event) for identifier, event in enumerate(some, change.first_id)]

    async def push_many_async(self, events: Iterable[Event]) -> list[DurableEvent[Event]]:
        """Do what `push_many` does, without blocking the loop. It can be cancelled until its write begins."""
        some, change = self._push_of_many(events)
        if some:
            await self._awaiting.written(change)
        return [DurableEvent(identifier, event) for identifier, event in enumerate(some, change.first_id)]

    def get(self, id: int) -> DurableEvent[Event] | None:  # noqa: A002  its name is the contract
        """Look at an event without taking it; None if it is not on disk. Raises `CorruptEvent` if it is unreadable."""
        _check_id(id)
        self._check()
        with self._lock:
            self._check()
            data = self._database.get(id) if id < self._ledger.next_id else None
            return None if data is None else DurableEvent(id, decoded(self._codec, id, data))

    async def get_async(self, id: int) -> DurableEvent[Event] | None:  # noqa: A002
        """Do what `get` does, without blocking the loop."""
        _check_id(id)
        self._check()
        return await self._awaiting.called(lambda: self.get(id))

    def pop(self, skip_corrupt: bool = False) -> DurableEvent[Event] | None:
        """Take the ready event with the smallest id, or return None at once. It stays on disk, in flight.

        Raises `CorruptEvent` for a key or a value that cannot be read, each time, until it is called with
        `skip_corrupt`: that goes past it, and counts it. An event that was gone past is in flight.
        """
        self._check()
        with self._lock:
            return self._take(skip_corrupt)

    def poll(self, timeout: float | None = 0.1, skip_corrupt: bool = False) -> DurableEvent[Event] | None:
        """Do what `pop` does; wait for an event up to `timeout` seconds (None: until there is one)."""
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        event: DurableEvent[Event] | None = None

        def has_event() -> bool:
            nonlocal event
            event = self._take(skip_corrupt)
            return event is not None

        self._check()
        self._ready.wait(has_event, timeout)
        return event

    async def pop_async(self, skip_corrupt: bool = False) -> DurableEvent[Event] | None:
        """Do what `pop` does, without blocking the loop. Cancelled, it has taken nothing."""
        return await self.poll_async(0, skip_corrupt)

    async def poll_async(self, timeout: float | None = 0.1, skip_corrupt: bool = False) -> DurableEvent[Event] | None:
        """Do what `poll` does, without blocking the loop, and without a thread while it waits.

        Cancelled, it has taken nothing: an event that was on its way to the caller is ready again, in its place.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        self._check()
        return await self._awaiting.event(lambda: self._take(skip_corrupt), timeout)

    def poll_bytes(
        self,
        max_events: int,
        max_bytes: int | None = None,
        timeout: float | None = 0.1,
        *,
        into: list[DurableEvent[bytes]] | None = None,
    ) -> list[DurableEvent[bytes]]:
        """Take many events as the bytes that lie on disk, whatever the codec; wait for the first as `poll` does.

        With `max_bytes` it stops before passing so many, but takes at least one. Keys that are no ids are gone past,
        and counted: nothing else can be wrong with bytes. If it raises, nothing was taken. `into` is a list to fill and
        return: its caller knows what was taken even if an interrupt comes before this has returned.
        """
        check_whole("max_events", max_events)
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        most = math.inf if max_bytes is None else max_bytes
        events = [] if into is None else into
        size = full = 0

        def has_some() -> bool:
            """Take as many events as under one lock; return whether there are any."""
            nonlocal size, full
            self._check_open()
            self._take_back()
            full = min(max_events, len(events) + _MAX_EVENTS_PER_LOCK)
            size = self._ledger.take_many(events, full, most, size)
            return bool(events)

        self._check()
        try:
            self._ready.wait(has_some, timeout)
            # The rest in parts: threads that push need the lock in between.
            while len(events) == full < max_events:
                with self._lock:
                    has_some()
        except BaseException:
            with self._lock:
                while events:
                    self._ledger.give_back(events[-1].id)
                    events.pop()
                self._ready.wake_all()
            raise
        return events

    async def poll_bytes_async(
        self, max_events: int, max_bytes: int | None = None, timeout: float | None = 0.1
    ) -> list[DurableEvent[bytes]]:
        """Do what `poll_bytes` does, and wait as `poll_async` does. Cancelled, it has taken nothing."""
        check_whole("max_events", max_events)
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        self._check()
        return await self._awaiting.events(lambda: self.poll_bytes(max_events, max_bytes, 0), timeout)

    def ack(self, id: int) -> None:  # noqa: A002  its name is the contract
        """Delete an event, for good. One that is unknown, or acked already, is no error."""
        self.ack_many((id,))

    def ack_many(self, ids: Iterable[int]) -> None:
        """Delete events in one write. Raises `StorageError` when the disk refuses: they are as they were then."""
        some = _checked_ids(ids)
        self._check()
        leaving: list[int] = []
        change = Change((), leaving, ACK_BYTES * len(some))
        try:
            with self._lock:
                self._check()
                self._ledger.leave(some, leaving)
            if leaving:
                self._writer.commits.commit(change)
        except BaseException:
            if change.is_over or not change.is_begun:  # else another thread writes it, and puts it back if need be
                self._writer.put_back(change)
            raise

    async def ack_async(self, id: int) -> None:  # noqa: A002
        """Do what `ack` does, without blocking the loop. Cancelled, it may be acked or not: ack it again."""
        await self.ack_many_async((id,))

    async def ack_many_async(self, ids: Iterable[int]) -> None:
        """Do what `ack_many` does, without blocking the loop.

        Cancelled, either all of them are acked, soon, or they are as they were: the same call, tried again, succeeds.
        """
        some = _checked_ids(ids)
        self._check()
        await self._awaiting.acked(some)

    def nack(self, id: int) -> None:  # noqa: A002  its name is the contract
        """Make an event that is in flight ready again, with its id. Raises `UnknownEvent` if it is not on disk."""
        _check_id(id)
        self._check()
        with self._lock:
            self._check()
            was_taken = self._ledger.give_back(id)
            if was_taken is None:
                raise UnknownEvent(
                    f"event {id} is not on disk in {shown(self._path)}: it was acked, or never pushed", id=id
                )
            if was_taken:
                self._ready.wake()
                self._measures.nacks.inc()

    async def nack_async(self, id: int) -> None:  # noqa: A002
        """Do what `nack` does, without blocking the loop. Cancelled, it may be ready or not: nack it again."""
        _check_id(id)
        self._check()
        await self._awaiting.called(lambda: self.nack(id))

    def __len__(self) -> int:
        self._check()
        with self._lock:
            self._check()
            return self._ledger.on_disk

    @property
    def is_empty(self) -> bool:
        """Whether everything is acked."""
        return len(self) == 0

    def ready_len(self) -> int:
        """How many events are on disk and not in flight."""
        self._check()
        with self._lock:
            self._check()
            return self._ledger.ready

    def approximate_len(self) -> int:
        """How many events are on disk, give or take what is being pushed and acked right now; never waits."""
        self._check()
        return self._ledger.on_disk

    def iterate(self, skip_corrupt: bool = False) -> Iterator[DurableEvent[Event]]:
        """All events that are on disk now, in the order of their ids, without taking them.

        What is acked in the meantime does not come any more. At a key or a value that cannot be read it raises
        `CorruptEvent`, once: the next `next` goes on behind it. `skip_corrupt` goes past it, and counts it.
        """
        self._check()
        return Walk(
            self._database,
            self._codec,
            self._lock,
            self._check,
            end=self._ledger.next_id,
            bad_keys=self._every_bad_key,
            acks=lambda: self._writer.acks,
            on_skip=self._measures.note_skipped if skip_corrupt else None,
        )

    def oldest_age(self) -> float | None:
        """How many seconds ago the oldest event on disk was pushed, to a second; None if there is none.

        Also None where an event was put there by other means, and no time is known.
        """
        self._check()
        with self._lock:
            self._check()
            oldest = self._ledger.oldest()
            mark = None if oldest is None else self._database.time_of(oldest)
        return None if mark is None else max(unix_milliseconds(self._clock()) - mark[1], 0) / 1000

    def corrupt_keys(self) -> list[bytes]:
        """The keys among the events that are no ids, as they were when the queue was opened."""
        self._check()
        return list(self._every_bad_key)

    def _push_of_many(self, events: Iterable[Event]) -> tuple[list[Event], Change]:
        if not isinstance(events, Iterable):
            raise InvalidInput(f"push_many takes events, not {type(events).__name__}")
        some = list(events)
        codec = self._codec
        return some, self._push_of([encoded(codec, event, number) for number, event in enumerate(some)])

    @property
    def _awaiting(self) -> AwaitingQueue:
        """What the twins need; made for the first of them: without coroutines asyncio is not loaded."""
        if self._for_coroutines is None:
            from penstock.queue.awaiting import AwaitingQueue

            self._for_coroutines = AwaitingQueue(self._lock, self._ready, self._ledger, self._writer, self._check)
        return self._for_coroutines

    def _take_back(self) -> None:
        """Make events ready that were on their way to a coroutine that was cancelled. The lock is held."""
        if self._for_coroutines is not None:
            self._for_coroutines.take_back()

    def _push_of(self, events: Sequence[bytes]) -> Change:
        self._check()
        size = sum(map(len, events))
        if size > _MAX_BYTES_PER_PUSH:
            raise InvalidInput(f"one push can have {_MAX_BYTES_PER_PUSH} bytes, not {size}; nothing was pushed")
        return Change(events, (), size)

    def _take(self, skip_corrupt: bool) -> DurableEvent[Event] | None:
        """Take the next event. The order matters: nothing moves before it was decoded."""
        self._check_open()
        self._take_back()
        while True:
            found = self._ledger.first()
            self._ledger.pass_bad_keys(found, skip=skip_corrupt)
            if found is None:
                return None
            try:
                event = DurableEvent(found[0], decoded(self._codec, *found))
            except CorruptEvent as corrupt:
                if not skip_corrupt:
                    raise
                self._ledger.take(found[0])
                self._measures.note_skipped(corrupt)
                continue
            self._ledger.take(found[0])
            return event

    def _check(self) -> None:
        self._check_process()
        self._check_open()

    def _in_flight_len(self) -> int:
        self._check()
        return len(self._ledger.in_flight)


def _opened(path: str, lock: QueueLock | None, *, skip_corrupt: bool) -> Database:
    try:
        return Database(path, lock)
    except CorruptData:
        if not skip_corrupt:
            raise
    _log.warning("%s", repair_queue(path).summary())
    return Database(path)


def _checked_ids(ids: Iterable[int]) -> list[int]:
    if not isinstance(ids, Iterable):
        raise InvalidInput(f"ack_many takes ids, not {type(ids).__name__}")
    some = list(ids)
    if set(map(type, some)) - {int}:
        for identifier in some:
            _check_id(identifier)
    return some


def _check_id(id: object) -> None:  # noqa: A002
    if not isinstance(id, int) or isinstance(id, bool):
        raise InvalidInput(f"an event id is an integer, not {id!r}")
