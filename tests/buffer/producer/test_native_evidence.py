"""Version 2 keeps its writers: after a lost reply the transaction in the head decides, even after a dequeue."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from penstock import Consumer, ConsumerConfig, ObjectStore
from penstock.buffer import GarbageCollector, Manifest
from penstock.buffer.groups import Writers
from penstock.buffer.manifest.state import Limits, Writer
from penstock.buffer.manifest.v2.head import Head, encode_head
from penstock.errors import OutcomeUnknown
from penstock.testing import Fault, FaultyStore
from tests.buffer.producer.conftest import NewGate, OpenProducer, produce_run
from tests.support.buffer_contents import MANIFEST, entries, queue
from tests.support.filled_buffers import no_gc
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE

REMEMBERED = Limits().unnamed_writers
MANIFESTS = ["native"]


def head(store: ObjectStore) -> Head:
    found = Manifest.read(store).head
    assert found is not None
    return found


def in_doubt(store: ObjectStore) -> float:
    return REGISTRY.get_sample_value("penstock_buffer_enqueue_in_doubt_total", {"buffer": store.url}) or 0.0


def losing_the_reply(meanwhile: Callable[[], object]) -> Callable[[], None]:
    """Do something after a write, and lose its reply."""

    def lose() -> None:
        meanwhile()
        raise OutcomeUnknown("the reply was lost")

    return lose


def consume_everything(store: ObjectStore) -> None:
    with Consumer(store, no_gc()) as consumer:
        for batch in consumer:
            batch.ack()


@pytest.mark.parametrize("already", [0, 1], ids=["the first write", "a later write"])
def test_a_lost_reply_is_not_doubled_though_the_entries_were_dequeued(
    store: ObjectStore, open_producer: OpenProducer, already: int
) -> None:
    hooked = HookedStore(store)
    hooked.after("write manifest", losing_the_reply(lambda: consume_everything(store)), skip=already, times=1)
    producer = open_producer(hooked, flush_size_bytes=1)
    for number in range(already):
        producer.produce(b"%d" % number).result(PATIENCE)
    written = producer.produce(b"x").result(PATIENCE)
    assert written.sequence == already
    assert queue(store) == ()
    assert head(store).next_sequence == already + 1
    assert in_doubt(store) == 0


def test_a_lost_reply_is_not_doubled_though_the_object_was_collected(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    now = [1_700_000_000.0]

    def consume_and_collect() -> None:
        consume_everything(memory)
        collector = GarbageCollector(memory, clock=lambda: now[0])
        for _ in range(3):
            now[0] += ConsumerConfig().gc_grace_period + 1
            collector.collect_once()

    hooked = HookedStore(memory)
    hooked.after("write manifest", losing_the_reply(consume_and_collect), times=1)
    written = open_producer(hooked, clock=lambda: now[0], flush_size_bytes=1).produce(b"x").result(PATIENCE)
    assert written.sequence == 0
    assert written.location not in [meta.path for meta in memory.list_objects()]
    assert (queue(memory), head(memory).next_sequence) == ((), 1)


def test_a_run_whose_reply_was_lost_is_not_doubled_though_a_part_of_it_was_dequeued(
    store: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    def consume_one() -> None:
        consumer = Consumer(store, no_gc())
        consumer.next_descriptors(1)
        consumer.ack_through(0)

    hooked = HookedStore(store)
    hooked.after("write manifest", losing_the_reply(consume_one), times=1)
    handles = produce_run(hooked, open_producer, new_gate(), 2)
    assert [handle.result(PATIENCE).sequence for handle in handles] == [0, 1]
    assert entries(store) == [b"1"]


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LATE])
def test_a_write_that_did_not_happen_is_done_though_others_were_dequeued(
    memory: ObjectStore, open_producer: OpenProducer, fault: Fault
) -> None:
    faulty = FaultyStore(memory, rates={})
    producer = open_producer(faulty, flush_size_bytes=1)
    producer.produce(b"0").result(PATIENCE)
    consume_everything(memory)
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    assert producer.produce(b"1").result(PATIENCE).sequence == 1
    with faulty.quiet():
        assert entries(memory) == [b"1"]


# What it costs


def test_a_producer_that_has_the_head_writes_without_reading(store: ObjectStore, open_producer: OpenProducer) -> None:
    hooked = HookedStore(store)
    producer = open_producer(hooked, flush_size_bytes=1)
    producer.produce(b"0").result(PATIENCE)
    hooked.steps.clear()
    for number in range(1, 4):
        producer.produce(b"%d" % number).result(PATIENCE)
    assert (hooked.count("write manifest"), hooked.count("read manifest")) == (3, 0)
    assert entries(store) == [b"0", b"1", b"2", b"3"]


def test_a_producer_whose_head_is_old_reads_once(store: ObjectStore, open_producer: OpenProducer) -> None:
    hooked = HookedStore(store)
    producer = open_producer(hooked, flush_size_bytes=1)
    producer.produce(b"0").result(PATIENCE)
    consume_everything(store)
    hooked.steps.clear()
    assert producer.produce(b"1").result(PATIENCE).sequence == 1
    assert (hooked.count("write manifest"), hooked.count("read manifest")) == (2, 1)


# Which writers are kept


def test_the_head_has_the_last_transaction_of_a_producer(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, clock=lambda: 1_700_000_000.0, flush_size_bytes=1)
    for number in range(3):
        producer.produce(b"%d" % number).result(PATIENCE)
    (writer,) = Writers(store).list().values()
    assert writer == Writer(2, 2, 4, 1_700_000_000_000, is_named=False)


def test_each_producer_is_a_writer_of_its_own(store: ObjectStore, open_producer: OpenProducer) -> None:
    for _ in range(2):
        open_producer(store, flush_size_bytes=1).produce(b"x").result(PATIENCE)
    assert [writer.transaction for writer in Writers(store).list().values()] == [0, 0]


def forget_all_writers(store: ObjectStore) -> None:
    """Edit the head as if more writers than it keeps had written since: that would take a thousand producers."""
    before = head(store)
    others = {f"other-{number}": Writer(0, 0, before.revision, 0, is_named=False) for number in range(REMEMBERED)}
    forgotten = max((writer.revision for writer in before.writers.values()), default=0)
    store.put(MANIFEST, encode_head(before.changed(writers=others, forgotten_through=forgotten)))


def test_a_producer_in_doubt_that_was_forgotten_fails_its_handle(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    hooked = HookedStore(store)
    hooked.after("write manifest", losing_the_reply(lambda: forget_all_writers(store)), skip=1, times=1)
    producer = open_producer(hooked, flush_size_bytes=1)
    producer.produce(b"0").result(PATIENCE)
    handle = producer.produce(b"1")
    with pytest.raises(OutcomeUnknown, match=r"not known to be enqueued"):
        handle.result(PATIENCE)
    assert entries(store) == [b"0", b"1"]  # once: it is not appended where there is no evidence


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT])
def test_a_producer_that_began_after_others_were_forgotten_is_in_no_doubt(
    memory: ObjectStore, open_producer: OpenProducer, fault: Fault
) -> None:
    open_producer(memory, flush_size_bytes=1).produce(b"0").result(PATIENCE)
    forget_all_writers(memory)
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    assert open_producer(faulty, flush_size_bytes=1).produce(b"1").result(PATIENCE).sequence == 1
    assert not faulty.planned
    assert entries(memory) == [b"0", b"1"]


def test_the_head_keeps_the_latest_thousand_random_names(store: ObjectStore, open_producer: OpenProducer) -> None:
    open_producer(store, flush_size_bytes=1).produce(b"0").result(PATIENCE)
    (oldest,) = Writers(store).list()
    before = head(store)
    named = {"nightly": Writer(7, 0, 1, 0, is_named=True)}
    others = {f"other-{n}": Writer(0, 0, before.revision, 0, is_named=False) for n in range(REMEMBERED - 1)}
    store.put(MANIFEST, encode_head(before.changed(writers={**named, **before.writers, **others})))
    open_producer(store, flush_size_bytes=1).produce(b"1").result(PATIENCE)
    found = head(store)
    assert oldest not in found.writers
    assert "nightly" in found.writers
    assert len(found.writers) == REMEMBERED + 1
    assert found.forgotten_through == before.writers[oldest].revision
