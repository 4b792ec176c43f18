"""Processes that stop at a chosen step, and tell the test, which kills or pauses them there."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.buffer import Consumer, Producer, ProducerConfig, Written
from penstock.buffer.producer.pending_batch import PendingBatch
from penstock.errors import OutcomeUnknown
from penstock.storage import LocalStore, ObjectStore
from tests.buffer.manifest.faults.between import Answer, Between, Call
from tests.support.processes import Parent

ONE_EACH = ProducerConfig(flush_size_bytes=1)
DEADLINE = 10.0


@dataclass(frozen=True)
class Stop:
    """Before or after the n-th call of an operation, by how its name starts, on a path, by how that ends.

    With a `step` it is at that step of the disk's own work, within the call.
    """

    when: str
    operation: str
    ending: str
    occurrence: int = 1
    step: str = ""

    def fits(self, call: Call) -> bool:
        """Whether a call is one of those that count."""
        return call.operation.startswith(self.operation) and call.path.endswith(self.ending)

    def __str__(self) -> str:
        return f"{self.when} {self.operation} {self.ending} {self.occurrence} {self.step}".strip()


OWNER_CLAIMED = Stop("after", "put_if", ".owner")
OBJECT_WRITTEN = Stop("after", "put", ".batch")
MANIFEST_READ = Stop("after", "get", "/manifest", 2)  # by the first batch: once it is when the producer is opened
MANIFEST_CREATED = Stop("after", "put_if_absent", "/manifest")
ID_WRITTEN = Stop("after", "put_if_absent", "/manifest.id")
MANIFEST_NOT_WRITTEN = Stop("before", "put_if_match", "/manifest")
MANIFEST_WRITTEN = Stop("after", "put_if_match", "/manifest")
HANDLE_NOT_TOLD = Stop("before", "tell", "handle")
HANDLE_TOLD = Stop("after", "tell", "handle")
ACKED = Stop("after", "ack", "batch")


class Stopping:
    """Tells the test when a point is reached, and stays there until the test says go, or kills."""

    def __init__(self, parent: Parent, *stops: Stop) -> None:
        self._parent = parent
        self._stops = {stop: itertools.count(1) for stop in stops}
        self._begun: set[Stop] = set()

    def store(self, root: str) -> ObjectStore:
        """A store on disk that stops there."""
        return Between(LocalStore(root, step=self._at_step), self._around)

    def at(self, point: Stop) -> None:
        """Stop if this is one of the points."""
        if point in self._stops:
            self._halt(point)

    def _around(self, call: Call, make: Callable[[], Answer]) -> Answer:
        reached = [stop for stop, calls in self._stops.items() if stop.fits(call) and next(calls) == stop.occurrence]
        self._begun.update(reached)
        for stop in reached:
            if stop.when == "before":
                self._halt(stop)
        try:
            return make()
        finally:  # after a read of what is not there too
            for stop in reached:
                if stop.when == "after":
                    self._halt(stop)

    def _at_step(self, step: str) -> None:
        # One thread writes the manifest, after all others: the first such step from then on is a step of that write.
        for stop in self._begun:
            if stop.step == step:
                self._halt(stop)

    def _halt(self, stop: Stop) -> None:
        self._parent.tell(stop)
        self._parent.wait()


class _TellsWhenToldTo(Producer):
    """A producer that stops before its handles hear of a batch that is enqueued."""

    def __init__(self, store: ObjectStore, stopping: Stopping) -> None:
        self._stopping = stopping
        super().__init__(store, ONE_EACH)

    def _succeed(self, batch: PendingBatch, written: Written) -> None:
        self._stopping.at(HANDLE_NOT_TOLD)
        super()._succeed(batch, written)


def produce_and_stop(parent: Parent, root: str, entries: list[bytes], together: int, *stops: Stop) -> None:
    """Produce each entry as a batch of its own, so many of them under way together, and stop on the way."""
    stopping = Stopping(parent, *stops)
    with _TellsWhenToldTo(stopping.store(root), stopping) as producer:
        for start in range(0, len(entries), together):
            for handle in [producer.produce(entry) for entry in entries[start : start + together]]:
                handle.result()
        stopping.at(HANDLE_TOLD)


def consume_and_stop(parent: Parent, root: str, last_acked: int | None, through: bool, stop: Stop) -> None:
    """Take two batches, ack the first of them, durably (`through`) or in memory, and stop on the way or at the end."""
    stopping = Stopping(parent, stop)
    consumer = Consumer(stopping.store(root), last_acked_sequence=last_acked)
    batch, ahead = consumer.next_batch(), consumer.next_batch()
    assert batch is not None
    assert ahead is not None
    if through:
        consumer.ack_through(batch.sequence)
    else:
        consumer.ack(batch.sequence)
    stopping.at(ACKED)


def ack_one_by_one_and_stop(parent: Parent, root: str, count: int) -> None:
    """Take so many batches, ack each in memory, and stop."""
    consumer = Consumer(root)
    for descriptor in consumer.next_descriptors(count):
        consumer.ack(descriptor.sequence)
    Stopping(parent, ACKED).at(ACKED)


def produce_and_pause(parent: Parent, root: str, clock: str, stop: Stop) -> str:
    """Produce one entry by a clock that the test sets, and stop on the way; say what the handle said."""
    parent.tell(os.getpid())
    config = ProducerConfig(flush_size_bytes=1, enqueue_deadline=DEADLINE)
    store = Stopping(parent, stop).store(root)
    with Producer(store, config, uptime=lambda: float(Path(clock).read_text())) as producer:
        handle = producer.produce(b"paused")
        try:
            return f"enqueued as {handle.result().sequence}"
        except OutcomeUnknown as error:
            return str(error)
