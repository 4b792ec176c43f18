"""On version 1 a cycle deletes what is not referenced, and a grace period older than the manifest. Nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from ulid import ULID

from penstock.buffer import GarbageCollector
from tests.buffer.collector.place import GRACE, MANIFEST, NOW, OWNER, PREFIX, Place, data_path
from tests.support.minimal_stores import BusyStore, RecordingStore

MANIFESTS = ["opendata"]  # version 2 has a floor: `test_floor.py`
MICROSECOND = 1e-6


def test_what_was_never_enqueued_is_deleted(place: Place) -> None:
    place.enqueue(data_path(1))
    place.write(data_path(1), data_path(2))
    place.collect()
    assert place.data() == {data_path(1)}


def test_what_was_dequeued_is_deleted(place: Place) -> None:
    place.write(data_path(1), data_path(2))
    place.enqueue(data_path(1), data_path(2))
    place.dequeue(through=0)
    place.collect()
    assert place.data() == {data_path(2)}


def test_what_is_referenced_is_kept_however_old_it_is(place: Place) -> None:
    place.write(data_path(1), data_path(2), age=1e8)
    place.enqueue(data_path(1), data_path(2))
    place.collect()
    assert place.data() == {data_path(1), data_path(2)}


def test_what_is_referenced_twice_and_dequeued_once_is_kept(place: Place) -> None:
    # On version 1 a write in doubt is enqueued again.
    place.write(data_path(1))
    place.enqueue(data_path(1), data_path(1))
    place.dequeue(through=0)
    place.collect()
    assert place.data() == {data_path(1)}


def test_a_queue_that_was_drained_leaves_no_data(place: Place) -> None:
    place.write(data_path(1), data_path(2))
    place.enqueue(data_path(1), data_path(2))
    place.dequeue(through=1)
    place.collect()
    assert place.data() == set()


def test_an_object_is_deleted_once_the_manifest_is_the_whole_grace_period_younger(place: Place) -> None:
    place.enqueue(data_path(1))
    place.write(data_path(2), age=GRACE)
    place.collect()
    assert place.data() == set()


def test_an_object_is_kept_while_the_manifest_is_a_microsecond_less_than_that_younger(place: Place) -> None:
    place.enqueue(data_path(1))
    place.write(data_path(2), age=GRACE - MICROSECOND)
    place.collect()
    assert place.data() == {data_path(2)}


@pytest.mark.parametrize("grace", [600.0, 601.5, 86_400.0])
def test_the_grace_period_is_the_configured_one(memory_place: Place, grace: float) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(data_path(1), age=grace - MICROSECOND)
    memory_place.write(data_path(2), age=grace)
    memory_place.collect(gc_grace_period=grace)
    assert memory_place.data() == {data_path(1)}


def test_an_object_younger_than_the_manifest_is_kept(place: Place) -> None:
    place.enqueue(data_path(1))
    place.write(data_path(2), age=-1)
    place.collect()
    assert place.data() == {data_path(2)}


def test_the_newest_objects_wait_for_the_next_write_of_the_manifest(place: Place) -> None:
    place.enqueue(data_path(1))
    place.write(data_path(2), age=0)
    place.collect()
    place.date(MANIFEST, NOW + timedelta(seconds=GRACE))
    place.collect()
    assert place.data() == set()


@pytest.mark.parametrize("year", [1980, 2024, 2090])
def test_no_hosts_clock_takes_part(memory_place: Place, year: int) -> None:
    written = datetime(year, 1, 1, tzinfo=UTC)
    memory_place.enqueue(data_path(0))
    memory_place.date(MANIFEST, written + timedelta(seconds=GRACE))
    memory_place.write(data_path(1), data_path(2))
    memory_place.date(data_path(1), written)
    memory_place.date(data_path(2), written + timedelta(seconds=1))
    memory_place.collect()
    assert memory_place.data() == {data_path(2)}


def test_a_ulid_of_long_ago_makes_no_object_old(place: Place) -> None:
    young = f"{PREFIX}/{ULID.from_timestamp(0)}.batch"
    place.enqueue(data_path(1))
    place.write(young, age=GRACE - 1)
    place.collect()
    assert place.data() == {young}


def test_a_ulid_of_the_future_makes_no_object_young(place: Place) -> None:
    place.enqueue(data_path(1))
    place.write(f"{PREFIX}/{ULID.from_timestamp((1 << 48) - 1)}.batch", age=GRACE)
    place.collect()
    assert place.data() == set()


def test_without_a_manifest_nothing_is_deleted(place: Place) -> None:
    place.write(data_path(1), age=1e8)
    place.collect()
    assert place.data() == {data_path(1)}


def test_a_manifest_elsewhere_does_not_count(place: Place) -> None:
    place.enqueue(data_path(1), manifest="other/manifest")
    place.write(data_path(2), age=1e8)
    place.collect()
    assert place.data() == {data_path(2)}


def test_only_direct_children_of_the_prefix_are_deleted(place: Place) -> None:
    others = {data_path(1, where) for where in ("ingest/deeper", "ingest/deeper/still", "other", "ingest2", "a/ingest")}
    place.enqueue(data_path(0))
    place.write(data_path(1), *others)
    place.write(data_path(1).removeprefix("ingest/"))
    place.collect()
    assert place.data() == others | {data_path(1).removeprefix("ingest/")}


def test_a_prefix_may_be_deep(place: Place) -> None:
    place.enqueue(data_path(0, "a/b/c"), manifest="a/b/manifest")
    place.write(data_path(1, "a/b/c"), data_path(1, "a/b"))
    place.collect(data_path_prefix="a/b/c/", manifest_path="a/b/manifest")
    assert place.data() == {data_path(1, "a/b")}


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


@pytest.mark.parametrize("name", ODD_NAMES)
def test_what_has_another_name_is_not_deleted(memory_place: Place, name: str) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(f"{PREFIX}/{name}")
    memory_place.collect()
    assert f"{PREFIX}/{name}" in memory_place.paths()


def its_id(manifest: str) -> set[str]:
    """Where the id of a manifest of version 1 lies."""
    return {f"{MANIFEST}.id"} if manifest == "opendata" else set()


def test_what_has_another_name_is_not_deleted_on_any_store(place: Place, manifest: str) -> None:
    others = {f"{PREFIX}/{name}" for name in ODD_NAMES}
    place.enqueue(data_path(0))
    place.write(data_path(1), *others)
    place.collect()
    assert place.paths() == others | {MANIFEST, OWNER} | its_id(manifest)


def test_the_owner_and_the_manifest_stay_however_old_they_are(place: Place, manifest: str) -> None:
    place.enqueue(data_path(0))
    place.own()
    kept = {OWNER, MANIFEST} | its_id(manifest)
    for path in kept:
        place.date(path, NOW - timedelta(days=1000))
    place.write(data_path(1), age=1e9)
    place.collect()
    assert place.paths() == kept


def test_locations_that_are_no_data_paths_are_left_alone(place: Place) -> None:
    kept = {f"{PREFIX}/by-hand.batch", data_path(1, "other"), data_path(1, "ingest/deeper")}
    place.write(data_path(2), *kept)
    place.enqueue(*kept)
    place.collect()
    assert place.data() == kept


@pytest.mark.parametrize("location", ["../outside", "/etc/passwd", "a//b", "a\nb", "." * 2000])
def test_a_location_that_is_no_path_does_not_stop_a_cycle(memory_place: Place, location: str) -> None:
    memory_place.write(data_path(1), data_path(2))
    memory_place.enqueue(location, data_path(1))
    memory_place.collect()
    assert memory_place.data() == {data_path(1)}


def test_a_second_cycle_finds_nothing_to_do(place: Place) -> None:
    place.enqueue(data_path(1))
    place.write(data_path(1), data_path(2))
    place.collect()
    left = place.paths()
    place.collect()
    assert place.paths() == left


def test_a_cycle_does_not_write_the_manifest(place: Place) -> None:
    place.enqueue(data_path(0))
    place.write(data_path(1))
    before = place.store.get(MANIFEST)
    place.collect()
    assert place.store.get(MANIFEST) == before


def test_the_manifest_is_read_after_the_objects_are_listed_and_before_one_is_deleted(memory_place: Place) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(data_path(1))
    watched = RecordingStore(memory_place.store)
    GarbageCollector(watched).collect_once()
    reads = [place for place, call in enumerate(watched.calls) if call == ("get", MANIFEST)]
    assert watched.calls.index(("listed", PREFIX)) < reads[-1] < watched.calls.index(("delete", data_path(1)))


def test_an_object_that_comes_after_the_listing_waits_for_the_next_cycle(memory_place: Place) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(data_path(1))
    busy = BusyStore(memory_place.store, after_listing=lambda: memory_place.write(data_path(2)))  # old as it looks
    GarbageCollector(busy).collect_once()
    assert memory_place.data() == {data_path(2)}


def test_an_object_that_is_enqueued_after_the_listing_is_kept(memory_place: Place) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(data_path(1))
    busy = BusyStore(memory_place.store, after_listing=lambda: memory_place.enqueue(data_path(1)))
    GarbageCollector(busy).collect_once()
    assert memory_place.data() == {data_path(1)}
