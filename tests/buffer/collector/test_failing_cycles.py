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
from tests.support.dated_buffer import MANIFEST, NOW, NOW_MS, OWNER, PREFIX, DatedBuffer, data_path, named_at
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
    "a head with an unknown key": b"\x8b\xa1x\x00" + HEAD[1:],
    "a head with a sequence that is not due": HEAD.replace(b"\x95\x01", b"\x95\x07", 1),
    "a head whose floor is no number": HEAD.replace(b"\xa5floor\x00", b"\xa5floor\xc0"),
    "a head that is a list": b"\x90" + TWO,
    "too small for a footer": VALID[-21:],
    "no entries where the footer counts two": VALID[-22:],
    "an entry cut off": VALID[9:],
    "an entry too many": VALID[:-22] + VALID,
    "a location that is no text": VALID.replace(b"ingest", b"\xff\xff\xff\xff\xff\xff"),
    "a sequence that is not due": bytes([VALID[0], *VALID[1:4], 7, *VALID[5:]]),
    "text": b"this is no manifest" + (1).to_bytes(2, "little"),
}


def planted(dated: DatedBuffer, manifest: bytes) -> set[str]:
    """Write these bytes as the manifest, and old objects beside it; return all paths."""
    dated.write(data_path(1), data_path(2), data_path(3))
    dated.store.put(MANIFEST, manifest)
    dated.date(MANIFEST, NOW)
    return dated.paths()


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_with_a_corrupt_manifest_nothing_is_deleted(dated_memory: DatedBuffer, data: bytes) -> None:
    before = planted(dated_memory, data)
    with pytest.raises(CorruptData):
        dated_memory.collector().collect_once()
    assert dated_memory.paths() == before


@pytest.mark.parametrize("version", [0, 3, 256, 65_535])
def test_with_a_manifest_of_an_unsupported_version_nothing_is_deleted(dated: DatedBuffer, version: int) -> None:
    before = planted(dated, VALID[:-2] + version.to_bytes(2, "little"))
    with pytest.raises(CorruptData, match=f"unsupported version {version} "):
        dated.collector().collect_once()
    assert dated.paths() == before


def test_once_the_manifest_is_repaired_cycles_delete_again(dated_memory: DatedBuffer) -> None:
    dated = dated_memory
    dated.write(data_path(0), *map(data_path, range(1, 4)))
    dated.enqueue(data_path(0))
    dated.set_floor()
    sound = dated.store.get(MANIFEST).data
    collector = dated.collector()
    dated.store.put(MANIFEST, b"broken")
    with pytest.raises(CorruptData):
        collector.collect_once()
    dated.store.put(MANIFEST, sound)
    dated.date(MANIFEST, NOW)
    collector.collect_once()
    assert dated.data() == {data_path(0)}


@pytest.mark.parametrize("path", [MANIFEST, OWNER])
def test_when_the_manifest_or_the_owner_cannot_be_read_nothing_is_deleted(with_orphans: DatedBuffer, path: str) -> None:
    before = with_orphans.paths()
    faulty = FaultyStore(with_orphans.store, rates={})
    faulty.inject(Fault.READ_ERROR, operation="get", path=path, times=100)
    with pytest.raises(StorageError, match="injected"):
        with_orphans.collector(faulty).collect_once()
    assert with_orphans.paths() == before


@pytest.mark.parametrize("seed", range(10))  # the seed decides where the listing ends
def test_when_the_listing_breaks_off_nothing_is_deleted(with_orphans: DatedBuffer, seed: int) -> None:
    before = with_orphans.paths()
    faulty = FaultyStore(with_orphans.store, seed, rates={})
    faulty.inject(Fault.READ_ERROR, operation="list_objects")
    with pytest.raises(StorageError, match="broke off"):
        with_orphans.collector(faulty).collect_once()
    assert with_orphans.paths() == before


def test_when_the_prefix_cannot_be_claimed_nothing_is_deleted(with_orphans: DatedBuffer) -> None:
    before = with_orphans.data()
    faulty = FaultyStore(with_orphans.store, rates={})
    faulty.inject(Fault.ERROR_BEFORE, operation="put_if_absent", path=OWNER, times=100)
    with pytest.raises(OutcomeUnknown, match="neither there nor can it be written"):
        with_orphans.collector(faulty).collect_once()
    assert with_orphans.data() == before


