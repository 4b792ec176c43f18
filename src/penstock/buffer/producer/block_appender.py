"""Append a block: data objects that several processes wrote, enqueued together in one manifest write.

A task calls `BlockAppender.write` for each object. The process that commits the block calls `append` with all of them,
maybe much later. By its `BlockName` a block that is repeated is recognised.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.buffer.config import ProducerConfig, check_name
from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.buffer.format.batch import Compression, encode
from penstock.buffer.locations import Names
from penstock.buffer.manifest.block_names import MAX_TRANSACTION, block_payload
from penstock.buffer.manifest.enqueuing import Attempts
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Enqueued, Transaction, Unwritten
from penstock.buffer.producer.producer import seconds_since_boot
from penstock.core import check_whole, current, get_logger, refuse_in_child
from penstock.errors import InvalidInput, NotFound, OutcomeUnknown
from penstock.records import join_records, rows_of_size, size_of
from penstock.storage import ObjectStore, url_of

_MAX_ROWS_PER_OBJECT = 1 << 20  # of one object: rows without a byte in them take memory too
_COPYING_THREADS = 4
_MAX_ROUNDS = 5

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """A data object that no manifest names yet. `began` is when its writing began, in seconds since 1970.

    `is_guarded`: the manifest was version 2 by then, and its floor is all that a collector goes by. Else one may have
    it on its list for its age, from before an upgrade.
    """

    location: str
    records: int
    size: int
    began: float
    is_guarded: bool = False


@dataclass(frozen=True, slots=True)
class BlockName:
    """The writer of a block, and which of its blocks it is. A block that is repeated has the name it had before.

    Raises `InvalidInput` for a writer that is no name, or a transaction below 0.

    >>> BlockName("nightly", 7).payload
    b'{"writer":"nightly","transaction":7}'
    """

    writer: str
    transaction: int
    end: str | None = None
    """Where the input of the block ends, if its writer knows: another block under the same name has another end."""
    follows: int | None = None
    """The last transaction of the writer that it knows of, 0 for none. Where the manifest has another one, another
    process appends under this name, and the block is refused with `InvalidInput`. Version 1 does not check it."""

    def __post_init__(self) -> None:
        check_name("writer", self.writer)
        check_whole("transaction", self.transaction, 0, MAX_TRANSACTION)

    @property
    def as_transaction(self) -> Transaction:
        """The writer and the number that a manifest remembers."""
        return Transaction(self.writer, self.transaction, end=self.end, follows=self.follows)

    @property
    def payload(self) -> bytes:
        """What every entry of the block carries as metadata."""
        return block_payload(self.as_transaction)


def join_to_size(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Join and cut batches of records to `most` bytes each; a record that is larger comes alone.

    >>> from penstock.records import values_to_arrow
    >>> [batch.num_rows for batch in join_to_size([values_to_arrow([b"aa", b"b"]), values_to_arrow([b"cccc"])], 3)]
    [2, 1]
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            fitting = min(rows_of_size(batch, start, most - size), _MAX_ROWS_PER_OBJECT - rows)
            if not fitting and held:
                yield join_records(held)
                held, rows, size = [], 0, 0
                continue
            piece = batch.slice(start, max(fitting, 1))
            held.append(piece)
            start, rows, size = start + piece.num_rows, rows + piece.num_rows, size + size_of(piece)
    if held:
        yield join_records(held)


class BlockAppender:
    """Writes the data objects of blocks into one buffer, and appends blocks to its queue.

    It keeps no state of blocks: one appender may write an object, and another one, anywhere, append it.

    >>> from penstock.records import values_to_arrow
    >>> from penstock.storage import MemoryStore
    >>> appender = BlockAppender(MemoryStore("doctest-appending"))
    >>> written = appender.write(values_to_arrow([b"one", b"two"]))
    >>> appender.append([written], BlockName("nightly", 7)), appender.append([written], BlockName("nightly", 7))
    (True, False)
    """

    def __init__(
        self,
        store: ObjectStore,
        config: ProducerConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = seconds_since_boot,
    ) -> None:
        config = ProducerConfig() if config is None else config
        self._store = store
        self._config = config
        self._clock = clock
        self._uptime = uptime
        self._names = Names(clock)
        self._queue = BufferQueue.of(store, config, "producer", names=self._names, clock=clock, uptime=uptime)
        self._owns_prefix = False
        self._is_guarded = False
        self._home = current.number

    def write(self, batch: pa.RecordBatch) -> WrittenObject:
        """Write a batch of records as a data object, which no consumer sees until it is appended.

        Raises `InvalidInput` for more than `max_batch_bytes`, for records with more than a value where the format keeps
        values only, and for a prefix that belongs to another buffer; and `StorageError`.
        """
        self._check_process()
        config = self._config
        size = size_of(batch)
        if size > config.max_batch_bytes:
            raise InvalidInput(f"a batch of {size} bytes passes max_batch_bytes = {config.max_batch_bytes}")
        if not self._owns_prefix:
            self._own_prefix()
            self._is_guarded = self._queue.guards_new_objects
        shape = config.batch_format(self._queue.batch_format)
        encoded = encode(batch, Compression(config.compression), shape, config.max_batch_bytes)
        began = self._clock()  # before it is written: the age of the object is counted from here
        location = self._put(encoded.data, self._queue.floor)
        return WrittenObject(location, batch.num_rows, len(encoded.data), began, self._is_guarded)

    def append(self, objects: Sequence[WrittenObject], name: BlockName | None = None) -> bool:
        """Enqueue all objects in one write, in their order. False: the block is in the queue already, or has none.

        With a name, a block that is repeated is not appended: a manifest of version 2 remembers the writer and its last
        transaction. On version 1 any entry still queued that carries the name shows that the block is there; one that
        has been dequeued is appended again, at least once. The objects given now stay orphans. A transaction that is
        lower than the writer's last is no such block, and raises `InvalidInput`: it may never have been appended. On
        version 1 it does so while a later one is queued.

        Objects that are too old to be named safely are written again, under another location. Raises `NotFound` naming
        an object that is gone; nothing is enqueued then. Raises `OutcomeUnknown` where it is not known to be enqueued.
        """
        self._check_process()
        if not objects:
            return False
        by = None if name is None else name.as_transaction
        if self._owns_prefix:
            self._queue.look()
        else:
            self._own_prefix()
        entries = [self._entry(written, b"" if name is None else name.payload) for written in objects]
        known_at: list[str] = []  # the last location of each round: the last one is the last to be dequeued
        attempts = Attempts()  # of all rounds: one that was late may yet arrive
        for _ in range(1 if all(map(self._is_safe, objects)) else _MAX_ROUNDS):
            known_at.append(entries[-1].location)
            if any(map(self._is_old, entries)):
                # Looked at first: of a block that is there, the objects may have been read and collected by now.
                if self._queue.has(by, known_at):
                    break
                entries = self._write_again(entries)
                known_at.append(entries[-1].location)
            done = self._enqueue(entries, by, known_at, attempts)
            if isinstance(done, Enqueued):
                if done.appended:
                    return True
                break
        else:
            raise OutcomeUnknown(
                f"{len(entries)} objects of a block were not enqueued in {self._where} within enqueue_deadline = "
                f"{self._config.enqueue_deadline} s, {_MAX_ROUNDS} times; they are not known to be enqueued"
            )
        _log.warning(
            "%s is in %s already, or was; its %d new objects stay orphans", name or "a block", self._where, len(objects)
        )
        return False

    def _enqueue(
        self, entries: Sequence[NewEntry], by: Transaction | None, known_at: Sequence[str], attempts: Attempts
    ) -> Enqueued | Unwritten:
        """Enqueue all of the entries, or none: where one is late, nothing is written."""
        while True:
            done = self._queue.enqueue(entries, by, known_at=known_at, attempts=attempts)
            if isinstance(done, Enqueued) or done.late:
                return done
            entries = [self._copy(entry, done.floor) if entry in done.closed else entry for entry in entries]

    def _own_prefix(self) -> None:
        """Check that the objects and the manifest are of one buffer. Reads the manifest too."""
        self._owns_prefix = self._queue.own_prefix(self._config.data_path_prefix, claim=True)

    def _check_process(self) -> None:
        # Its queue appends as a writer with a name and a count: two copies would take each other's for their own.
        refuse_in_child(self._home, self, "make a BlockAppender here")

    def __repr__(self) -> str:
        return f"BlockAppender({self._where})"

    @property
    def _where(self) -> str:
        return f"{url_of(self._store)}/{self._config.manifest_path}"

    def _entry(self, written: WrittenObject, payload: bytes) -> NewEntry:
        age = self._clock() - written.began
        if age < -self._config.enqueue_deadline / 3:
            age = math.inf  # another host's clock, and far ahead: it says nothing about the age
        deadline = self._uptime() + self._config.enqueue_deadline - max(age, 0)
        if self._is_safe(written):
            deadline = self._uptime() + _MAX_ROUNDS * self._config.enqueue_deadline
        metadata = (Metadata(0, int(written.began * 1000), payload),)
        return NewEntry(written.location, metadata, deadline, written.size, written.records)

    def _is_safe(self, written: WrittenObject) -> bool:
        """Whether the floor alone decides if an object may be named, and not its age."""
        return written.is_guarded and self._queue.guards_new_objects

    def _is_old(self, entry: NewEntry) -> bool:
        """Whether two thirds of its time are over; the rest is for the manifest write, and for hosts' clocks."""
        return entry.deadline - self._uptime() < self._config.enqueue_deadline / 3

    def _write_again(self, entries: Sequence[NewEntry]) -> list[NewEntry]:
        old = [entry for entry in entries if self._is_old(entry)]
        _log.info("writing %d of %d objects of a block again in %s: too old", len(old), len(entries), self._where)
        with ThreadPoolExecutor(_COPYING_THREADS, thread_name_prefix="penstock-appending") as pool:
            copies = dict(zip((entry.location for entry in old), pool.map(self._copy, old), strict=True))
        return [copies.get(entry.location, entry) for entry in entries]

    def _copy(self, entry: NewEntry, floor: int = 0) -> NewEntry:
        try:
            data = self._store.get(entry.location).data
        except NotFound as error:
            raise NotFound(
                f"{entry.location} in {url_of(self._store)} is gone, and its block was not enqueued yet; nothing of "
                "the block is, and it has to be written again",
                location=entry.location,
            ) from error
        deadline = self._uptime() + self._config.enqueue_deadline
        return replace(entry, location=self._put(data, floor), deadline=deadline)

    def _put(self, data: bytes | memoryview, floor: int) -> str:
        location = self._names.location(self._config.data_path_prefix, floor)
        self._store.put(location, data)
        return location
