"""A producer without threads: the test writes and enqueues its batches, step by step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from penstock.buffer import ProducerConfig, Written
from penstock.buffer.locations import Names
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.producer.batches import BatchShipper
from penstock.buffer.producer.pending_batch import PendingBatch, take
from penstock.errors import PenstockError
from penstock.storage import ObjectStore


class CountingShipper(BatchShipper):
    """Counts the data objects that had to be written again."""

    written_again = 0

    def put(self, batch: PendingBatch, floor: int | None = None) -> None:
        self.written_again += bool(batch.location)
        super().put(batch, floor)


class SteppedProducer:
    """Takes payloads, a batch each, and does with them what the threads of a `Producer` do, on request."""

    def __init__(self, shipper: BatchShipper, clock: Callable[[], float] = time.time) -> None:
        self._shipper = shipper
        self._clock = clock

    def take(self, payload: bytes) -> PendingBatch:
        """A batch of one payload."""
        given, batch = take(payload, self._shipper.batch_format), PendingBatch(math.inf)
        batch.add(given, given.size, int(self._clock() * 1000), b"")
        return batch

    def ship(self, batches: Sequence[PendingBatch]) -> list[Written | PenstockError]:
        """Write all, then enqueue what was written; what became of each."""
        outcomes: dict[int, Written | PenstockError] = {}
        written = []
        for batch in batches:
            try:
                self._shipper.encode(batch)
                self._shipper.put(batch)
            except PenstockError as error:
                outcomes[id(batch)] = error
            else:
                written.append(batch)
        try:
            for batch, outcome in self._shipper.enqueue(written):
                outcomes.setdefault(id(batch), outcome)
        except PenstockError as error:
            for batch in written:
                outcomes.setdefault(id(batch), error)
        return [outcomes[id(batch)] for batch in batches]


def produce_step_by_step(
    store: ObjectStore, payloads: Sequence[bytes], queue: BufferQueue, names: Names, clock: Callable[[], float]
) -> list[Written]:
    """Produce payloads, each a batch of its own, one after the other. What cannot be enqueued fails the test."""
    producer = SteppedProducer(BatchShipper(store, ProducerConfig(), queue, names, time.monotonic), clock)
    done = []
    for payload in payloads:
        (outcome,) = producer.ship([producer.take(payload)])
        assert isinstance(outcome, Written), outcome
        done.append(outcome)
    return done
