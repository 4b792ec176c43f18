"""A cycle that cannot see everything deletes nothing; a delete that fails is counted, logged, and tried next time."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from penstock.buffer import GcReport
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.buffer.manifest.v2.head import NEW, Entry, encode_head
from penstock.errors import CorruptData, OutcomeUnknown, StorageError
from penstock.storage import DeleteResult
from penstock.testing import Fault, FaultyStore
from tests.buffer.collector.place import MANIFEST, NOW, NOW_MS, OWNER, PREFIX, Place, data_path, named_at
from tests.support.minimal_stores import RecordingStore, ThinStore

VALID = OpenDataManifest.empty().append([(data_path(1), ()), (data_path(2), ())]).data
HEAD = encode_head(
    NEW.changed(
        next_sequence=2, tail=tuple(Entry(number, data_path(1 + number), None, None, ()) for number in range(2))
    )
)
TWO = HEAD[-2:]
CORRUPT = {
    "empty": b"",
    "one byte": b"\x01",
    "version 2 by its last bytes alone": VALID[:-2] + TWO,
    "a head without a byte": TWO,
    "a head cut off": HEAD[:-20] + TWO,
    "a head with a key that nobody knows": b"\x8b\xa1x\x00" + HEAD[1:],
    "a head with a sequence that is not due": HEAD.replace(b"\x95\x01", b"\x95\x07", 1),
    "a head whose floor is no number": HEAD.replace(b"\xa5floor\x00", b"\xa5floor\xc0"),
    "a head that is a list": b"\x90" + TWO,
    "too small for a footer": VALID[-21:],
    "no entries where two are said to be": VALID[-22:],
    "an entry cut off": VALID[9:],
    "an entry too many": VALID[:-22] + VALID,
    "a location that is no text": VALID.replace(b"ingest", b"\xff\xff\xff\xff\xff\xff"),
    "a sequence that is not due": bytes([VALID[0], *VALID[1:4], 7, *VALID[5:]]),
    "text": b"this is no manifest" + (1).to_bytes(2, "little"),
}


@pytest.fixture
def littered(memory_place: Place) -> Place:
    """A buffer with three objects that a cycle would delete, and one that is referenced."""
    memory_place.enqueue(data_path(0))
    memory_place.write(*map(data_path, range(4)))
    memory_place.ripen()
    return memory_place


def planted(place: Place, manifest: bytes) -> set[str]:
    """Put bytes where the manifest is, and old objects beside it; return what is there."""
    place.write(data_path(1), data_path(2), data_path(3))
    place.store.put(MANIFEST, manifest)
    place.date(MANIFEST, NOW)
    return place.paths()


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_manifest_is_raised(memory_place: Place, data: bytes) -> None:
    planted(memory_place, data)
    with pytest.raises(CorruptData):
        memory_place.collector().collect_once()


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_with_a_corrupt_manifest_nothing_is_deleted(memory_place: Place, data: bytes) -> None:
    before = planted(memory_place, data)
    with pytest.raises(CorruptData):
        memory_place.collector().collect_once()
    assert memory_place.paths() == before


@pytest.mark.parametrize("version", [0, 3, 256, 65_535])
def test_with_a_manifest_of_an_unsupported_version_nothing_is_deleted(place: Place, version: int) -> None:
    before = planted(place, VALID[:-2] + version.to_bytes(2, "little"))
    with pytest.raises(CorruptData, match=f"unsupported version {version} "):
        place.collector().collect_once()
    assert place.paths() == before


def test_a_manifest_that_is_mended_is_collected_by_again(memory_place: Place) -> None:
    place = memory_place
    place.write(data_path(0), *map(data_path, range(1, 4)))
    place.enqueue(data_path(0))
    place.ripen()
    sound = place.store.get(MANIFEST).data
    collector = place.collector()
    place.store.put(MANIFEST, b"broken")
    with pytest.raises(CorruptData):
        collector.collect_once()
    place.store.put(MANIFEST, sound)
    place.date(MANIFEST, NOW)
    collector.collect_once()
    assert place.data() == {data_path(0)}


@pytest.mark.parametrize("path", [MANIFEST, OWNER])
def test_when_the_manifest_or_the_owner_cannot_be_read_nothing_is_deleted(littered: Place, path: str) -> None:
    before = littered.paths()
    faulty = FaultyStore(littered.store, rates={})
    faulty.inject(Fault.READ_ERROR, operation="get", path=path, times=100)
    with pytest.raises(StorageError, match="injected"):
        littered.collector(faulty).collect_once()
    assert littered.paths() == before


@pytest.mark.parametrize("seed", range(10))  # where it breaks off is the seed's
def test_when_the_listing_breaks_off_nothing_is_deleted(littered: Place, seed: int) -> None:
    before = littered.paths()
    faulty = FaultyStore(littered.store, seed, rates={})
    faulty.inject(Fault.READ_ERROR, operation="list_objects")
    with pytest.raises(StorageError, match="broke off"):
        littered.collector(faulty).collect_once()
    assert littered.paths() == before


def test_when_the_prefix_cannot_be_claimed_nothing_is_deleted(littered: Place) -> None:
    before = littered.data()
    faulty = FaultyStore(littered.store, rates={})
    faulty.inject(Fault.ERROR_BEFORE, operation="put_if_absent", path=OWNER, times=100)
    with pytest.raises(OutcomeUnknown, match="neither there nor can it be written"):
        littered.collector(faulty).collect_once()
    assert littered.data() == before


def test_a_cycle_after_one_that_failed_does_its_work(littered: Place) -> None:
    faulty = FaultyStore(littered.store, rates={})
    faulty.inject(Fault.READ_ERROR, operation="list_objects")
    collector = littered.collector(faulty)
    with pytest.raises(StorageError):
        collector.collect_once()
    assert collector.collect_once() == GcReport(deleted=3, failed=0, kept=1)


def faulty_delete(place: Place, *paths: str, fault: Fault = Fault.ERROR_BEFORE) -> FaultyStore:
    """A store on which deleting each of these fails once."""
    faulty = FaultyStore(place.store, rates={})
    for path in paths:
        faulty.inject(fault, operation="delete", path=path)
    return faulty


def test_a_delete_that_fails_is_reported(littered: Place) -> None:
    faulty = faulty_delete(littered, data_path(1), data_path(3))
    assert littered.collector(faulty).collect_once() == GcReport(deleted=1, failed=2, kept=1)


def test_a_delete_that_fails_does_not_stop_the_others(littered: Place) -> None:
    littered.collector(faulty_delete(littered, data_path(1))).collect_once()
    assert littered.data() == {data_path(0), data_path(1)}


def test_a_delete_that_fails_is_logged_with_the_path_and_the_reason(
    littered: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock.buffer.collector"):
        littered.collector(faulty_delete(littered, data_path(2))).collect_once()
    (record,) = caplog.records
    assert all(part in record.getMessage() for part in (data_path(2), littered.store.url, "injected"))


def test_deletes_that_succeed_are_not_logged_as_warnings(littered: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        littered.collect()
    assert not caplog.records


def test_a_delete_that_failed_is_tried_by_the_next_cycle(littered: Place) -> None:
    collector = littered.collector(faulty_delete(littered, data_path(1), data_path(2), data_path(3)))
    collector.collect_once()
    assert collector.collect_once() == GcReport(deleted=3, failed=0, kept=1)


def test_a_delete_that_happened_and_was_reported_as_failed_leaves_nothing_to_do(littered: Place) -> None:
    collector = littered.collector(faulty_delete(littered, data_path(1), fault=Fault.ERROR_AFTER))
    collector.collect_once()
    assert collector.collect_once() == GcReport(deleted=0, failed=0, kept=1)


class Refusing(ThinStore):
    """A store that is down when something is to be deleted: every method of a store may raise."""

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        raise StorageError("the store is down")


def test_a_deletion_that_raises_is_reported_as_failed(littered: Place) -> None:
    assert littered.collector(Refusing(littered.store)).collect_once() == GcReport(deleted=0, failed=3, kept=1)


@pytest.mark.parametrize(
    ("found", "report"),
    [
        ([], GcReport(0, 0, 0)),
        ([0], GcReport(0, 0, 1)),
        ([1], GcReport(1, 0, 0)),
        ([0, 1, 2], GcReport(2, 0, 1)),
    ],
)
def test_the_report_counts_data_objects_by_what_became_of_them(
    memory_place: Place, found: list[int], report: GcReport
) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(*map(data_path, found), f"{PREFIX}/odd", data_path(7, "elsewhere"), data_path(7, "ingest/deep"))
    assert memory_place.collect() == report


def test_what_is_too_young_to_be_deleted_counts_as_kept(memory_place: Place) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(f"{PREFIX}/{named_at(NOW_MS, 1)}.batch", age=0)
    assert memory_place.collect() == GcReport(deleted=0, failed=0, kept=1)


def test_without_a_manifest_all_counts_as_kept(memory_place: Place) -> None:
    memory_place.write(data_path(1), data_path(2))
    assert memory_place.collect() == GcReport(deleted=0, failed=0, kept=2)


def test_nothing_is_written_to_where_there_is_nothing_to_delete(memory_place: Place) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(data_path(0))
    memory_place.ripen()
    watched = RecordingStore(memory_place.store)
    memory_place.collector(watched).collect_once()
    assert {operation for operation, _ in watched.calls} == {"get", "listed"}
