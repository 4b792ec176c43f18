"""`DurableEventQueue`: an event is on disk when `push` returns, and stays there until it is acked."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from penstock.core import check_seconds, check_whole, current, get_logger
from penstock.errors import (
    Closed,
    CorruptData,
    CorruptEvent,
    IdOverflow,
    InvalidInput,
    PenstockError,
    StorageError,
    UnknownEvent,
)
from penstock.queue.codecs import PLAIN, Codec, bad_key, decoded, encoded
from penstock.queue.damage import shown
from penstock.queue.database import Changes, Database, Stalled, key_of
from penstock.queue.event import DurableEvent
from penstock.queue.group_commit import GroupCommit, Work
from penstock.queue.ledger import Ledger
from penstock.queue.measures import Measures
from penstock.queue.repair import repair_queue
from penstock.queue.waiting import Waiters
from penstock.queue.walk import Walk
from penstock.storage import local_path

Event = TypeVar("Event")

_log = get_logger(__name__)

_LAST_ID = (1 << 64) - 1  # never given: the id after it could not be written down
_WINDOW = 1 << 20
_MOST_BYTES = 1 << 30  # of one push; RocksDB counts a record in 32 bits
_AT_ONCE = 1000  # events taken while nobody else gets the lock
_ACK_BYTES = 16  # of a write, for each ack in it
_EVENT_BYTES = 50  # on disk, about, beside those of the event itself
_WORTH_TIDYING = 1000  # acks
_MARK_EVERY = 1.0  # second
_OLD_MARKS = 100  # deleted with one new mark, at most


class DurableEventQueue(Generic[Event]):
    """A queue on this host's disk, for one process at a time and any number of its threads; at least once.

    What is pushed and not acked is there again after a restart or a crash, in the order of its ids. `lazy` (the
    default) reads keys alone when it opens, and values when they are taken; otherwise everything is in memory too.
    Events are `bytes`, unless there is a `codec`.

    Raises `StorageError` if another process has the queue open, or its disk refuses, `InvalidInput` for what is no
    path, and `CorruptData` if it is damaged: events are missing, or cannot be read. With `skip_corrupt` such a queue
    is repaired first, as `penstock queue repair` does it, and what is missing is logged. See
    `docs/guides/durable-queue.md`.

    >>> import tempfile
    >>> with DurableEventQueue(tempfile.mkdtemp()) as queue:
    ...     pushed = queue.push(b"hello")
    ...     taken = queue.pop()
    ...     queue.ack(taken.id)
    ...     pushed == taken, len(queue)
    (True, 0)
    """

    @overload
    def __init__(
        self: DurableEventQueue[bytes],
        path: str | os.PathLike[str],
        *,
        lazy: bool = True,
        skip_corrupt: bool = False,
        clock: Callable[[], float] = time.time,
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
    ) -> None: ...

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lazy: bool = True,
        codec: Codec[Any] | None = None,
        skip_corrupt: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = os.path.realpath(local_path(path))  # RocksDB would let it in twice by two names
        self._codec: Codec[Any] = _checked_codec(codec)
        self._clock = clock
        self._home = current.number
        self._lock = threading.Lock()
        self._ready = Waiters(self._lock)
        self._database = _opened(self._path, skip_corrupt=skip_corrupt)
        try:
            bad_keys, self._totals = self._database.inventory.bad_keys, self._database.totals
            self._every_bad_key = tuple(bad_keys)
            self._bad_keys = deque(bad_keys)  # those that no pop has gone past
            self._ledger = Ledger(
                self._database,
                self._totals.next_id,
                self._totals.on_disk,
                window=_WINDOW if lazy else math.inf,
                keeps=not lazy,
            )
            if not lazy:
                self._ledger.first()  # its window has no end: this reads everything
        except BaseException:
            self._database.close()
            raise
        self._acks = 0  # how many there were: an iterator looks again whether an event is there after one
        self._tidied_at = 0  # so many acks
        self._marked = -math.inf  # when a time was written down last
        self._in_doubt = False
        self._commits = GroupCommit(self._write, repr(self))
        self._closing = threading.Lock()
        self._is_closed = False
        self._is_released = False
        self._measures = Measures(self._path)
        cls = DurableEventQueue
        self._measures.watch(self, cls._count_ready, cls._count_in_flight, cls._count_age)

    def __repr__(self) -> str:
        return f"DurableEventQueue({self._path!r})"

    def __enter__(self) -> DurableEventQueue[Event]:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the database, when what is being written is written. A second `close` does nothing.

        Whoever waits in `poll` gets `Closed`. Events in flight are ready again when the queue is opened the next time.
        """
        if self._home != current.number:
            return  # it is the parent's
        with self._closing:
            if self._is_released:
                return
            with self._lock:
                self._is_closed = True
                self._ready.wake_all()
            self._measures.unwatch()
            self._commits.close()
            with self._lock:
                if not self._in_doubt:
                    self._database.settle(self._totals)
                self._database.close()
            self._is_released = True

    def push(self, event: Event) -> DurableEvent[Event]:
        """Put an event on disk, and return it with its id.

        Raises `InvalidInput` for an event the codec cannot encode, `IdOverflow` when all ids are used, and
        `StorageError` when the disk refuses: it is not in the queue then.
        """
        data = encoded(self._codec, event)
        work = self._pushing((data,), len(data))
        self._commits.commit(work)
        return DurableEvent(work.first_id, event)

    async def push_async(self, event: Event) -> DurableEvent[Event]:
        """Do what `push` does, without blocking the loop. To cancel it works until its write has begun."""
        data = encoded(self._codec, event)
        work = self._pushing((data,), len(data))
        import asyncio  # here: those who do not wait this way need not load it

        await asyncio.wrap_future(self._commits.commit_later(work))
        return DurableEvent(work.first_id, event)

    def push_many(self, events: Iterable[Event]) -> list[DurableEvent[Event]]:
        """Put events on disk in one write: all of them, or none. Raises what `push` raises."""
        if not isinstance(events, Iterable):
            raise InvalidInput(f"push_many takes events, not {type(events).__name__}")
        some = list(events)
        codec = self._codec
        data = [encoded(codec, event, number) for number, event in enumerate(some)]
        work = self._pushing(data, sum(map(len, data)))
        if some:
            self._commits.commit(work)
        return [DurableEvent(identifier, event) for identifier, event in enumerate(some, work.first_id)]

    def get(self, id: int) -> DurableEvent[Event] | None:  # noqa: A002  its name is the contract
        """Look at an event without taking it; None if it is not on disk. Raises `CorruptEvent` if it is unreadable."""
        _check_id(id)
        self._check()
        with self._lock:
            self._check()
            data = self._database.get(id) if id < self._ledger.next_id else None
            return None if data is None else DurableEvent(id, decoded(self._codec, id, data))

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
        taken: DurableEvent[Event] | None = None

        def has_taken() -> bool:
            nonlocal taken
            taken = self._take(skip_corrupt)
            return taken is not None

        self._check()
        self._ready.wait(has_taken, timeout)
        return taken

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
        return: whoever gave it knows what was taken, even if an interrupt comes before this has returned.
        """
        check_whole("max_events", max_events)
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        most = math.inf if max_bytes is None else max_bytes
        taken = [] if into is None else into
        size = 0

        def has_taken() -> bool:
            nonlocal size
            full = min(max_events, len(taken) + _AT_ONCE)
            while len(taken) < full and (found := self._next_after(taken)) is not None:
                if taken and size + len(found[1]) > most:
                    return False
                taken.append(DurableEvent(*found))
                self._ledger.take(found[0])
                size += len(found[1])
            return len(taken) == full

        self._check()
        try:
            self._ready.wait(lambda: has_taken() or bool(taken), timeout)
            # The rest some at a time: whoever pushes meanwhile wants the lock too.
            more = 0 < len(taken) < max_events
            while more:
                with self._lock:
                    more = has_taken() and len(taken) < max_events
        except BaseException:
            with self._lock:
                while taken:
                    self._ledger.give_back(taken[-1].id)
                    taken.pop()
                self._ready.wake_all()
            raise
        return taken

    def ack(self, id: int) -> None:  # noqa: A002  its name is the contract
        """Delete an event, for good. One that is unknown, or acked already, is no error."""
        self.ack_many((id,))

    def ack_many(self, ids: Iterable[int]) -> None:
        """Delete events in one write. Raises `StorageError` when the disk refuses: they are as they were then."""
        if not isinstance(ids, Iterable):
            raise InvalidInput(f"ack_many takes ids, not {type(ids).__name__}")
        some = list(ids)
        if set(map(type, some)) - {int}:
            for identifier in some:
                _check_id(identifier)
        self._check()
        leaving: list[int] = []
        work = Work((), leaving, _ACK_BYTES * len(some))
        try:
            with self._lock:
                self._check()
                self._ledger.leave(some, leaving)
            if leaving:
                self._commits.commit(work)
        except BaseException:
            if work.is_over or not work.is_begun:  # else somebody is at it, and will see to it
                self._stay(work)
            raise

    def nack(self, id: int) -> None:  # noqa: A002  its name is the contract
        """Make an event that is in flight ready again, with its id. Raises `UnknownEvent` if it is not on disk."""
        _check_id(id)
        self._check()
        with self._lock:
            self._check()
            was_taken = self._ledger.give_back(id)
            if was_taken is None:
                raise UnknownEvent(f"event {id} is not on disk in {shown(self._path)}: it was acked, or never pushed")
            if was_taken:
                self._ready.wake()
                self._measures.nacks.inc()

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
        `CorruptEvent`, again with each `next`; `skip_corrupt` goes past it, and counts it.
        """
        self._check()
        return Walk(
            self._database,
            self._codec,
            self._lock,
            self._check,
            end=self._ledger.next_id,
            bad_keys=self._every_bad_key,
            acks=lambda: self._acks,
            on_skip=self._note_skipped if skip_corrupt else None,
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
        return None if mark is None else max(_milliseconds(self._clock()) - mark[1], 0) / 1000

    def corrupt_keys(self) -> list[bytes]:
        """The keys among the events that are no ids, as they were when the queue was opened."""
        self._check()
        return list(self._every_bad_key)

    def _pushing(self, events: Sequence[bytes], size: int) -> Work:
        self._check()
        if size > _MOST_BYTES:
            raise InvalidInput(f"one push can have {_MOST_BYTES} bytes, not {size}; nothing was pushed")
        return Work(events, (), size)

    def _take(self, skip_corrupt: bool) -> DurableEvent[Event] | None:
        """Take the next event. The order matters: nothing moves before it was decoded."""
        while (found := self._next(skip_corrupt)) is not None:
            try:
                taken = DurableEvent(found[0], decoded(self._codec, *found))
            except CorruptEvent as corrupt:
                if not skip_corrupt:
                    raise
                self._ledger.take(found[0])
                self._note_skipped(corrupt)
                continue
            self._ledger.take(found[0])
            return taken
        return None

    def _next(self, skip_corrupt: bool) -> tuple[int, bytes] | None:
        """The ready event with the smallest id, and its bytes. It is not taken."""
        while True:
            if self._is_closed:
                raise Closed(f"{self!r} is closed")
            found = self._ledger.first()
            if self._bad_keys and (found is None or self._bad_keys[0] < key_of(found[0])):
                corrupt = bad_key(self._path, self._bad_keys[0])
                if not skip_corrupt:
                    raise corrupt
                self._bad_keys.popleft()
                self._note_skipped(corrupt)
                continue
            if found is None:
                return None
            identifier, data = found
            return identifier, self._read(identifier) if data is None else data

    def _next_after(self, taken: Sequence[object]) -> tuple[int, bytes] | None:
        """What comes next. One that cannot be read does not hold up those before it: the next call meets it again."""
        try:
            return self._next(skip_corrupt=True)
        except PenstockError:
            if not taken or self._is_closed:
                raise
            return None

    def _note_skipped(self, corrupt: CorruptEvent) -> None:
        self._measures.corrupt_skipped.inc()
        _log.warning("skipped: %s", corrupt)

    def _read(self, identifier: int) -> bytes:
        data = self._database.get(identifier)
        if data is None:
            raise StorageError(f"event {identifier} is not on disk in {shown(self._path)}, though nobody has acked it")
        return data

    def _write(self, works: Sequence[Work]) -> None:
        """Write what some calls want, and move on in memory. One thread at a time is here: the leader."""
        has_begun, acked = False, 0
        try:
            if self._in_doubt:
                self._mend()
            changes = self._changes(works)
            if changes.events or changes.acked:
                self._in_doubt = has_begun = True
                try:
                    self._database.write(changes)
                except Stalled:  # perhaps there is room again, and it has not noticed yet
                    self._mend()
                    self._in_doubt = True
                    self._database.write(changes)
            with self._lock:
                if changes.events:
                    self._ledger.add(changes.events)
                    self._ready.wake(len(changes.events))
                if changes.acked:
                    acked = self._ledger.forget(changes.acked)
                    self._acks += acked
            self._totals = changes.totals
            self._in_doubt = False
        except BaseException:
            for work in works:
                self._stay(work)
            self._marked = -math.inf
            if has_begun:
                self._try_to_mend()
            raise
        if changes.events:
            self._measures.pushes.inc(len(changes.events))
        if acked:
            self._measures.acks.inc(acked)
            self._tidy_if_drained()

    def _tidy_if_drained(self) -> None:
        if not self._ledger.on_disk and self._acks - self._tidied_at >= _WORTH_TIDYING:
            self._tidied_at = self._acks
            self._database.tidy()

    def _stay(self, work: Work) -> None:
        """Put back what could not be acked; once, however often it is asked for."""
        with self._lock:
            acked, work.acked = work.acked, ()
            if self._ledger.stay(acked):
                self._ready.wake(len(acked))

    def _changes(self, works: Sequence[Work]) -> Changes:
        """Bring the work of some calls together. Those whose ids have run out, or that find no room, are left out."""
        changes = Changes(self._totals)
        now = self._clock()
        acked: list[int] = []
        for work in works:
            if not work.events:
                acked += work.acked
            elif changes.next_id + len(work.events) > _LAST_ID:
                work.error = IdOverflow(f"{self!r} has used its last id, {changes.next_id - 1}: nothing was pushed")
            elif not self._database.has_room_for(work.size + _EVENT_BYTES * len(work.events), now):
                work.error = StorageError(
                    f"the disk of {self!r} is full, but for what acks need: nothing was pushed. Ack, or free some space"
                )
            else:
                work.first_id = changes.next_id
                changes.next_id += len(work.events)
                changes.events += work.events
        if acked:
            with self._lock:
                changes.acked = self._ledger.still_leaving(acked)
        changes.totals = self._totals.after(len(changes.events), changes.acked)
        if changes.events and not 0 <= now - self._marked < _MARK_EVERY:
            self._mark_time(changes, now)
        return changes

    def _mark_time(self, changes: Changes, now: float) -> None:
        """Write down when the first of these events was pushed, and delete marks that no event needs any more."""
        self._marked = now
        changes.time = changes.next_id - len(changes.events), _milliseconds(now)
        with self._lock:
            oldest = self._ledger.oldest()
            changes.oldest = changes.time[0] if oldest is None else oldest
            needed = None if oldest is None else self._database.time_of(oldest)
            until = changes.time[0] if needed is None else needed[0]
            changes.old_times = self._database.old_times(until, _OLD_MARKS)

    def _try_to_mend(self) -> None:
        try:
            self._mend()
        except PenstockError as error:
            _log.warning("%r stays in doubt about a write that failed: %s", self, error)

    def _mend(self) -> None:
        """Find out what has become of a write that failed, and take back what was not reported as done."""
        with self._lock:
            ledger, database = self._ledger, self._database
            database.reopen()
            totals = database.totals
            if totals.next_id != ledger.next_id:
                strays = database.ids(ledger.next_id)
                totals = totals.without(strays, ledger.next_id)
                database.set_mark_back(totals)  # it may know of them, and would take them for lost
                changes = Changes(totals)
                changes.acked = strays
                database.write(changes)
            ledger.mend(totals.on_disk)
            self._totals = totals
            self._in_doubt = False

    def _check(self) -> None:
        if self._home != current.number:
            raise InvalidInput(
                f"{self!r} was opened in the process {self._home}, and one process at a time has a queue open: this "
                f"forked child ({current.number}) cannot use it"
            )
        if self._is_closed:
            raise Closed(f"{self!r} is closed")

    def _count_ready(self) -> float:
        return self._ask(self.ready_len)

    def _count_in_flight(self) -> float:
        return self._ask(lambda: len(self._ledger.in_flight))

    def _count_age(self) -> float:
        return self._ask(lambda: self.oldest_age() or 0.0)

    def _ask(self, question: Callable[[], float]) -> float:
        """Answer a gauge; not a number, where there is nothing to say: reading metrics never fails for one queue."""
        try:
            self._check()
            return question()
        except PenstockError:
            return math.nan


def _opened(path: str, *, skip_corrupt: bool) -> Database:
    try:
        return Database(path)
    except CorruptData:
        if not skip_corrupt:
            raise
    _log.warning("%s", repair_queue(path).summary())
    return Database(path)


def _milliseconds(now: float) -> int:
    return min(max(int(now * 1000), 0), _LAST_ID)


def _checked_codec(codec: Codec[Any] | None) -> Codec[Any]:
    if codec is None:
        return PLAIN
    for name in ("encode", "decode"):
        if not callable(getattr(codec, name, None)):
            raise InvalidInput(f"codec must have encode and decode, and {type(codec).__name__} has no {name}")
    return codec


def _check_id(id: object) -> None:  # noqa: A002
    if not isinstance(id, int) or isinstance(id, bool):
        raise InvalidInput(f"an event id is an integer, not {id!r}")
