"""`<prefix>/.owner` says which buffer a prefix belongs to; a producer of another one is refused."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from penstock import ObjectStore
from penstock.buffer import Manifest
from penstock.buffer.manifest.ownership import Owner
from penstock.errors import InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.testing import Fault, FaultyStore
from tests.buffer.producer.conftest import NewGate, OpenProducer
from tests.support.buffer_contents import data_objects, entries, queue
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE

OWNER = "ingest/.owner"
STRANGER = UUID(int=7)
BY_ANOTHER = Owner(STRANGER, "other/manifest", "ingest").encode()


def owner_of(store: ObjectStore, manifest: str = "ingest/manifest", prefix: str = "ingest") -> Owner:
    """What the buffer that is there claims its prefix with."""
    found = Manifest.read(store, manifest).id
    assert found is not None
    return Owner(found, manifest, prefix)


def claim_as_it_is(store: ObjectStore) -> None:
    store.put_if_absent(OWNER, owner_of(store).encode())


def refuse() -> None:
    raise StorageError("no reply")


def test_the_first_batch_claims_the_prefix_for_its_manifest(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, data_path_prefix="a/b", manifest_path="queues/m1")
    with pytest.raises(NotFound):
        store.get("a/b/.owner")
    producer.produce(b"x")
    producer.flush()
    assert store.get("a/b/.owner").data == owner_of(store, "queues/m1", "a/b").encode()


def test_the_prefix_is_claimed_before_anything_is_written_there(
    memory: ObjectStore, open_producer: OpenProducer, manifest: str
) -> None:
    store = HookedStore(memory)
    producer = open_producer(store)
    producer.produce(b"x")
    producer.flush()
    writes = [step for step in store.steps if step.startswith(("write", "create"))]
    creation = ["create manifest"] if manifest == "native" else ["write id", "create manifest"]
    assert writes == [*creation, "write owner", "write data", "write manifest"]


def test_the_prefix_is_claimed_once(store: ObjectStore, open_producer: OpenProducer) -> None:
    for number in range(2):
        hooked = HookedStore(store)
        producer = open_producer(hooked, flush_size_bytes=1)
        for _ in range(3):
            producer.produce(b"x").result(PATIENCE)
        assert hooked.count("write owner") == 1 - number


def test_the_owner_is_not_read_with_each_batch(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    producer = open_producer(store, flush_size_bytes=1)
    producer.produce(b"0").result(PATIENCE)
    reads = store.count("read owner")
    producer.produce(b"1").result(PATIENCE)
    assert store.count("read owner") == reads


def test_the_claim_of_another_is_never_overwritten(store: ObjectStore, open_producer: OpenProducer) -> None:
    hooked = HookedStore(store)
    hooked.before("write owner", lambda: store.put_if_absent(OWNER, BY_ANOTHER), times=1)
    handle = open_producer(hooked, flush_size_bytes=1).produce(b"x")
    with pytest.raises(InvalidInput, match="'other/manifest'"):
        handle.result(PATIENCE)
    assert store.get(OWNER).data == BY_ANOTHER


def test_a_prefix_that_was_claimed_meanwhile_for_the_same_manifest_is_used(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    hooked = HookedStore(store)
    hooked.before("write owner", lambda: claim_as_it_is(store), times=1)
    assert open_producer(hooked, flush_size_bytes=1).produce(b"x").result(PATIENCE).sequence == 0


def test_a_producer_of_another_manifest_is_refused_when_it_is_opened(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    open_producer(store, flush_size_bytes=1).produce(b"x").result(PATIENCE)
    with pytest.raises(
        InvalidInput, match=f"{owner_of(store).id} with the manifest 'ingest/manifest', and there is no"
    ):
        open_producer(store, manifest_path="ingest/another")


def test_a_producer_that_is_refused_leaves_no_thread(memory: ObjectStore, open_producer: OpenProducer) -> None:
    memory.put(OWNER, BY_ANOTHER)
    before = set(threading.enumerate())
    with pytest.raises(InvalidInput):
        open_producer(memory)
    assert set(threading.enumerate()) <= before


def test_producers_of_one_manifest_share_a_prefix(store: ObjectStore, open_producer: OpenProducer) -> None:
    for number in range(3):
        open_producer(store, flush_size_bytes=1).produce(b"%d" % number).result(PATIENCE)
    assert entries(store) == [b"0", b"1", b"2"]


def test_buffers_with_a_prefix_each_share_a_store(store: ObjectStore, open_producer: OpenProducer) -> None:
    for name in ("a", "b"):
        producer = open_producer(store, data_path_prefix=name, manifest_path=f"{name}/manifest", flush_size_bytes=1)
        producer.produce(name).result(PATIENCE)
    assert [entries(store, f"{name}/manifest") for name in ("a", "b")] == [[b"a"], [b"b"]]


def test_where_the_store_hangs_at_first_the_handles_are_refused(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    memory.put(OWNER, BY_ANOTHER)
    store, gate = HookedStore(memory), new_gate()
    store.before("read owner", gate)
    producer = open_producer(store, flush_size_bytes=1)  # it does not wait for a store that hangs
    handle = producer.produce(b"x")
    gate.open()
    with pytest.raises(InvalidInput, match="'other/manifest'"):
        handle.result(PATIENCE)
    assert (queue(memory), data_objects(memory)) == ((), set())


def test_where_the_store_fails_at_first_the_handles_are_refused(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    store.put(OWNER, BY_ANOTHER)
    hooked = HookedStore(store)
    hooked.before("read owner", refuse, times=1)
    producer = open_producer(hooked, flush_size_bytes=1)
    with pytest.raises(InvalidInput, match="'other/manifest'"):
        producer.produce(b"x").result(PATIENCE)
    assert (queue(store), data_objects(store)) == ((), set())


def test_of_two_manifests_the_first_to_write_owns_the_prefix(store: ObjectStore, open_producer: OpenProducer) -> None:
    first = open_producer(store, flush_size_bytes=1)
    second = open_producer(store, flush_size_bytes=1, manifest_path="ingest/another")
    first.produce(b"x").result(PATIENCE)
    with pytest.raises(
        InvalidInput, match="'ingest/manifest', and there is no buffer with an id behind 'ingest/another'"
    ):
        second.produce(b"y").result(PATIENCE)
    assert len(data_objects(store)) == 1


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    "fault",
    [
        Fault.ERROR_BEFORE,
        Fault.ERROR_AFTER,
        Fault.LATE,
        Fault.APPLIED_THEN_CONFLICT,
        Fault.EXISTS_WHILE_ABSENT,
    ],
)
def test_a_claim_whose_outcome_is_not_known_is_read_again(
    memory: ObjectStore, open_producer: OpenProducer, fault: Fault, times: int
) -> None:
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, operation="put_if_absent", path=OWNER, times=times)
    handle = open_producer(faulty, flush_size_bytes=1).produce(b"x")
    assert handle.result(PATIENCE).sequence == 0
    with faulty.quiet():
        assert memory.get(OWNER).data == owner_of(memory).encode()


def test_a_prefix_that_can_never_be_claimed_fails_the_handles(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = FaultyStore(memory, rates={})
    store.inject(Fault.EXISTS_WHILE_ABSENT, operation="put_if_absent", path=OWNER, times=1000)
    with pytest.raises(OutcomeUnknown, match=r"ingest/\.owner"):
        open_producer(store, flush_size_bytes=1).produce(b"x").result(PATIENCE)
    assert data_objects(memory) == set()


def test_a_claim_that_failed_is_repeated_with_the_next_batch(store: ObjectStore, open_producer: OpenProducer) -> None:
    hooked = HookedStore(store)
    hooked.before("write owner", refuse, times=1)
    producer = open_producer(hooked, flush_size_bytes=1)
    with pytest.raises(StorageError, match="no reply"):
        producer.produce(b"lost").result(PATIENCE)
    producer.produce(b"kept").result(PATIENCE)
    assert (store.get(OWNER).data, entries(store)) == (owner_of(store).encode(), [b"kept"])