def test_a_cycle_after_a_failed_one_deletes_as_usual(with_orphans: DatedBuffer) -> None:
    faulty = FaultyStore(with_orphans.store, rates={})
    faulty.inject(Fault.READ_ERROR, operation="list_objects")
    collector = with_orphans.collector(faulty)
    with pytest.raises(StorageError):
        collector.collect_once()
    assert collector.collect_once() == GcReport(deleted=3, failed=0, kept=1)


def faulty_delete(dated: DatedBuffer, *paths: str, fault: Fault = Fault.ERROR_BEFORE) -> FaultyStore:
    """A store on which deleting each of these fails once."""
    faulty = FaultyStore(dated.store, rates={})
    for path in paths:
        faulty.inject(fault, operation="delete", path=path)
    return faulty


def test_a_delete_that_fails_is_reported(with_orphans: DatedBuffer) -> None:
    faulty = faulty_delete(with_orphans, data_path(1), data_path(3))
    assert with_orphans.collector(faulty).collect_once() == GcReport(deleted=1, failed=2, kept=1)


def test_a_delete_that_fails_does_not_stop_the_others(with_orphans: DatedBuffer) -> None:
    with_orphans.collector(faulty_delete(with_orphans, data_path(1))).collect_once()
    assert with_orphans.data() == {data_path(0), data_path(1)}


def test_a_delete_that_fails_is_logged_with_the_path_and_the_reason(
    with_orphans: DatedBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock.buffer.collector"):
        with_orphans.collector(faulty_delete(with_orphans, data_path(2))).collect_once()
    (record,) = caplog.records
    assert all(part in record.getMessage() for part in (data_path(2), with_orphans.store.url, "injected"))


def test_deletes_that_succeed_are_not_logged_as_warnings(
    with_orphans: DatedBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        with_orphans.collect()
    assert not caplog.records


def test_a_delete_that_failed_is_tried_by_the_next_cycle(with_orphans: DatedBuffer) -> None:
    collector = with_orphans.collector(faulty_delete(with_orphans, data_path(1), data_path(2), data_path(3)))
    collector.collect_once()
    assert collector.collect_once() == GcReport(deleted=3, failed=0, kept=1)


def test_a_delete_that_happened_and_was_reported_as_failed_leaves_nothing_to_do(with_orphans: DatedBuffer) -> None:
    collector = with_orphans.collector(faulty_delete(with_orphans, data_path(1), fault=Fault.ERROR_AFTER))
    collector.collect_once()
    assert collector.collect_once() == GcReport(deleted=0, failed=0, kept=1)


class FailingDeletes(ThinStore):
    """A store whose deletes raise."""

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        raise StorageError("the store is down")


def test_a_deletion_that_raises_is_reported_as_failed(with_orphans: DatedBuffer) -> None:
    assert with_orphans.collector(FailingDeletes(with_orphans.store)).collect_once() == GcReport(
        deleted=0, failed=3, kept=1
    )


@pytest.mark.parametrize(
    ("found", "report"),
    [
        ([], GcReport(0, 0, 0)),
        ([0], GcReport(0, 0, 1)),
        ([1], GcReport(1, 0, 0)),
        ([0, 1, 2], GcReport(2, 0, 1)),
    ],
)
def test_the_report_counts_data_objects_by_their_outcome(
    dated_memory: DatedBuffer, found: list[int], report: GcReport
) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(*map(data_path, found), f"{PREFIX}/odd", data_path(7, "elsewhere"), data_path(7, "ingest/deep"))
    assert dated_memory.collect() == report


def test_what_is_too_young_to_be_deleted_counts_as_kept(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(f"{PREFIX}/{named_at(NOW_MS, 1)}.batch", age=0)
    assert dated_memory.collect() == GcReport(deleted=0, failed=0, kept=1)


def test_without_a_manifest_all_counts_as_kept(dated_memory: DatedBuffer) -> None:
    dated_memory.write(data_path(1), data_path(2))
    assert dated_memory.collect() == GcReport(deleted=0, failed=0, kept=2)


def test_a_cycle_without_anything_to_delete_writes_nothing(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(data_path(0))
    dated_memory.set_floor()
    watched = RecordingStore(dated_memory.store)
    dated_memory.collector(watched).collect_once()
    assert {operation for operation, _ in watched.calls} == {"get", "listed"}
