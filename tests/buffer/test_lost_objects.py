"""A buffer of which one object was deleted by hand: the rest is refused or found again, and no data is deleted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, Manifest, Producer, ProducerConfig
from penstock.buffer.manifest.ownership import id_path
from penstock.buffer.manifest.upgrade import upgrade
from penstock.errors import Fenced, InvalidInput
from penstock.storage import ObjectStore
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE

MANIFEST = "ingest/manifest"
OPENERS: dict[str, Callable[[ObjectStore], object]] = {
    "a consumer": lambda store: Consumer(store, ConsumerConfig(gc=False)),
    "a producer": lambda store: Producer(store).produce(b"late").result(PATIENCE),
    "a collector": lambda store: GarbageCollector(store).collect_once(),
}


def filled(store: ObjectStore, manifest: str) -> set[str]:
    with Producer(store, ProducerConfig(manifest_format=manifest)) as producer:
        producer.produce(b"not acked").result(PATIENCE)
    return data_of(store)


def data_of(store: ObjectStore) -> set[str]:
    return {meta.path for meta in store.list_objects("ingest") if meta.path.endswith(".batch")}


@pytest.mark.parametrize("kind", OPENERS)
def test_where_the_manifest_was_deleted_no_new_buffer_is_created_beside_its_data(
    memory: ObjectStore, manifest: str, kind: str
) -> None:
    data = filled(memory, manifest)
    memory.delete([MANIFEST])
    with pytest.raises(InvalidInput, match="deleted"):
        OPENERS[kind](memory)
    assert data_of(memory) >= data
    assert MANIFEST not in {meta.path for meta in memory.list_objects()}


def test_a_buffer_that_is_created_while_a_consumer_opens_it_is_not_mistaken_for_a_deleted_one(
    memory: ObjectStore, manifest: str
) -> None:
    store = HookedStore(memory)
    store.after("read manifest", lambda: filled(memory, manifest), times=1)
    with Consumer(store, ConsumerConfig(gc=False)) as consumer:
        batch = consumer.next_batch()
    assert batch is not None
    assert batch.entries == [b"not acked"]


def test_a_producer_whose_manifest_is_deleted_meanwhile_does_not_create_another(
    memory: ObjectStore, manifest: str
) -> None:
    with Producer(memory, ProducerConfig(manifest_format=manifest)) as producer:
        producer.produce(b"before").result(PATIENCE)
        memory.delete([MANIFEST])
        with pytest.raises(InvalidInput, match="deleted"):
            producer.produce(b"after").result(PATIENCE)
    assert MANIFEST not in {meta.path for meta in memory.list_objects()}


def test_an_id_that_was_lost_is_found_in_the_owner_of_the_data(memory: ObjectStore, manifest: str) -> None:
    filled(memory, manifest)
    before = Manifest.read(memory).id
    memory.delete([id_path(MANIFEST)])
    with Producer(memory) as producer:
        producer.produce(b"more").result(PATIENCE)
    with Consumer(memory, ConsumerConfig(gc=False)) as consumer:
        assert consumer.buffer_id == before


def test_an_upgrade_finds_an_id_that_was_lost(memory: ObjectStore, manifest: str) -> None:
    filled(memory, manifest)
    before = Manifest.read(memory).id
    memory.delete([id_path(MANIFEST)])
    upgrade(memory)
    assert Manifest.read(memory).id == before
    with Producer(memory) as producer:
        producer.produce(b"more").result(PATIENCE)


@pytest.mark.parametrize(("acked", "created"), [(0, 8), (3, 8), (3, 2)])
def test_a_consumer_of_a_buffer_that_was_created_again_acks_nothing_of_the_new_one(
    memory: ObjectStore, acked: int, created: int
) -> None:
    def fill(count: int) -> None:
        with Producer(memory, ProducerConfig(flush_size_bytes=1)) as producer:
            for number in range(count):
                producer.produce(b"%d" % number).result(PATIENCE)

    fill(5)
    consumer = Consumer(memory, ConsumerConfig(gc=False))
    assert len(consumer.next_descriptors(5)) == 5
    if acked:
        consumer.ack_through(acked - 1)
    memory.delete([meta.path for meta in memory.list_objects()])
    fill(created)
    newer = Consumer(memory, ConsumerConfig(gc=False))  # its epoch is the same number

    for _ in range(2):
        with pytest.raises(Fenced):
            consumer.ack_through(4)
    with suppress(Fenced):  # version 1 cannot tell a consumer that has acked nothing
        consumer.close()
    assert len(newer.next_descriptors(100)) == created


def test_a_consumer_that_looks_at_a_buffer_that_was_created_again_acks_nothing_of_it_afterwards(
    memory: ObjectStore,
) -> None:
    filled(memory, "opendata")
    consumer = Consumer(memory, ConsumerConfig(gc=False))
    assert len(consumer.next_descriptors(1)) == 1
    memory.delete([meta.path for meta in memory.list_objects()])
    filled(memory, "opendata")
    Consumer(memory, ConsumerConfig(gc=False))

    assert consumer.next_descriptors(1) == []
    with pytest.raises(Fenced):
        consumer.ack_through(0)
    assert len(Manifest.read(memory).entries) == 1
