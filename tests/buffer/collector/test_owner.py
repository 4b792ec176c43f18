"""A prefix belongs to one buffer: a collector of another one deletes nothing there."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.buffer import GcReport, Producer, ProducerConfig
from penstock.buffer.manifest.ownership import Owner
from penstock.errors import CorruptData, InvalidInput
from penstock.testing import Fault, FaultyStore
from tests.support.dated_buffer import MANIFEST, OWNER, DatedBuffer, data_path, queue_of
from tests.support.minimal_stores import BusyStore, RecordingStore

OTHER = "other/manifest"
STRANGER = UUID(int=7)
BY_ANOTHER = Owner(STRANGER, OTHER, "ingest").encode()


@pytest.fixture
def with_orphan(dated: DatedBuffer) -> DatedBuffer:
    """A prefix without an owner, with an object that a cycle would delete."""
    dated.enqueue(data_path(0))
    dated.write(data_path(1))
    dated.set_floor()
    return dated


def test_on_the_prefix_of_another_buffer_a_cycle_is_refused_naming_both_and_deletes_nothing(
    with_orphan: DatedBuffer,
) -> None:
    mine = queue_of(with_orphan.store).identify(create=True)
    with_orphan.store.put(OWNER, BY_ANOTHER)
    with pytest.raises(InvalidInput, match=rf"'ingest'.*{STRANGER}.*'{OTHER}', not to {mine} .*'{MANIFEST}'"):
        with_orphan.collector().collect_once()
    assert with_orphan.data() == {data_path(1)}


def test_the_prefix_of_another_buffer_is_refused_even_when_there_is_nothing_to_delete(dated: DatedBuffer) -> None:
    dated.store.put(OWNER, BY_ANOTHER)
    with pytest.raises(InvalidInput):
        dated.collect()


def test_a_collector_of_another_manifest_does_not_touch_what_a_producer_wrote(dated: DatedBuffer) -> None:
    with Producer(dated.store) as producer:
        written = producer.produce(b"entry").result()
    dated.enqueue("elsewhere/x", manifest=OTHER)
    dated.write(data_path(1))
    with pytest.raises(InvalidInput):
        dated.collect(manifest_path=OTHER)
    assert dated.data() == {written.location, data_path(1)}


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"null", MANIFEST.encode(), BY_ANOTHER[:-1], BY_ANOTHER.replace(b"7", b"8", 1)]
)
def test_an_owner_that_cannot_be_read_stops_a_cycle_with_an_error_that_says_what_to_do(
    dated_memory: DatedBuffer, data: bytes
) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(data_path(1))
    dated_memory.store.put(OWNER, data)
    with pytest.raises(CorruptData, match=r"ingest/\.owner in .*delete the object"):
        dated_memory.collect()
    assert dated_memory.data() == {data_path(1)}


def test_its_own_prefix_is_collected(with_orphan: DatedBuffer) -> None:
    with_orphan.own()
    assert with_orphan.collect().deleted == 1


@pytest.mark.parametrize("path", ["ingest/manifest ", " ingest/manifest"])
def test_a_manifest_whose_path_begins_or_ends_in_a_space_owns_its_prefix_too(
    dated_memory: DatedBuffer, path: str
) -> None:
    dated_memory.enqueue(data_path(0), manifest=path)
    dated_memory.write(data_path(1))
    dated_memory.collect(manifest_path=path)
    assert dated_memory.collect(manifest_path=path) == GcReport(deleted=0, failed=0, kept=0)


def test_a_manifest_whose_path_differs_by_a_space_alone_is_another(dated_memory: DatedBuffer) -> None:
    dated_memory.write(data_path(1))
    dated_memory.enqueue(data_path(1), manifest=f"{MANIFEST} ")
    dated_memory.own(manifest=f"{MANIFEST} ")
    dated_memory.enqueue(data_path(0))
    with pytest.raises(InvalidInput):
        dated_memory.collect()
    assert dated_memory.data() == {data_path(1)}


def test_a_prefix_without_an_owner_is_claimed_for_the_manifest(with_orphan: DatedBuffer) -> None:
    with_orphan.collect()
    mine = queue_of(with_orphan.store).identify()
    assert mine is not None
    assert Owner.decode(with_orphan.store.get(OWNER).data) == Owner(mine, MANIFEST, "ingest")


def test_a_prefix_without_an_owner_is_claimed_before_the_first_delete(with_orphan: DatedBuffer) -> None:
    watched = RecordingStore(with_orphan.store)
    with_orphan.collector(watched).collect_once()
    assert watched.calls.index(("put_if_absent", OWNER)) < watched.calls.index(("delete", data_path(1)))


def test_after_a_collector_claimed_it_a_producer_of_another_manifest_is_refused(with_orphan: DatedBuffer) -> None:
    with_orphan.collect()
    with pytest.raises(InvalidInput):
        Producer(with_orphan.store, ProducerConfig(manifest_path=OTHER))


def test_a_prefix_that_another_manifest_claims_during_the_cycle_is_left_alone(with_orphan: DatedBuffer) -> None:
    busy = BusyStore(with_orphan.store, after_listing=lambda: with_orphan.store.put(OWNER, BY_ANOTHER))
    with pytest.raises(InvalidInput):
        with_orphan.collector(busy).collect_once()
    assert with_orphan.data() == {data_path(1)}


def test_a_prefix_that_another_manifest_claims_at_the_same_moment_is_left_alone(with_orphan: DatedBuffer) -> None:
    class Rival(RecordingStore):
        def put_if_absent(self, path: str, data: bytes | bytearray | memoryview) -> str:
            if path == OWNER:
                with_orphan.store.put(path, BY_ANOTHER)
            return super().put_if_absent(path, data)

    with pytest.raises(InvalidInput):
        with_orphan.collector(Rival(with_orphan.store)).collect_once()
    assert with_orphan.data() == {data_path(1)}


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
def test_after_any_reply_to_its_claim_a_cycle_reads_the_owner_and_goes_on(
    dated_memory: DatedBuffer, fault: Fault
) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(data_path(1))
    dated_memory.set_floor()
    faulty = FaultyStore(dated_memory.store, rates={})
    faulty.inject(fault, operation="put_if_absent", path=OWNER)
    assert dated_memory.collector(faulty).collect_once().deleted == 1


def test_each_of_two_buffers_on_a_store_collects_its_own(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(0))
    dated.enqueue(data_path(0, "other"), manifest=OTHER)
    dated.write(data_path(1), data_path(1, "other"))
    dated.collect(data_path_prefix="other", manifest_path=OTHER)
    assert dated.data() == {data_path(1)}
