"""Which buffer it is: an id that is written once, and says whose data objects and whose positions they are."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, Manifest, Producer, ProducerConfig
from penstock.buffer.manifest.ownership import read_id
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.upgrade import upgrade
from penstock.buffer.manifest.v2.head import decode_head
from penstock.errors import InvalidInput
from penstock.storage import LocalStore, MemoryStore, ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.support import manifests
from tests.support.filled_buffers import each_alone
from tests.support.processes import PATIENCE

MANIFEST = "ingest/manifest"
OWNER = "ingest/.owner"


def same_prefix() -> ProducerConfig:
    return ProducerConfig(data_path_prefix="orders/ingest", flush_size_bytes=1)


def produce(where: Path | ObjectStore, payload: bytes, config: ProducerConfig | None = None) -> str:
    with Producer(where, config or each_alone()) as producer:
        return producer.produce(payload).result(PATIENCE).location


def files(root: Path) -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and ".penstock" not in path.parts
    }


# Two buffers that see one prefix from different roots.


def test_a_buffer_of_another_root_that_shares_the_prefix_is_refused_before_it_writes(tmp_path: Path) -> None:
    produce(tmp_path / "orders", b"live")
    before = files(tmp_path)

    with pytest.raises(
        InvalidInput, match=r"give each buffer a data_path_prefix of its own|Use another data_path_prefix"
    ):
        produce(tmp_path, b"other", same_prefix())

    assert files(tmp_path) == before


def test_a_collector_of_another_root_never_deletes_what_is_live_under_a_shared_prefix(tmp_path: Path) -> None:
    location = produce(tmp_path / "orders", b"live")
    Consumer(tmp_path, ConsumerConfig(gc=False)).close()  # its manifest is there, and empty
    config = ConsumerConfig(data_path_prefix="orders/ingest")

    for cycle in range(4):  # one to set a floor, and those after it to carry it out
        collector = GarbageCollector(tmp_path, config, clock=lambda cycle=cycle: time.time() + 700 * cycle)  # type: ignore[misc]
        with pytest.raises(InvalidInput, match="belongs to the buffer"):
            collector.collect_once()

    assert f"orders/{location}" in files(tmp_path)
    with Consumer(tmp_path / "orders") as consumer:
        assert [batch.entries for batch in consumer] == [[b"live"]]


def test_of_two_that_open_a_free_prefix_from_two_roots_the_second_to_write_is_refused(tmp_path: Path) -> None:
    with Producer(tmp_path / "orders", each_alone()) as first, Producer(tmp_path, same_prefix()) as second:
        first.produce(b"live").result(PATIENCE)
        refused = second.produce(b"other")
        with pytest.raises(InvalidInput, match="belongs to the buffer"):
            refused.result(PATIENCE)

    assert len([name for name in files(tmp_path) if name.endswith(".batch")]) == 1


def test_one_buffer_that_is_opened_from_another_root_is_refused_for_its_paths_count_from_the_root(
    tmp_path: Path,
) -> None:
    produce(tmp_path / "orders", b"live")
    config = ProducerConfig(data_path_prefix="orders/ingest", manifest_path="orders/ingest/manifest")

    with pytest.raises(InvalidInput, match=r"as seen from another place.*'ingest/manifest'.*'orders/ingest/manifest'"):
        Producer(tmp_path, config)
    with pytest.raises(InvalidInput, match="as seen from another place"):
        GarbageCollector(
            tmp_path,
            ConsumerConfig(data_path_prefix="orders/ingest", manifest_path="orders/ingest/manifest"),
        ).collect_once()


def test_a_collector_of_another_root_keeps_what_is_live_where_no_owner_was_ever_written(tmp_path: Path) -> None:
    """As OpenData's crate leaves a buffer: a manifest, data objects, and nothing that says whose they are."""
    location = produce(tmp_path / "orders", b"live")
    LocalStore(tmp_path / "orders").delete([OWNER, f"{MANIFEST}.id"])
    os.utime(tmp_path / "orders" / location, (1, 1))
    config = ConsumerConfig(data_path_prefix="orders/ingest", manifest_path="orders/ingest/manifest")

    for cycle in range(4):
        GarbageCollector(
            tmp_path,
            config,
            clock=lambda cycle=cycle: time.time() + 700 * cycle,  # type: ignore[misc]
        ).collect_once()

    assert f"orders/{location}" in files(tmp_path)


# Written once.


def test_a_buffer_keeps_its_id(store: ObjectStore) -> None:
    produce(store, b"one")
    first = Manifest.read(store).id
    assert first is not None
    with Consumer(store, ConsumerConfig(gc=False)) as consumer:
        assert consumer.buffer_id == first
        for batch in consumer:
            batch.ack()
    produce(store, b"two")
    assert Manifest.read(store).id == first


