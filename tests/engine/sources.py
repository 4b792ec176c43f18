"""One interface to the three transports, for tests that run over each of them; and batches to fill a buffer with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from penstock import Consumer, DurableEventQueue, Record, open_store
from penstock.buffer import encode_batch
from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.engine import BufferReceiver, MemoryTransport, QueueReceiver, Receiver
from penstock.engine.transports.contract import Filter
from penstock.storage import ObjectStore
from tests.support.filled_buffers import enqueue, fill, no_gc

PER_BLOCK = 3


def plant(store: ObjectStore, *batches: list[bytes]) -> None:
    """Put batches into a buffer without a producer, which would not write empty ones."""
    entries = []
    for number, batch in enumerate(batches):
        store.put(f"ingest/{number}.batch", encode_batch(batch))
        entries.append(NewEntry(f"ingest/{number}.batch", (Metadata(0, 0),)))
    enqueue(store, entries)


class Source(Protocol):
    """Holds values, three to a block, and counts those that are committed."""

    survives: bool

    def open(self, filters: Iterable[Filter] = ()) -> Receiver:
        """A receiver; the one before, and all that it stands on, is closed."""
        ...

    def committed(self) -> int:
        """How many records are committed, counted from the first."""
        ...

    def close(self) -> None: ...


class MemorySource:
    """What was injected; there is no restart."""

    survives = False

    def __init__(self, place: Path, payloads: list[bytes]) -> None:
        self._payloads = payloads
        self._transport = MemoryTransport()

    def open(self, filters: Iterable[Filter] = ()) -> Receiver:
        self._transport = MemoryTransport(filters=filters)
        self._transport.send(map(Record, self._payloads))
        return self._transport

    def committed(self) -> int:
        through = self._transport.committed_sequence
        return 0 if through is None else through + 1

    def close(self) -> None:
        self._transport.close()


class QueueSource:
    """A queue on a real RocksDB."""

    survives = True

    def __init__(self, place: Path, payloads: list[bytes]) -> None:
        self._place = place / "queue"
        self._count = len(payloads)
        self._queue = DurableEventQueue(self._place)
        self._queue.push_many(payloads)

    def open(self, filters: Iterable[Filter] = ()) -> Receiver:
        self._queue.close()
        self._queue = DurableEventQueue(self._place)
        return QueueReceiver(self._queue, filters=filters)

    def committed(self) -> int:
        unacked = [event.id for event in self._queue.iterate()]
        assert unacked == list(range(self._count - len(unacked), self._count)), "acked with a gap"
        return self._count - len(unacked)

    def close(self) -> None:
        self._queue.close()


class BufferSource:
    """A buffer on this disk, a block to a batch."""

    survives = True

    def __init__(self, place: Path, payloads: list[bytes]) -> None:
        self._store = open_store(place / "buffer")
        fill(self._store, *(payloads[at : at + PER_BLOCK] for at in range(0, len(payloads), PER_BLOCK)))
        self._receiver: BufferReceiver | None = None

    def open(self, filters: Iterable[Filter] = ()) -> Receiver:
        self.close()
        self._consumer = Consumer(self._store, no_gc())
        self._receiver = BufferReceiver(self._consumer, filters=filters, fetchers=2)
        return self._receiver

    def committed(self) -> int:
        through = self._consumer.last_acked_sequence
        return 0 if through is None else PER_BLOCK * (through + 1)

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._consumer.close()


SOURCES: dict[str, type[MemorySource] | type[QueueSource] | type[BufferSource]] = {
    "memory": MemorySource,
    "queue": QueueSource,
    "buffer": BufferSource,
}


def numbered(count: int) -> list[list[bytes]]:
    """Batches of one record each, which is its number."""
    return [[b"%d" % number] for number in range(count)]
