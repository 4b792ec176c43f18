"""On version 1 a cycle deletes what is not referenced, and a grace period older than the manifest. Nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from ulid import ULID

from penstock.buffer import GarbageCollector
from tests.support.dated_buffer import GRACE, MANIFEST, NOW, OWNER, PREFIX, DatedBuffer, data_path
from tests.support.minimal_stores import BusyStore, RecordingStore

MANIFESTS = ["opendata"]  # version 2 has a floor: `test_floor.py`
MICROSECOND = 1e-6


@pytest.mark.parametrize(
    ("enqueued", "acked", "kept"),
    {
        "what was never enqueued is deleted": ([1], None, {1}),
        "what was dequeued is deleted": ([1, 2], 0, {2}),
        "what is referenced is kept however old it is": ([1, 2], None, {1, 2}),
        "what is referenced twice and dequeued once is kept": ([1, 1, 2], 0, {1, 2}),  # version 1 may enqueue it again
        "a queue that was drained leaves no data": ([1, 2], 1, set[int]()),
    }.values(),
)
def test_what_is_referenced_is_kept_and_all_else_is_deleted(
    dated: DatedBuffer, enqueued: list[int], acked: int | None, kept: set[int]
) -> None:
    dated.write(data_path(1), data_path(2), age=1e8)
    dated.enqueue(*map(data_path, enqueued))
    if acked is not None:
        dated.dequeue(through=acked)
    dated.collect()
    assert dated.data() == set(map(data_path, kept))


@pytest.mark.parametrize(("age", "is_kept"), [(GRACE, False), (GRACE - MICROSECOND, True), (-1, True)])
def test_an_object_is_deleted_once_the_manifest_is_the_whole_grace_period_younger(
    dated: DatedBuffer, age: float, is_kept: bool
) -> None:
    dated.enqueue(data_path(1))
    dated.write(data_path(2), age=age)
    dated.collect()
    assert dated.data() == ({data_path(2)} if is_kept else set())


@pytest.mark.parametrize("grace", [600.0, 601.5, 86_400.0])
def test_the_grace_period_is_the_configured_one(dated_memory: DatedBuffer, grace: float) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(data_path(1), age=grace - MICROSECOND)
    dated_memory.write(data_path(2), age=grace)
    dated_memory.collect(gc_grace_period=grace)
    assert dated_memory.data() == {data_path(1)}


def test_the_newest_objects_wait_for_the_next_write_of_the_manifest(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(1))
    dated.write(data_path(2), age=0)
    dated.collect()
    dated.date(MANIFEST, NOW + timedelta(seconds=GRACE))
    dated.collect()
    assert dated.data() == set()


@pytest.mark.parametrize("year", [1980, 2024, 2090])
def test_the_clock_of_a_host_does_not_count(dated_memory: DatedBuffer, year: int) -> None:
    written = datetime(year, 1, 1, tzinfo=UTC)
    dated_memory.enqueue(data_path(0))
    dated_memory.date(MANIFEST, written + timedelta(seconds=GRACE))
    dated_memory.write(data_path(1), data_path(2))
    dated_memory.date(data_path(1), written)
    dated_memory.date(data_path(2), written + timedelta(seconds=1))
    dated_memory.collect()
    assert dated_memory.data() == {data_path(2)}


def test_an_old_ulid_does_not_make_an_object_old(dated: DatedBuffer) -> None:
    young = f"{PREFIX}/{ULID.from_timestamp(0)}.batch"
    dated.enqueue(data_path(1))
    dated.write(young, age=GRACE - 1)
    dated.collect()
    assert dated.data() == {young}


def test_a_ulid_of_the_future_does_not_make_an_object_young(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(1))
    dated.write(f"{PREFIX}/{ULID.from_timestamp((1 << 48) - 1)}.batch", age=GRACE)
    dated.collect()
    assert dated.data() == set()


def test_without_a_manifest_nothing_is_deleted(dated: DatedBuffer) -> None:
    dated.write(data_path(1), age=1e8)
    dated.collect()
    assert dated.data() == {data_path(1)}


def test_a_manifest_elsewhere_does_not_count(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(1), manifest="other/manifest")
    dated.write(data_path(2), age=1e8)
    dated.collect()
    assert dated.data() == {data_path(2)}


def test_only_direct_children_of_the_prefix_are_deleted(dated: DatedBuffer) -> None:
    others = {data_path(1, where) for where in ("ingest/deeper", "ingest/deeper/still", "other", "ingest2", "a/ingest")}
    dated.enqueue(data_path(0))
    dated.write(data_path(1), *others)
    dated.write(data_path(1).removeprefix("ingest/"))
    dated.collect()
    assert dated.data() == others | {data_path(1).removeprefix("ingest/")}


def test_a_prefix_may_be_deep(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(0, "a/b/c"), manifest="a/b/manifest")
    dated.write(data_path(1, "a/b/c"), data_path(1, "a/b"))
    dated.collect(data_path_prefix="a/b/c/", manifest_path="a/b/manifest")
    assert dated.data() == {data_path(1, "a/b")}


ODD_NAMES = [
    "0123456789abcdefghjkmnpqrs.batch",  # lower case
    "0123456789ABCDEFGHJKMNPQR.batch",  # 25 characters
    "0123456789ABCDEFGHJKMNPQRST.batch",  # 27
    "81234567890000000000000000.batch",  # beyond 128 bits
    "0123456789ABCDEFGHJKMNPQRI.batch",
    "0123456789ABCDEFGHJKMNPQRL.batch",
    "0123456789ABCDEFGHJKMNPQRO.batch",
    "0123456789ABCDEFGHJKMNPQRU.batch",
    "0123456789ABCDEFGHJKMNPQR-.batch",
    "\N{ARABIC-INDIC DIGIT ZERO}123456789ABCDEFGHJKMNPQRS.batch",  # a digit, but not an ASCII one
    "0123456789ABCDEFGHJKMNPQRS",
    "0123456789ABCDEFGHJKMNPQRS.batch2",
    "0123456789ABCDEFGHJKMNPQRS.batch.tmp",
    "0123456789ABCDEFGHJKMNPQRS.BATCH",
    "0123456789ABCDEFGHJKMNPQRS-batch",
    "x0123456789ABCDEFGHJKMNPQRS.batch",
    " 0123456789ABCDEFGHJKMNPQRS.batch",
    "0123456789ABCDEFGHJKMNPQRS.batch ",
    ".batch",
    "notes.batch",
    "manifest.backup",
]


def its_id(manifest: str) -> set[str]:
    """The path of the id of a manifest of version 1."""
    return {f"{MANIFEST}.id"} if manifest == "opendata" else set()


def test_what_has_another_name_is_not_deleted(dated: DatedBuffer, manifest: str) -> None:
    others = {f"{PREFIX}/{name}" for name in ODD_NAMES}
    dated.enqueue(data_path(0))
    dated.write(data_path(1), *others)
    dated.collect()
    assert dated.paths() == others | {MANIFEST, OWNER} | its_id(manifest)


def test_the_owner_and_the_manifest_stay_however_old_they_are(dated: DatedBuffer, manifest: str) -> None:
    dated.enqueue(data_path(0))
    dated.own()
    kept = {OWNER, MANIFEST} | its_id(manifest)
    for path in kept:
        dated.date(path, NOW - timedelta(days=1000))
    dated.write(data_path(1), age=1e9)
    dated.collect()
    assert dated.paths() == kept


def test_locations_that_are_no_data_paths_are_left_alone(dated: DatedBuffer) -> None:
    kept = {f"{PREFIX}/by-hand.batch", data_path(1, "other"), data_path(1, "ingest/deeper")}
    dated.write(data_path(2), *kept)
    dated.enqueue(*kept)
    dated.collect()
    assert dated.data() == kept


@pytest.mark.parametrize("location", ["../outside", "/etc/passwd", "a//b", "a\nb", "." * 2000])
def test_a_location_that_is_no_path_does_not_stop_a_cycle(dated_memory: DatedBuffer, location: str) -> None:
    dated_memory.write(data_path(1), data_path(2))
    dated_memory.enqueue(location, data_path(1))
    dated_memory.collect()
    assert dated_memory.data() == {data_path(1)}


def test_a_second_cycle_finds_nothing_to_do(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(1))
    dated.write(data_path(1), data_path(2))
    dated.collect()
    paths = dated.paths()
    dated.collect()
    assert dated.paths() == paths


def test_a_cycle_does_not_write_the_manifest(dated: DatedBuffer) -> None:
    dated.enqueue(data_path(0))
    dated.write(data_path(1))
    before = dated.store.get(MANIFEST)
    dated.collect()
    assert dated.store.get(MANIFEST) == before


def test_the_manifest_is_read_after_the_objects_are_listed_and_before_one_is_deleted(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(data_path(1))
    watched = RecordingStore(dated_memory.store)
    GarbageCollector(watched).collect_once()
    reads = [at for at, call in enumerate(watched.calls) if call == ("get", MANIFEST)]
    assert watched.calls.index(("listed", PREFIX)) < reads[-1] < watched.calls.index(("delete", data_path(1)))


def test_an_object_that_comes_after_the_listing_waits_for_the_next_cycle(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(data_path(1))
    busy = BusyStore(dated_memory.store, after_listing=lambda: dated_memory.write(data_path(2)))
    GarbageCollector(busy).collect_once()
    assert dated_memory.data() == {data_path(2)}


def test_an_object_that_is_enqueued_after_the_listing_is_kept(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(data_path(1))
    busy = BusyStore(dated_memory.store, after_listing=lambda: dated_memory.enqueue(data_path(1)))
    GarbageCollector(busy).collect_once()
    assert dated_memory.data() == {data_path(1)}
