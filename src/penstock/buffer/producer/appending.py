"""`append`: enqueue data objects that were written elsewhere, in one manifest write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.buffer.config import ProducerConfig
from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.buffer.format.batch import record_count
from penstock.buffer.locations import Names, is_data_path
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Unwritten
from penstock.buffer.producer.block_appender import BlockName
from penstock.core import check_config, check_whole
from penstock.errors import InvalidInput, NotFound
from penstock.storage import ObjectStore, open_store, url_of


@dataclass(frozen=True, slots=True)
class NewObject:
    """A data object that is in a buffer's store, and that no manifest names yet: where it is, and what is in it.

    `location` is a path in the store, as `new_location` gives it. Raises `InvalidInput` for a
    count that is none.
    """

    location: str
    records: int
    bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.location, str):
            raise InvalidInput(f"location must be a str, not {type(self.location).__name__}")
        check_whole("records", self.records, 0)
        check_whole("bytes", self.bytes)


def new_location(
    where: str | os.PathLike[str] | ObjectStore,
    config: ProducerConfig | None = None,
    *,
    clock: Callable[[], float] = time.time,
) -> str:
    """A path for a new data object of a buffer, which its collector does not delete before it is appended.

    Raises `InvalidInput` on a manifest of version 1, and for a prefix that belongs to another buffer.

    >>> new_location("memory://doctest-new-location").startswith("ingest/")
    True
    """
    return _Target(where, config, clock).location()


def append(
    where: str | os.PathLike[str] | ObjectStore,
    objects: Sequence[NewObject],
    *,
    writer: str,
    transaction: int,
    config: ProducerConfig | None = None,
    clock: Callable[[], float] = time.time,
) -> list[int]:
    """Enqueue objects that are in the store, all in one write of the manifest; return their sequences.

    A `writer` counts its transactions upwards. The last one can be repeated, after a crash or a lost reply: nothing is
    appended again, and the same sequences are returned. Each object is read, and checked: it is a batch, of that size
    and with so many records.

    Raises `InvalidInput` for a location that is not `<data_path_prefix>/<ULID>.batch`, or whose name is so old that a
    collector may delete it; for an object of another size or count; for a transaction before the writer's last, or that
    had other objects; and on a manifest of version 1. Raises `NotFound` for an object that is not there, and
    `CorruptData` for one that is no batch. Nothing is enqueued then.

    >>> from penstock.buffer import encode_batch
    >>> from penstock.storage import MemoryStore
    >>> store = MemoryStore("doctest-append")
    >>> data, location = encode_batch([b"one", b"two"]), new_location(store)
    >>> _ = store.put(location, data)
    >>> append(store, [NewObject(location, 2, len(data))], writer="nightly", transaction=0)
    [0]
    """
    name = BlockName(writer, transaction)
    if not isinstance(objects, Iterable):
        raise InvalidInput(f"append takes a list of NewObjects, not {type(objects).__name__}")
    objects = list(objects)
    for one in objects:
        if not isinstance(one, NewObject):
            raise InvalidInput(f"append takes NewObjects, and one is {type(one).__name__}")
    if len({one.location for one in objects}) < len(objects):
        raise InvalidInput("an object is given twice: each is enqueued once")
    if not objects:
        return []
    return _Target(where, config, clock).append(objects, name)


class _Target:
    """A buffer that objects are appended to."""

    def __init__(
        self,
        where: str | os.PathLike[str] | ObjectStore,
        config: ProducerConfig | None,
        clock: Callable[[], float],
    ) -> None:
        self._config = config = ProducerConfig() if config is None else config
        check_config(config, ProducerConfig)
        self._store = open_store(where)
        self._clock = clock
        self._names = Names(clock)
        self._queue = BufferQueue.of(self._store, config, "producer", names=self._names, clock=clock)
        self._where = f"{url_of(self._store)}/{config.manifest_path}"
        self._queue.look()
        if not self._queue.guards_new_objects:
            raise InvalidInput(
                f"{self._where} is a manifest of version 1, which remembers no writers, and whose collector goes by "
                "the age of objects: what was written elsewhere cannot be appended once. Upgrade it: penstock manifest "
                "upgrade"
            )
        self._queue.own_prefix(config.data_path_prefix, claim=True)

    def location(self) -> str:
        return self._names.location(self._config.data_path_prefix, self._queue.floor)

    def append(self, objects: Sequence[NewObject], name: BlockName) -> list[int]:
        # Looked at first: the objects of a transaction that is there may have been read and collected by now.
        if not self._queue.has(name.as_transaction, ()):
            for one in objects:
                self._check(one)
        metadata = (Metadata(0, max(int(self._clock() * 1000), 0), name.payload),)
        entries = [NewEntry(one.location, metadata, size=one.bytes, records=one.records) for one in objects]
        done = self._queue.enqueue(entries, name.as_transaction)
        if isinstance(done, Unwritten):
            raise InvalidInput(
                f"{done.closed[0].location} has a name so old that the collector of {self._where} may delete it; "
                "nothing was enqueued. Put the object under a path of new_location(...), and append that"
            )
        assert done.first_sequence is not None  # noqa: S101  version 2 knows it
        sequences = list(range(done.first_sequence, done.first_sequence + len(objects)))
        if done.was_there:
            self._check_same(objects, sequences, name)
        return sequences

    def _check(self, one: NewObject) -> None:
        prefix = self._config.data_path_prefix
        if not is_data_path(one.location, prefix):
            raise InvalidInput(
                f"location must be {prefix}/<ULID>.batch, as new_location(...) gives it, not {one.location!r}: a "
                "collector would never delete another"
            )
        try:
            data = self._store.get(one.location).data
        except NotFound as error:
            raise NotFound(
                f"{one.location} is not in {url_of(self._store)}, and nothing was enqueued: write it first",
                location=one.location,
            ) from error
        records = record_count(data)
        if (len(data), records) != (one.bytes, one.records):
            raise InvalidInput(
                f"{one.location} has {records} records in {len(data)} bytes, and not {one.records} in {one.bytes}: "
                "nothing was enqueued"
            )

    def _check_same(self, objects: Sequence[NewObject], sequences: list[int], name: BlockName) -> None:
        """Raise `InvalidInput` where the transaction had other objects, as far as its entries are still kept."""
        view = self._queue.look()
        try:
            kept = {entry.sequence: entry for entry in view.entries(sequences[0], sequences[-1] + 2)}
        except NotFound:
            return  # read and collected since
        for sequence, one in zip(sequences, objects, strict=True):
            if (sequence in kept and kept[sequence].location != one.location) or sequence >= view.next_sequence:
                raise InvalidInput(
                    f"transaction {name.transaction} of the writer {name.writer!r} is in {self._where} with other "
                    f"objects: {one.location} is not one of them. A new set of objects needs a higher transaction"
                )
        after = kept.get(sequences[-1] + 1)
        if after is not None and any(item.payload == name.payload for item in after.metadata):
            raise InvalidInput(
                f"transaction {name.transaction} of the writer {name.writer!r} is in {self._where} with more objects "
                f"than these {len(objects)}. A new set of objects needs a higher transaction"
            )