def test_a_buffer_that_is_not_there_has_no_id_and_looking_makes_none(store: ObjectStore) -> None:
    assert Manifest.read(store).id is None
    assert list(store.list_objects()) == []


def test_buffers_have_different_ids(tmp_path: Path) -> None:
    found = {BufferQueue(LocalStore(tmp_path / name), MANIFEST, "producer").identify(create=True) for name in "abc"}
    assert len(found - {None}) == 3


@pytest.mark.parametrize(
    "fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT, Fault.EXISTS_WHILE_ABSENT, Fault.LATE]
)
@pytest.mark.parametrize("ending", ["", ".id"])
def test_whatever_reply_its_birth_gets_a_buffer_has_one_id(memory: ObjectStore, fault: Fault, ending: str) -> None:
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, operation="put_if_absent", path=MANIFEST + ending)
    produce(faulty, b"one")
    produce(memory, b"two")
    with faulty.quiet(), Consumer(memory) as consumer:
        assert [batch.entries for batch in consumer] == [[b"one"], [b"two"]]


def test_of_two_creators_the_loser_has_the_winners_id(memory: ObjectStore) -> None:
    def create_first(store: ObjectStore, path: str) -> None:
        winners.append(BufferQueue(memory, MANIFEST, "producer", sleep=lambda _: None).identify(create=True))

    winners: list[object] = []
    faulty = FaultyStore(memory, rates={}, third_party=create_first)
    faulty.inject(Fault.THIRD_PARTY_BEFORE, operation="put_if_absent")
    loser = BufferQueue(faulty, MANIFEST, "producer", sleep=lambda _: None).identify(create=True)

    assert winners == [loser]
    assert Manifest.read(memory).id == loser


def test_of_two_creators_of_different_versions_both_go_on_with_one_buffer(memory: ObjectStore, manifest: str) -> None:
    other = "opendata" if manifest == "native" else "native"

    def create_first(store: ObjectStore, path: str) -> None:
        with manifests.new_buffers_are(other):
            produce(memory, b"theirs")

    faulty = FaultyStore(memory, rates={}, third_party=create_first)
    faulty.inject(Fault.THIRD_PARTY_BEFORE, operation="put_if_absent", path=MANIFEST)
    produce(faulty, b"mine")

    with Consumer(memory) as consumer:
        assert [batch.entries for batch in consumer] == [[b"theirs"], [b"mine"]]


# Deleted, and perhaps created again.


def test_a_prefix_of_a_buffer_whose_manifest_was_deleted_is_refused_and_the_error_says_what_to_do(
    store: ObjectStore,
) -> None:
    produce(store, b"one")
    gone = Manifest.read(store).id
    store.delete([MANIFEST])

    with pytest.raises(InvalidInput, match=rf"{gone}.*delete its data objects and ingest/\.owner too"):
        Producer(store)

    store.delete([meta.path for meta in store.list_objects()])
    produce(store, b"two")
    assert Manifest.read(store).id not in (None, gone)


# From version 1 to 2.


def test_an_upgrade_carries_the_id_into_the_head(memory: ObjectStore) -> None:
    with manifests.new_buffers_are("opendata"):
        produce(memory, b"one")
    before = Manifest.read(memory).id
    upgrade(memory)
    assert before is not None
    assert decode_head(memory.get(MANIFEST).data).buffer_id == before == read_id(memory, MANIFEST)
    produce(memory, b"two")
    with Consumer(memory, ConsumerConfig(gc=False)) as consumer:
        assert consumer.buffer_id == before


def test_an_upgrade_of_what_opendata_wrote_gives_it_an_id(memory: ObjectStore) -> None:
    with manifests.new_buffers_are("opendata"):
        Consumer(memory, ConsumerConfig(gc=False)).close()  # a manifest alone
    assert Manifest.read(memory).id is None
    upgrade(memory)
    assert Manifest.read(memory).id == read_id(memory, MANIFEST) is not None


def test_a_producer_that_runs_through_an_upgrade_goes_on(memory: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    with manifests.new_buffers_are("opendata"):
        producer = Producer(memory, each_alone())
        producer.produce(b"one").result(PATIENCE)
    upgrade(memory)
    with caplog.at_level(logging.WARNING), producer:
        producer.produce(b"two").result(PATIENCE)
    assert [entry.sequence for entry in Manifest.read(memory).entries] == [0, 1]


def test_a_memory_store_is_one_like_the_others(fresh_name: str) -> None:
    produce(MemoryStore(fresh_name), b"one")
    with pytest.raises(InvalidInput, match="belongs to the buffer"):
        Producer(MemoryStore(fresh_name), ProducerConfig(manifest_path="other/manifest"))
