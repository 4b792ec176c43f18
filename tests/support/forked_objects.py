"""One of each class that has an epoch, a thread, a lock or a file; how a forked child uses it, and what the parent has.

`python -m tests.support.forked_objects <folder> fork` makes all of them, forks a child that ends as any program
does, and then
uses each in the parent; with `multiprocessing` the child is one of that module's, and tries everything.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import select
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock import Consumer, ConsumerConfig, DurableEventQueue, Producer, ProducerConfig, Record, open_store
from penstock.buffer import BatchDescriptor, ConsumedBatch, GarbageCollector
from penstock.buffer.groups import Groups
from penstock.buffer.producer.block_appender import BlockAppender
from penstock.engine import (
    Admit,
    BatchEngine,
    BufferReceiver,
    BufferSender,
    ByteBudget,
    ByteBudgetConfig,
    EngineConfig,
    InboundGate,
    MemoryGuard,
    MemoryTransport,
    QueueReceiver,
    UnifiedPressure,
    WorkBatch,
)
from penstock.errors import OutcomeUnknown, PenstockError
from penstock.metalog import InProcessMetadataLog, ObjectMetadataLog, PartitionStart, SegmentCatalog, TopicIdPartition
from penstock.metalog.kafka.config import KafkaConfig
from penstock.metalog.kafka.feed import KafkaFeed
from penstock.metalog.subscription import Subscription
from penstock.records import values_to_arrow
from penstock.testing import Fault, FaultyStore
from tests.support.buffer_contents import entries
from tests.support.processes import PATIENCE
from tests.support.waiting import NEVER, Gate

LIMIT = 1 << 30
TOPIC = TopicIdPartition(UUID(int=1), "orders", 0)


@dataclass(frozen=True)
class Case:
    """An object of the parent: what a child does with it, and what the parent finds afterwards."""

    make: Callable[[Path], Any]
    refused: dict[str, Callable[[Any], object]] = field(default_factory=dict)
    works: dict[str, Callable[[Any], object]] = field(default_factory=dict)
    after: Callable[[Any], object] = lambda _: None
    expected: object = None


def fill(place: Path, *batches: list[bytes]) -> Path:
    with Producer(place) as producer:
        for batch in batches:
            producer.produce(batch)
            producer.flush()
    return place


# Making.


@dataclass
class Reading:
    """A consumer in the middle of its work: two batches are handed out, and none is acked."""

    consumer: Consumer
    batches: list[ConsumedBatch]
    descriptor: BatchDescriptor


def reading(place: Path) -> Reading:
    fill(place, [b"a"], [b"b"], [b"c"])
    consumer = Consumer(place, ConsumerConfig(gc_interval=NEVER))
    (descriptor,) = consumer.next_descriptors(1)
    consumer.rewind()
    batches = [batch for batch in (consumer.next_batch(), consumer.next_batch()) if batch is not None]
    return Reading(consumer, batches, descriptor)


def go_on_reading(reading: Reading) -> list[bytes]:
    """What the parent gets from there on: it acks its two, and is handed the third."""
    reading.batches[-1].ack()
    rest = list(reading.consumer)
    reading.consumer.close()
    return [payload for batch in rest for payload in batch.entries]


@dataclass
class Writing:
    producer: Producer
    handle: Any
    place: Path


def writing(place: Path) -> Writing:
    producer = Producer(place, ProducerConfig(flush_interval=NEVER))
    producer.produce(b"flushed")
    producer.flush()
    return Writing(producer, producer.produce(b"before"), place)


def go_on_writing(writing: Writing) -> list[bytes]:
    writing.producer.produce(b"after")
    writing.producer.close()
    return entries(open_store(writing.place))


def receiver_of_buffer(place: Path) -> BufferReceiver:
    receiver = BufferReceiver(fill(place, [b"a"], [b"b"]))
    receiver.recv(1)  # the fetching threads are there
    return receiver


def go_on_receiving(receiver: Any) -> list[bytes]:
    receiver.rewind()
    batch = receiver.recv(10)
    receiver.commit(batch.commit_tokens)
    rest = receiver.recv(10, timeout=0)
    receiver.close()
    return [record.value for record in (*batch.records, *rest.records)]


def receiver_of_queue(place: Path) -> QueueReceiver:
    queue = DurableEventQueue[bytes](place)
    queue.push_many([b"a", b"b"])
    receiver = QueueReceiver(queue)
    receiver.recv(1)
    return receiver


def transport(_: Path) -> MemoryTransport:
    item = MemoryTransport()
    item.send([Record(b"a"), Record(b"b")])
    item.recv(1)
    return item


@dataclass
class Running:
    """An engine that a thread runs: its sink stands at a gate."""

    engine: BatchEngine
    source: MemoryTransport
    gate: Gate
    thread: threading.Thread


def running(_: Path) -> Running:
    engine, source, gate = BatchEngine(EngineConfig(recv_timeout=0)), MemoryTransport(), Gate()
    source.inject(b"a")
    thread = threading.Thread(
        target=lambda: engine.run(source, lambda batch: batch, lambda _: gate(), until_idle=True), daemon=True
    )
    thread.start()
    gate.wait_for_arrival()
    return Running(engine, source, gate, thread)


def run_here(engine: BatchEngine) -> None:
    source, got = MemoryTransport(), list[WorkBatch]()
    source.inject(b"a")
    engine.run(source, lambda batch: batch, got.append, until_idle=True)
    assert len(got) == 1
    assert source.committed_sequence == 0


def run_once(engine: BatchEngine) -> int:
    run_here(engine)
    return engine.stats.processed


def end_run(running: Running) -> int | None:
    running.gate.open()
    running.thread.join()
    return running.source.committed_sequence


def leased(_: Path) -> tuple[MemoryGuard, Any]:
    guard = MemoryGuard(LIMIT)
    guard.add(10)
    return guard, guard.lease(20).__enter__()


def begins_without_leases(item: tuple[MemoryGuard, Any]) -> None:
    guard, _ = item
    assert guard.current_bytes == 0
    guard.add(5)
    assert guard.current_bytes == 5


def faulty_with_late_write(place: Path) -> FaultyStore:
    """One with a write under way that has yet to arrive."""
    store = FaultyStore(place, rates={}, max_late=1000)
    store.put("a", b"a")
    store.inject(Fault.LATE, operation="put")
    with suppress(OutcomeUnknown):
        store.put("late", b"late")
    return store


def _settles_nothing(store: FaultyStore) -> None:
    assert store.settle() == 0  # it is the parent's, which would write it a second time


def log_in_memory(_: Path) -> InProcessMetadataLog:
    log = InProcessMetadataLog(1)
    log.publish(0, b"before")
    return log


def log_on_disk(place: Path) -> ObjectMetadataLog:
    log = ObjectMetadataLog(place, 2)
    log.publish(0, b"before")
    log.high_water_marks()
    return log


def publish_here(log: ObjectMetadataLog) -> None:
    offset = log.publish(1, b"child's")
    with log.subscribe([PartitionStart(0), PartitionStart(1, offset)]) as records:
        assert {next(records).payload, next(records).payload} == {b"before", b"child's"}
    assert log.high_water_marks()[0] == 1


@dataclass
class Subscribed:
    log: Any
    records: Subscription


def subscribed(place: Path) -> Subscribed:
    log = log_on_disk(place)
    return Subscribed(log, log.subscribe([PartitionStart(0)]))


def subscribed_to_kafka(_: Path) -> Subscribed:
    """With a real client, whose broker does not answer: its threads are there all the same."""
    feed = KafkaFeed(KafkaConfig.checked({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, 1.0), None, _is_open)  # type: ignore[arg-type]
    return Subscribed(None, Subscription(feed, 1, [PartitionStart(0)]))


def _is_open() -> None:
    """A log that is open."""


def drop(item: Subscribed) -> None:
    """Let the interpreter finalise a subscription."""
    del item.records
    gc.collect()


def catalog(place: Path) -> SegmentCatalog:
    item = SegmentCatalog(ObjectMetadataLog(place / "log", 1), snapshot_dir=place / "snapshots")
    item.assign([0])
    return item


def look_for_segments(catalog: SegmentCatalog) -> list[Any]:
    catalog.assign([0])
    return catalog.segments(TOPIC)


async def _next(records: Subscription) -> Any:
    return await anext(records)


async def _await(handle: Any) -> Any:
    return await handle


def leave(one: Any) -> None:
    with one:
        pass


def leave_with_error(one: Any) -> None:
    """A `with` block that an error ends: that is what is raised, and nothing else."""
    try:
        with one:
            raise LookupError
    except LookupError:
        return
    raise AssertionError


CASES: dict[str, Case] = {
    "Consumer": Case(
        reading,
        refused={
            "next_batch": lambda item: item.consumer.next_batch(),
            "next_descriptors": lambda item: item.consumer.next_descriptors(1),
            "next_descriptors of none": lambda item: item.consumer.next_descriptors(0),
            "fetch_descriptor": lambda item: item.consumer.fetch_descriptor(item.descriptor),
            "ack": lambda item: item.consumer.ack(0),
            "ack_through": lambda item: item.consumer.ack_through(1),
            "ack of a batch": lambda item: item.batches[0].ack(),
            "rewind": lambda item: item.consumer.rewind(),
            "flush": lambda item: item.consumer.flush(),
            "iterate": lambda item: list(item.consumer),
            "follow": lambda item: list(item.consumer.follow(1)),
            "close": lambda item: item.consumer.close(),
            "with": lambda item: leave(item.consumer),
        },
        works={
            "fetch_handle": lambda item: item.consumer.fetch_handle().fetch(item.descriptor).entries,
            "cursors": lambda item: (item.consumer.last_acked_sequence, len(item.consumer), repr(item.consumer)),
            "with, and an error": lambda item: leave_with_error(item.consumer),
        },
        after=go_on_reading,
        expected=[b"c"],
    ),
    "GarbageCollector": Case(
        lambda place: GarbageCollector(fill(place, [b"a"])),
        refused={"collect_once": lambda collector: collector.collect_once()},
        after=lambda collector: collector.collect_once().deleted,
        expected=0,
    ),
    "BlockAppender": Case(
        lambda place: BlockAppender(open_store(place)),
        refused={
            "write": lambda appender: appender.write(values_to_arrow([b"a"])),
            "append": lambda appender: appender.append([]),
        },
        after=lambda appender: appender.append([appender.write(values_to_arrow([b"a"]))]),
        expected=True,
    ),
    "Groups": Case(
        lambda place: Groups(fill(place, [b"a"])),
        works={
            "list": lambda groups: groups.list(),
            "create": lambda groups: groups.create("childs"),
            "reset": lambda groups: groups.reset("default", "earliest"),
        },
        after=lambda groups: groups.list()[0].name,
        expected="default",
    ),
    "Producer": Case(
        writing,
        refused={
            "produce": lambda item: item.producer.produce(b"x"),
            "produce a list": lambda item: item.producer.produce([b"x"]),
            "produce with a timeout": lambda item: item.producer.produce(b"x", timeout=1),
            "produce_json": lambda item: item.producer.produce_json({}),
            "flush": lambda item: item.producer.flush(),
            "close": lambda item: item.producer.close(),
            "with": lambda item: leave(item.producer),
            "result": lambda item: item.handle.result(),
            "result with a timeout": lambda item: item.handle.result(1),
            "done": lambda item: item.handle.done(),
            "await": lambda item: asyncio.run(_await(item.handle)),
        },
        works={"show": lambda item: (repr(item.producer), repr(item.handle))},
        after=go_on_writing,
        expected=[b"flushed", b"before", b"after"],
    ),
    "BufferSender": Case(
        lambda place: BufferSender(place),
        refused={
            "send": lambda sender: sender.send([Record(b"x")]),
            "close": lambda sender: sender.close(),
        },
        after=lambda sender: (sender.send([Record(b"x")]), sender.close()),
        expected=(None, None),
    ),
    "BufferReceiver": Case(
        receiver_of_buffer,
        refused={
            "recv": lambda receiver: receiver.recv(1),
            "commit": lambda receiver: receiver.commit([0]),
            "rewind": lambda receiver: receiver.rewind(),
            "pause": lambda receiver: receiver.pause(),
            "close": lambda receiver: receiver.close(),
            "with": leave,
        },
        works={"healthy": lambda receiver: _is_false(receiver.healthy)},
        after=go_on_receiving,
        expected=[b"a", b"b"],
    ),
    "QueueReceiver": Case(
        receiver_of_queue,
        refused={
            "recv": lambda receiver: receiver.recv(1),
            "commit": lambda receiver: receiver.commit([0]),
            "rewind": lambda receiver: receiver.rewind(),
            "close": lambda receiver: receiver.close(),
        },
        works={"healthy": lambda receiver: _is_false(receiver.healthy)},
        after=go_on_receiving,
        expected=[b"a", b"b"],
    ),
    "MemoryTransport": Case(
        transport,
        refused={
            "recv": lambda item: item.recv(1),
            "inject": lambda item: item.inject(b"c"),
            "send": lambda item: item.send([Record(b"c")]),
            "commit": lambda item: item.commit([0]),
            "rewind": lambda item: item.rewind(),
        },
        works={"close": lambda item: item.close(), "healthy": lambda item: _is_false(item.healthy)},
        after=go_on_receiving,
        expected=[b"a", b"b"],
    ),
    "BatchEngine": Case(
        lambda _: BatchEngine(EngineConfig(recv_timeout=0)),
        works={"run": run_here},
        after=run_once,
        expected=1,
    ),
    "running BatchEngine": Case(
        running,
        refused={"run": lambda item: run_here(item.engine)},
        works={"stats": lambda item: item.engine.stats},
        after=end_run,
        expected=0,
    ),
    "MemoryGuard": Case(
        leased,
        works={"lease": begins_without_leases},
        after=lambda item: item[0].current_bytes,
        expected=30,
    ),
    "UnifiedPressure": Case(
        lambda _: UnifiedPressure([MemoryGuard(LIMIT)]),
        works={"read": lambda pressure: (pressure.level, pressure.should_hold())},
        after=lambda pressure: pressure.should_hold(),
        expected=False,
    ),
    "InboundGate": Case(
        lambda _: InboundGate(UnifiedPressure([MemoryGuard(LIMIT)])),
        works={"evaluate": lambda gate: gate.evaluate(), "release": lambda gate: gate.release()},
        after=lambda gate: gate.evaluate(),
        expected=Admit.YES,
    ),
    "ByteBudget": Case(
        lambda _: ByteBudget(ByteBudgetConfig(start_bytes=1 << 20, ai_step=1 << 20)),
        works={"observe": lambda budget: budget.observe(1, 0.0, 1.0)},
        after=lambda budget: (budget.observe(1, 0.0, 1.0), budget.byte_budget)[1],
        expected=2 << 20,
    ),
    "FaultyStore": Case(
        faulty_with_late_write,
        works={
            "get": lambda store: store.get("a"),
            "put": lambda store: store.put("childs", b"child's"),
            "list": lambda store: list(store.list_objects()),
            "settle": _settles_nothing,
        },
        after=lambda store: (store.settle(), store.get("late").data),
        expected=(1, b"late"),
    ),
    "MemoryStore": Case(
        lambda place: (open_store(f"memory://{place.name}"), open_store(f"memory://{place.name}").put("a", b"a")),
        refused={
            "get": lambda item: item[0].get("a"),
            "put": lambda item: item[0].put("a", b"b"),
            "list": lambda item: list(item[0].list_objects()),
        },
        works={"open anew": lambda item: _is_empty(open_store(item[0].url).list_objects())},
        after=lambda item: item[0].get("a").data,
        expected=b"a",
    ),
    "LocalStore": Case(
        open_store,
        works={"put": lambda store: store.put("childs", b"child's"), "list": lambda store: list(store.list_objects())},
        after=lambda store: (store.put("a", b"a"), store.get("a").data)[1],
        expected=b"a",
    ),
    "InProcessMetadataLog": Case(
        log_in_memory,
        refused={
            "publish": lambda log: log.publish(0, b"x"),
            "high_water_marks": lambda log: log.high_water_marks(),
            "subscribe": lambda log: log.subscribe([PartitionStart(0)]),
        },
        works={"close": lambda log: log.close()},
        after=lambda log: log.publish(0, b"after"),
        expected=1,
    ),
    "ObjectMetadataLog": Case(
        log_on_disk,
        works={"publish": publish_here, "close": lambda log: log.close()},
        after=lambda log: (log.publish(0, b"after"), log.close())[0],
        expected=1,
    ),
    "Subscription": Case(
        subscribed,
        refused={
            "poll": lambda item: item.records.poll(0.1),
            "poll without an end": lambda item: item.records.poll(None),
            "next": lambda item: next(item.records),
            "async for": lambda item: asyncio.run(_next(item.records)),
            "add": lambda item: item.records.add(PartitionStart(1)),
            "remove": lambda item: item.records.remove(0),
            "assigned": lambda item: item.records.assigned(),
        },
        works={"close": lambda item: item.records.close(), "show": lambda item: repr(item.records), "drop": drop},
        after=lambda item: (item.records.poll(PATIENCE).payload, item.records.close(), item.log.close())[0],
        expected=b"before",
    ),
    "Subscription of Kafka": Case(
        subscribed_to_kafka,
        refused={"poll": lambda item: item.records.poll(0.1)},
        works={"close": lambda item: item.records.close(), "drop": drop},
        after=lambda item: item.records.close(),
    ),
    "SegmentCatalog": Case(
        catalog,
        refused={
            "segments": lambda item: item.segments(TOPIC),
            "assign": lambda item: item.assign([0]),
        },
        works={"close": lambda item: item.close(), "show": repr},
        after=lambda item: (look_for_segments(item), item.close())[0],
        expected=[],
    ),
}


def _is_false(value: bool) -> None:
    assert value is False


def _is_empty(values: Iterable[Any]) -> None:
    assert list(values) == []


# Forking.


@contextmanager
def locks_held(one: object) -> Iterator[int]:
    """Have another thread hold every lock that an object has, or has through others; say how many these are."""
    locks = list(_locks_of(one, set()))
    held, over = list[Any](), threading.Event()
    ready = threading.Event()

    def hold() -> None:
        held.extend(lock for lock in locks if lock.acquire(blocking=False))
        ready.set()
        over.wait()
        for lock in reversed(held):
            lock.release()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert ready.wait(PATIENCE)
    try:
        yield len(held)
    finally:
        over.set()
        holder.join()


def _locks_of(one: object, seen: set[int]) -> Iterator[Any]:
    if id(one) in seen:
        return
    seen.add(id(one))
    if isinstance(one, list | tuple | set | frozenset):
        for part in one:
            yield from _locks_of(part, seen)
    elif isinstance(one, dict):
        yield from _locks_of(list(one.values()), seen)
    elif hasattr(one, "acquire") and hasattr(one, "release"):
        yield one
    elif type(one).__module__.partition(".")[0] in {"penstock", "prometheus_client", "tests"}:
        slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
        for part in (*getattr(one, "__dict__", {}).values(), *(getattr(one, name, None) for name in slots)):
            yield from _locks_of(part, seen)


def ended(pid: int) -> int | None:
    """How a child ended, or None if it does not."""
    descriptor = os.pidfd_open(pid)
    try:
        there, _, _ = select.select([descriptor], [], [], PATIENCE)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if there else None
    finally:
        os.close(descriptor)


def use_all(item: dict[str, Any], pipe: Any) -> None:
    """Do with each what is refused, and tell what was raised."""
    answers = dict[str, str]()
    for name, one in item.items():
        for use, work in CASES[name].refused.items():
            try:
                work(one)
            except PenstockError as error:
                answers[f"{name}, {use}"] = type(error).__name__
            else:
                answers[f"{name}, {use}"] = "it was not refused"
    pipe.send(answers)


def forked(_: dict[str, Any]) -> dict[str, object]:
    """Fork a child that leaves `main` as any program does."""
    pid = os.fork()
    if pid == 0:
        sys.exit()
    return {"status": ended(pid)}


def by_multiprocessing(item: dict[str, Any]) -> dict[str, object]:
    """Let `multiprocessing` fork a child that tries everything, and ends in its own way."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=use_all, args=(item, theirs))
    process.start()
    answers = ours.recv() if ours.poll(PATIENCE) else "nothing: it is stuck"
    process.join(PATIENCE)
    return {"status": process.exitcode, "answers": answers}


def main(folder: str, how: str) -> None:
    """Fork with one of each in hand, by `fork` or `multiprocessing`; then use each in the parent, and print it all."""
    item = {name: case.make(Path(tempfile.mkdtemp(dir=folder))) for name, case in CASES.items()}
    answer = forked(item) if how == "fork" else by_multiprocessing(item)
    after = {name: repr(CASES[name].after(one)) for name, one in item.items()}
    print(json.dumps({**answer, "after": after}))


if __name__ == "__main__":
    main(*sys.argv[1:])
