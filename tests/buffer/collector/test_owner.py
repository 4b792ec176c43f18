"""A prefix belongs to one buffer: a collector of another one deletes nothing there."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.buffer import GcReport, Producer, ProducerConfig
from penstock.buffer.manifest.ownership import Owner
from penstock.errors import CorruptData, InvalidInput
from penstock.testing import Fault, FaultyStore
from tests.buffer.collector.place import MANIFEST, OWNER, Place, data_path, queue_of
from tests.support.minimal_stores import BusyStore, RecordingStore

OTHER = "other/manifest"
STRANGER = UUID(int=7)
BY_ANOTHER = Owner(STRANGER, OTHER, "ingest").encode()


@pytest.fixture
def littered(place: Place) -> Place:
    """A prefix that nobody owns yet, with an object that a cycle would delete."""
    place.enqueue(data_path(0))
    place.write(data_path(1))
    place.ripen()
    return place


def test_on_the_prefix_of_another_buffer_a_cycle_is_refused_by_naming_both(littered: Place) -> None:
    mine = queue_of(littered.store).identify(create=True)
    littered.store.put(OWNER, BY_ANOTHER)
    with pytest.raises(InvalidInput, match=rf"'ingest'.*{STRANGER}.*'{OTHER}', not to {mine} .*'{MANIFEST}'"):
        littered.collector().collect_once()


def test_on_the_prefix_of_another_buffer_nothing_is_deleted(littered: Place) -> None:
    littered.store.put(OWNER, BY_ANOTHER)
    with pytest.raises(InvalidInput):
        littered.collector().collect_once()
    assert littered.data() == {data_path(1)}


def test_the_prefix_of_another_buffer_is_refused_even_when_there_is_nothing_to_delete(place: Place) -> None:
    place.store.put(OWNER, BY_ANOTHER)
    with pytest.raises(InvalidInput):
        place.collect()


def test_a_collector_of_another_manifest_does_not_touch_what_a_producer_wrote(place: Place) -> None:
    with Producer(place.store) as producer:
        written = producer.produce(b"entry").result()
    place.enqueue("elsewhere/x", manifest=OTHER)
    place.write(data_path(1))
    with pytest.raises(InvalidInput):
        place.collect(manifest_path=OTHER)
    assert place.data() == {written.location, data_path(1)}


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"null", MANIFEST.encode(), BY_ANOTHER[:-1], BY_ANOTHER.replace(b"7", b"8", 1)]
)
def test_an_owner_that_cannot_be_read_stops_a_cycle_and_says_what_to_do(memory_place: Place, data: bytes) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(data_path(1))
    memory_place.store.put(OWNER, data)
    with pytest.raises(CorruptData, match=r"ingest/\.owner in .*delete the object"):
        memory_place.collect()
    assert memory_place.data() == {data_path(1)}


def test_its_own_prefix_is_collected(littered: Place) -> None:
    littered.own()
    assert littered.collect().deleted == 1


@pytest.mark.parametrize("path", ["ingest/manifest ", " ingest/manifest"])
def test_a_manifest_whose_path_begins_or_ends_in_a_space_owns_its_prefix_too(memory_place: Place, path: str) -> None:
    memory_place.enqueue(data_path(0), manifest=path)
    memory_place.write(data_path(1))
    memory_place.collect(manifest_path=path)
    assert memory_place.collect(manifest_path=path) == GcReport(deleted=0, failed=0, kept=0)


def test_a_manifest_whose_path_differs_by_a_space_alone_is_another(memory_place: Place) -> None:
    memory_place.write(data_path(1))
    memory_place.enqueue(data_path(1), manifest=f"{MANIFEST} ")
    memory_place.own(manifest=f"{MANIFEST} ")
    memory_place.enqueue(data_path(0))
    with pytest.raises(InvalidInput):
        memory_place.collect()
    assert memory_place.data() == {data_path(1)}


def test_a_prefix_that_nobody_owns_is_claimed_for_the_manifest(littered: Place) -> None:
    littered.collect()
    mine = queue_of(littered.store).identify()
    assert mine is not None
    assert Owner.decode(littered.store.get(OWNER).data) == Owner(mine, MANIFEST, "ingest")


def test_a_prefix_that_nobody_owns_is_claimed_before_the_first_delete(littered: Place) -> None:
    watched = RecordingStore(littered.store)
    littered.collector(watched).collect_once()
    assert watched.calls.index(("put_if_absent", OWNER)) < watched.calls.index(("delete", data_path(1)))


def test_after_a_collector_claimed_it_a_producer_of_another_manifest_is_refused(littered: Place) -> None:
    littered.collect()
    with pytest.raises(InvalidInput):
        Producer(littered.store, ProducerConfig(manifest_path=OTHER))


def test_a_prefix_that_another_manifest_claims_during_the_cycle_is_left_alone(littered: Place) -> None:
    busy = BusyStore(littered.store, after_listing=lambda: littered.store.put(OWNER, BY_ANOTHER))
    with pytest.raises(InvalidInput):
        littered.collector(busy).collect_once()
    assert littered.data() == {data_path(1)}


def test_a_prefix_that_another_manifest_claims_at_the_same_moment_is_left_alone(littered: Place) -> None:
    class Rival(RecordingStore):
        def put_if_absent(self, path: str, data: bytes | bytearray | memoryview) -> str:
            if path == OWNER:
                littered.store.put(path, BY_ANOTHER)
            return super().put_if_absent(path, data)

    with pytest.raises(InvalidInput):
        littered.collector(Rival(littered.store)).collect_once()
    assert littered.data() == {data_path(1)}


@pytest.mark.parametrize(
    "fault",
    [
        Fault.ERROR_BEFORE,
        Fault.ERROR_AFTER,
        Fault.APPLIED_THEN_CONFLICT,
        Fault.EXISTS_WHILE_ABSENT,
        Fault.LATE,
    ],
)
def test_whatever_reply_its_claim_gets_a_cycle_reads_the_owner_and_goes_on(memory_place: Place, fault: Fault) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(data_path(1))
    memory_place.ripen()
    faulty = FaultyStore(memory_place.store, rates={})
    faulty.inject(fault, operation="put_if_absent", path=OWNER)
    assert memory_place.collector(faulty).collect_once().deleted == 1


def test_each_of_two_buffers_on_a_store_collects_its_own(place: Place) -> None:
    place.enqueue(data_path(0))
    place.enqueue(data_path(0, "other"), manifest=OTHER)
    place.write(data_path(1), data_path(1, "other"))
    place.collect(data_path_prefix="other", manifest_path=OTHER)
    assert place.data() == {data_path(1)}
