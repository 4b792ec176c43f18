"""From a descriptor to its batch: `FetchHandle`, and the `ConsumedBatch` it returns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

import pyarrow as pa

from penstock.buffer.descriptors import BatchDescriptor, Metadata
from penstock.buffer.format.batch import MAX_BATCH_BYTES, decode_batch
from penstock.buffer.measures import Measures
from penstock.errors import CorruptData, InvalidInput, NotFound
from penstock.storage import ObjectStore, get_at_most, is_path, open_store, url_of

if TYPE_CHECKING:
    from penstock.core import Threads

_MAX_FETCHES_AT_ONCE = 8  # of the coroutines that share a handle: each may have a whole batch in memory
_MAX_FRAMING_BYTES = 64 << 20  # of a batch with few entries, beside these


class Acks(Protocol):
    """The consumer of a batch, as far as the batch needs it."""

    def ack_through(self, sequence: int) -> None:
        """Ack everything up to a sequence."""
        ...

    async def ack_through_async(self, sequence: int) -> None:
        """Do the same without blocking the loop."""
        ...


@dataclass(frozen=True)
class ConsumedBatch:
    """A batch that was fetched and decoded. `arrow` has its records in columns, `entries` its payloads as a list."""

    sequence: int
    location: str
    metadata: tuple[Metadata, ...]
    arrow: pa.RecordBatch = field(repr=False)
    consumer: Acks | None = field(default=None, repr=False, compare=False)

    @cached_property
    def entries(self) -> list[bytes]:
        """The payloads, decoded on first use."""
        return cast("list[bytes]", self.arrow.column("value").to_pylist())

    def ack(self) -> None:
        """Ack through this batch, with the consumer that fetched it.

        Raises what `Consumer.ack_through` raises, and `InvalidInput` for a batch that came from a `FetchHandle`.
        """
        self._consumer().ack_through(self.sequence)

    async def ack_async(self) -> None:
        """Do what `ack` does, without blocking the loop. Cancelled, the same call can be tried again."""
        await self._consumer().ack_through_async(self.sequence)

    def _consumer(self) -> Acks:
        if self.consumer is None:
            raise InvalidInput(f"the batch {self.sequence} was fetched without a consumer: ack it there")
        return self.consumer

    def __hash__(self) -> int:
        return hash((self.sequence, self.location))

    def __getstate__(self) -> dict[str, object]:
        kept = ("sequence", "location", "metadata", "arrow")
        return {**{name: self.__dict__[name] for name in kept}, "consumer": None}  # a consumer cannot be pickled


class FetchHandle:
    """Fetches batches by their descriptors: anywhere, from any thread; it can be pickled.

    It never touches a cursor or the manifest, and so never notices a fence.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | ObjectStore,
        *,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        label: str | None = None,
    ) -> None:
        self._store = open_store(where)
        self._max_batch_bytes = max_batch_bytes
        self._label = label or url_of(self._store)
        self._measures = Measures(self._label)

    def __repr__(self) -> str:
        return f"FetchHandle({url_of(self._store)})"

    def __reduce__(self) -> tuple[Callable[..., FetchHandle], tuple[ObjectStore, int, str]]:
        return _unpickle, (self._store, self._max_batch_bytes, self._label)

    def fetch(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """Fetch and decode the batch of a descriptor.

        Raises `NotFound` if its object is gone, `CorruptData` if it is no batch, both naming sequence and location, and
        `StorageError` if the store fails.
        """
        return self.fetch_for(descriptor, None)

    async def fetch_async(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """Do what `fetch` does, without blocking the loop; several at once are fetched in parallel."""
        return await self.threads.run(self.fetch, descriptor)

    @cached_property
    def threads(self) -> Threads:
        """The threads in which coroutines fetch."""
        from penstock.core import Threads  # here: those who do not wait this way do not load asyncio

        return Threads("fetch", _MAX_FETCHES_AT_ONCE)

    def fetch_for(self, descriptor: BatchDescriptor, consumer: Acks | None) -> ConsumedBatch:
        """Do the same for a consumer, with which the batch can be acked."""
        started = time.perf_counter()
        batch, size = read_batch(self._store, descriptor, self._max_batch_bytes)
        self._measures.batches_collected.inc()
        self._measures.entries_collected.inc(batch.num_rows)
        self._measures.bytes_collected.inc(size)
        self._measures.fetch_duration.observe(time.perf_counter() - started)
        return ConsumedBatch(descriptor.sequence, descriptor.location, descriptor.metadata, batch, consumer)


def read_batch(store: ObjectStore, descriptor: BatchDescriptor, max_batch_bytes: int) -> tuple[pa.RecordBatch, int]:
    """Read and decode the batch of a descriptor; return it with the size of its object. Raises as `fetch` does."""
    data = read_object(store, descriptor, max_batch_bytes)
    return decode_object(store, descriptor, data, max_batch_bytes), len(data)


def read_object(store: ObjectStore, descriptor: BatchDescriptor, max_batch_bytes: int = MAX_BATCH_BYTES) -> bytes:
    """Read the object of a descriptor without decoding it. Raises as `fetch` does."""
    if not is_path(descriptor.location):
        raise CorruptData(f"{_what(store, descriptor)} has a location that is not a path in a store")
    try:
        return get_at_most(store, descriptor.location, largest_object(descriptor, max_batch_bytes)).data
    except NotFound as error:
        raise NotFound(
            f"{_what(store, descriptor)} is gone", location=descriptor.location, sequence=descriptor.sequence
        ) from error
    except CorruptData as error:
        raise CorruptData(f"{_what(store, descriptor)} cannot be read: {error}") from error


def largest_object(descriptor: BatchDescriptor, max_batch_bytes: int = MAX_BATCH_BYTES) -> int:
    """The maximum size of the object of a descriptor, in bytes: the size in its entry.

    Version 1 has no sizes (None, or 0 where it was read and not found). There a batch of many small entries may
    have twice the bytes of its entries.
    """
    return descriptor.size or 2 * max_batch_bytes + _MAX_FRAMING_BYTES


def decode_object(
    store: ObjectStore, descriptor: BatchDescriptor, data: bytes, max_batch_bytes: int = MAX_BATCH_BYTES
) -> pa.RecordBatch:
    """Decode what `read_object` read. Raises `CorruptData` naming sequence and location."""
    try:
        return decode_batch(data, max_batch_bytes=max_batch_bytes)
    except CorruptData as error:
        raise CorruptData(f"{_what(store, descriptor)} cannot be read: {error}") from error


def _what(store: ObjectStore, descriptor: BatchDescriptor) -> str:
    return f"the data of sequence {descriptor.sequence} ({descriptor.location}) in {url_of(store)}"


def _unpickle(store: ObjectStore, max_batch_bytes: int, label: str) -> FetchHandle:
    return FetchHandle(store, max_batch_bytes=max_batch_bytes, label=label)
