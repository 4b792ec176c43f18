"""Processes that stop at a chosen step, so that a test can kill or pause them there."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.buffer import Consumer, Producer, ProducerConfig
from penstock.errors import OutcomeUnknown
from penstock.storage import LocalStore, ObjectStore
from tests.support.filled_buffers import each_alone
from tests.support.minimal_stores import Answer, StoreCall, ThinStore
from tests.support.processes import Parent, Start

DEADLINE = 10.0


@dataclass(frozen=True)
class Stop:
    """Before or after the n-th call of an operation (a prefix of its name) on a path (by its ending).

    With a `step` it is within the call, at that step of the local store.
    """

    when: str
    operation: str
    ending: str
    occurrence: int = 1
    step: str = ""

    def fits(self, call: StoreCall) -> bool:
        """Whether a call counts for this stop."""
        return call.operation.startswith(self.operation) and call.path.endswith(self.ending)

    def __str__(self) -> str:
        return f"{self.when} {self.operation} {self.ending} {self.occurrence} {self.step}".strip()


OWNER_CLAIMED = Stop("after", "put_if", ".owner")
OBJECT_WRITTEN = Stop("after", "put", ".batch")
MANIFEST_READ = Stop("after", "get", "/manifest", 2)  # for the first batch: the first read opens the producer
MANIFEST_CREATED = Stop("after", "put_if_absent", "/manifest")
ID_WRITTEN = Stop("after", "put_if_absent", "/manifest.id")
MANIFEST_NOT_WRITTEN = Stop("before", "put_if_match", "/manifest")
MANIFEST_WRITTEN = Stop("after", "put_if_match", "/manifest")
HANDLE_COMPLETED = Stop("after", "complete", "handle")
ACKED = Stop("after", "ack", "batch")


class StopPoints:
    """Sends a stop to the test when it is reached, and waits there until the test says go, or kills."""

    def __init__(self, parent: Parent, *stops: Stop) -> None:
        self._parent = parent
        self._stops = {stop: itertools.count(1) for stop in stops}
        self._begun: set[Stop] = set()

    def store(self, root: str) -> ObjectStore:
        """A store on disk that stops at these points."""
        return _StoppingStore(LocalStore(root, step=self._at_step), self)

    def at(self, point: Stop) -> None:
        """Stop if this is one of the points."""
        if point in self._stops:
            self._halt(point)

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        """Pass a call of the store on, and stop before or after it."""
        reached = [stop for stop, calls in self._stops.items() if stop.fits(call) and next(calls) == stop.occurrence]
        self._begun.update(reached)
        for stop in reached:
            if stop.when == "before":
                self._halt(stop)
        try:
            return pass_on()
        finally:  # after a read of what is not there too
            for stop in reached:
                if stop.when == "after":
                    self._halt(stop)

    def _at_step(self, step: str) -> None:
        # The manifest is written last and by one thread: the first such step from then on is a step of that write.
        for stop in self._begun:
            if stop.step == step:
                self._halt(stop)

    def _halt(self, stop: Stop) -> None:
        self._parent.tell(stop)
        self._parent.wait()


class _StoppingStore(ThinStore):
    def __init__(self, store: ObjectStore, points: StopPoints) -> None:
        super().__init__(store)
        self._points = points

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        return self._points.around(call, pass_on)


def produce_and_stop(parent: Parent, root: str, entries: list[bytes], together: int, *stops: Stop) -> None:
    """Produce each entry as a batch of its own, `together` of them at a time, and stop at the stops."""
    stopping = StopPoints(parent, *stops)
    with Producer(stopping.store(root), each_alone()) as producer:
        for start in range(0, len(entries), together):
            for handle in [producer.produce(entry) for entry in entries[start : start + together]]:
                handle.result()
        stopping.at(HANDLE_COMPLETED)


def consume_and_stop(parent: Parent, root: str, last_acked: int | None, through: bool, stop: Stop) -> None:
    """Read two batches, ack the first, durably (`through`) or in memory, and stop on the way or at the end."""
    stopping = StopPoints(parent, stop)
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
    """Read `count` batches, ack each in memory, and stop."""
    consumer = Consumer(root)
    for descriptor in consumer.next_descriptors(count):
        consumer.ack(descriptor.sequence)
    StopPoints(parent, ACKED).at(ACKED)


def produce_and_pause(parent: Parent, root: str, clock: str, stop: Stop) -> str:
    """Produce one entry by a clock that the test sets, and stop on the way; return the outcome of its handle."""
    parent.tell(os.getpid())
    config = ProducerConfig(flush_size_bytes=1, enqueue_deadline=DEADLINE)
    store = StopPoints(parent, stop).store(root)
    with Producer(store, config, uptime=lambda: float(Path(clock).read_text())) as producer:
        handle = producer.produce(b"paused")
        try:
            return f"enqueued as {handle.result().sequence}"
        except OutcomeUnknown as error:
            return str(error)


# What a test does around a process that stops.


def kill_at(stop: Stop, root: Path, start: Start, entries: list[bytes], together: int = 1) -> None:
    victim = start(produce_and_stop, str(root), entries, together, stop)
    assert victim.hear() == stop
    victim.kill()


def produce_one(root: Path, entry: bytes) -> int:
    with Producer(root) as producer:
        return producer.produce(entry).result().sequence


def drain(root: Path) -> list[tuple[int, list[bytes]]]:
    with Consumer(root) as consumer:
        found = []
        for batch in consumer:
            found.append((batch.sequence, batch.entries))
            batch.ack()
        return found
