"""On version 2 a cycle raises the floor, and one a grace period later deletes what is below it. Nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from penstock.buffer import (
    Consumer,
    ConsumerConfig,
    GarbageCollector,
    GcReport,
    Manifest,
)
from penstock.buffer.groups import Groups
from penstock.buffer.locations import location_time
from penstock.buffer.manifest.v2.head import Head
from penstock.errors import InvalidInput, StorageError
from penstock.storage import ObjectMeta, ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.collector.buffer_with_clock import DAY, FOLDER, MILLISECOND, Buffer
from tests.support.dated_buffer import GRACE, GRACE_MS, MANIFEST, NOW_MS, OWNER, PREFIX, DatedBuffer, named_at
from tests.support.filled_buffers import no_gc
from tests.support.minimal_stores import BusyStore, RecordingStore

MANIFESTS = ["native"]


# Setting a floor, and applying it.


def test_a_cycle_sets_the_floor_and_one_a_grace_period_later_applies_it(dated: DatedBuffer) -> None:
    buffer = Buffer(dated.store)
    old = buffer.orphan(-GRACE - 1)
    (young,) = buffer.produce(b"entry")
    assert buffer.collect() == GcReport(deleted=0, failed=0, kept=2)
    assert (buffer.head.floor, buffer.head.floor_set_at) == (NOW_MS - GRACE_MS, NOW_MS)
    assert old in buffer.data()
    buffer.time.passes(GRACE)
    assert buffer.collect() == GcReport(deleted=1, failed=0, kept=1)
    assert buffer.paths() == {young.location, MANIFEST, OWNER}


def test_a_reader_that_acks_while_a_cycle_deletes_has_a_grace_period_from_then_on(buffer: Buffer) -> None:
    buffer.fill(3)
    buffer.ack(1)
    buffer.time.passes(GRACE + 1)
    buffer.produce(b"young")
    buffer.collect()
    buffer.time.passes(GRACE)
    buffer.ack(1)
    held = Manifest.read(buffer.store).entries[0].location

    def slowly() -> None:
        buffer.time.passes(2 * GRACE)
        buffer.ack(1)

    assert buffer.collect(BusyStore(buffer.store, before_deleting=slowly)).deleted == 1
    buffer.time.passes(GRACE - MILLISECOND)
    buffer.collect()
    assert held in buffer.data()
    buffer.time.passes(MILLISECOND)
    buffer.collect()
    assert held not in buffer.data()


@pytest.mark.parametrize("grace", [600.0, 601.5, DAY])
def test_the_grace_period_is_the_configured_one(buffer: Buffer, grace: float) -> None:
    old, young = buffer.orphan(-grace - MILLISECOND, 1), buffer.orphan(-grace, 2)
    buffer.produce(b"entry")
    collector = GarbageCollector(buffer.store, ConsumerConfig(gc_grace_period=grace), clock=buffer.time)
    collector.collect_once()
    buffer.time.passes(grace - MILLISECOND)
    assert collector.collect_once().deleted == 0
    buffer.time.passes(MILLISECOND)
    assert collector.collect_once().deleted == 1
    assert old not in buffer.data()
    assert young in buffer.data()


def test_any_collector_applies_the_floor_that_another_set(buffer: Buffer) -> None:
    old = buffer.orphan(-GRACE - 1)
    buffer.produce(b"entry")
    buffer.collect(skew=5.0)
    buffer.time.passes(GRACE + 5.0)
    buffer.collect()
    assert old not in buffer.data()


def test_a_collector_whose_clock_is_behind_does_not_apply_it_early(buffer: Buffer) -> None:
    old = buffer.orphan(-GRACE - 1)
    buffer.produce(b"entry")
    buffer.collect()
    buffer.time.passes(GRACE)
    assert buffer.collect(skew=-1.0).deleted == 0
    assert old in buffer.data()


def test_collectors_that_run_more_often_than_the_grace_period_do_not_postpone_it_for_ever(buffer: Buffer) -> None:
    buffer.orphan(-GRACE - 1)
    buffer.produce(b"entry")
    buffer.ack(1)
    deleted = 0
    for number in range(100):  # a cycle every sixth of a grace period, and always a new object to collect
        buffer.orphan(number=number + 1)
        deleted += buffer.collect().deleted
        buffer.time.passes(GRACE / 6)
    assert deleted > 70  # what is two grace periods old, by a cycle at most one later
    assert max(NOW_MS + round(buffer.time.seconds * 1000) - (location_time(path) or 0) for path in buffer.data()) <= (
        3 * GRACE_MS + GRACE_MS / 6
    )


def test_a_cycle_that_cannot_raise_the_floor_writes_nothing(buffer: Buffer) -> None:
    buffer.produce(b"entry")
    buffer.time.passes(DAY)
    watched = RecordingStore(buffer.store)
    before = buffer.store.get(MANIFEST)
    assert buffer.collect(watched) == GcReport(deleted=0, failed=0, kept=1)
    assert {operation for operation, _ in watched.calls} == {"get", "listed"}
    assert buffer.store.get(MANIFEST) == before


def test_the_floor_is_in_the_head_before_anything_is_deleted(buffer: Buffer) -> None:
    buffer.orphan(-GRACE - 1)
    buffer.produce(b"entry")
    floors: list[int] = []
    busy = BusyStore(buffer.store, before_deleting=lambda: floors.append(buffer.head.floor))
    for _ in range(3):
        buffer.collect(busy)
        buffer.time.passes(GRACE)
    assert floors == [NOW_MS - GRACE_MS]


def test_what_a_cycle_deletes_is_below_the_floor_that_it_read_and_not_below_one_set_meanwhile(buffer: Buffer) -> None:
    first, second = buffer.orphan(-GRACE - 1, 1), buffer.orphan(0.0, 2)
    buffer.produce(b"entry")
    buffer.ack(1)
    buffer.collect()
    buffer.time.passes(3 * GRACE)

    def another_cycle() -> None:
        buffer.collect()  # applies the same floor, and sets the next

    assert buffer.collect(BusyStore(buffer.store, before_deleting=another_cycle)).deleted == 1
    assert first not in buffer.data()
    assert second in buffer.data()


# What keeps the floor down.


def test_the_floor_is_not_above_what_is_queued(buffer: Buffer) -> None:
    (queued,) = buffer.produce(b"entry")
    buffer.time.passes(1)
    orphan = buffer.orphan()
    buffer.orphan(-10 * GRACE)
    buffer.time.passes(10 * GRACE)
    buffer.collect_all()
    assert buffer.head.floor == location_time(queued.location)
    assert buffer.data() == {queued.location, orphan}


def test_what_is_dequeued_lets_the_floor_rise(buffer: Buffer) -> None:
    written = buffer.produce(b"one")
    buffer.time.passes(GRACE)
    written += buffer.produce(b"two")
    buffer.ack(1)
    buffer.time.passes(10 * GRACE)
    buffer.collect_all()
    assert buffer.data() == {written[1].location}
    assert buffer.rest() == [b"two"]


def test_a_buffer_that_is_drained_is_empty_in_the_end(dated: DatedBuffer) -> None:
    buffer = Buffer(dated.store)
    buffer.produce(b"one", b"two")
    buffer.ack(2)
    buffer.time.passes(GRACE + 1)
    buffer.collect_all()
    assert buffer.paths() == {MANIFEST, OWNER}


def test_what_one_group_has_not_acked_keeps_the_floor_down(buffer: Buffer) -> None:
    (queued,) = buffer.produce(b"entry")
    Groups(buffer.store).create("audit")
    buffer.ack(1)
    buffer.time.passes(10 * GRACE)
    buffer.collect_all()
    assert buffer.data() == {queued.location}
    buffer.ack(1, "audit")
    buffer.collect_all()
    assert buffer.data() == set()


def test_a_reader_has_a_grace_period_after_the_dequeue(buffer: Buffer) -> None:
    buffer.produce(b"entry")
    buffer.orphan(-GRACE - 1)
    buffer.time.passes(10 * GRACE)
    for _ in range(3):
        buffer.collect()
        buffer.time.passes(GRACE)
    with Consumer(buffer.store, no_gc()) as consumer:
        (descriptor,) = consumer.next_descriptors(1)
        consumer.ack_through(0)
        buffer.collect()
        buffer.time.passes(GRACE - MILLISECOND)
        buffer.collect()
        assert consumer.fetch_handle().fetch(descriptor).entries == [b"entry"]


@pytest.mark.parametrize("skew", [-DAY, -3.0, 0.0, 3.0, DAY])
def test_the_floor_never_falls(buffer: Buffer, skew: float) -> None:
    floors = []
    for number in range(6):
        buffer.produce(b"%d" % number, skew=-DAY if number % 2 else DAY)
        buffer.orphan(-GRACE - 1 - number, number)
        buffer.collect(skew=skew if number % 2 else 0.0)
        buffer.ack(1)
        buffer.time.passes(GRACE + 1)
        floors.append(buffer.head.floor)
    assert floors == sorted(floors)
    assert floors[-1] > 0


def test_a_collector_whose_clock_is_behind_does_not_lower_the_floor(buffer: Buffer) -> None:
    buffer.orphan(-GRACE - 1)
    buffer.produce(b"entry")
    buffer.ack(1)
    buffer.collect()
    before = buffer.head
    buffer.orphan(-DAY, 1)
    buffer.time.passes(GRACE)
    buffer.collect(skew=-DAY / 2)
    assert buffer.head == before


def test_a_floor_that_another_collector_sets_meanwhile_is_not_lowered(buffer: Buffer) -> None:
    buffer.orphan(-3 * GRACE)
    buffer.produce(b"entry")
    listings = itertools.count(1)
    heads: list[Head] = []

    def another_cycle() -> None:
        if next(listings) == 2:  # the segments: it has read the head by then
            buffer.collect()
            heads.append(buffer.head)

    # By its own clock the floor that it found could go up, though not as far as the other one's.
    buffer.collect(BusyStore(buffer.store, after_listing=another_cycle), skew=-GRACE / 2)
    assert [head.floor for head in heads] == [NOW_MS - GRACE_MS]
    assert buffer.head == heads[0]


# No manifest, the prefix of another buffer, and stores that fail.


def test_without_a_manifest_nothing_is_deleted_and_no_head_is_created(buffer: Buffer) -> None:
    orphans = {buffer.orphan(-DAY, number) for number in range(3)}
    segment = f"{FOLDER}{0:020}-{named_at(0)}.seg"
    buffer.store.put(segment, b"data")
    for _ in range(3):
        assert buffer.collect() == GcReport(deleted=0, failed=0, kept=3)
        buffer.time.passes(GRACE)
    assert buffer.paths() == {*orphans, segment}


def test_a_collector_of_another_manifest_neither_deletes_nor_sets_a_floor(buffer: Buffer) -> None:
    old = buffer.orphan(-GRACE - 1)
    buffer.produce(b"entry")
    config = ConsumerConfig(manifest_path="other/manifest")
    Consumer(buffer.store, ConsumerConfig(gc=False, manifest_path="other/manifest")).close()
    before = buffer.store.get("other/manifest")
    for _ in range(3):
        with pytest.raises(InvalidInput, match="belongs to the buffer"):
            GarbageCollector(buffer.store, config, clock=buffer.time).collect_once()
        buffer.time.passes(GRACE)
    assert old in buffer.data()
    assert buffer.store.get("other/manifest") == before


def test_a_prefix_without_an_owner_is_claimed_before_the_first_segment_is_deleted(dated_memory: DatedBuffer) -> None:
    buffer = Buffer(dated_memory.store)
    dated_memory.enqueue(f"{PREFIX}/by-hand")
    segment = f"{FOLDER}{0:020}-{named_at(0)}.seg"
    buffer.store.put(segment, b"data")
    buffer.collect()
    buffer.time.passes(GRACE)
    watched = RecordingStore(buffer.store)
    buffer.collect(watched)
    assert watched.calls.index(("put_if_absent", OWNER)) < watched.calls.index(("delete", segment))


def test_a_delete_that_fails_is_tried_again_by_the_next_cycle_without_waiting_for_another_floor(buffer: Buffer) -> None:
    old = [buffer.orphan(-GRACE - 1, number) for number in range(3)]
    (entry,) = buffer.produce(b"entry")
    buffer.collect()
    buffer.time.passes(GRACE)
    faulty = FaultyStore(buffer.store, rates={})
    faulty.inject(Fault.ERROR_BEFORE, operation="delete", path=old[1])
    assert buffer.collect(faulty) == GcReport(deleted=2, failed=1, kept=1)
    assert buffer.data() == {old[1], entry.location}
    assert buffer.collect(faulty) == GcReport(deleted=1, failed=0, kept=1)


def test_a_delete_that_fails_is_tried_again_though_the_floor_has_gone_on(buffer: Buffer) -> None:
    first, second = buffer.orphan(-GRACE - 1, 1), buffer.orphan(-1.0, 2)
    buffer.produce(b"entry")
    buffer.collect()
    buffer.time.passes(GRACE)
    faulty = FaultyStore(buffer.store, rates={})
    faulty.inject(Fault.ERROR_BEFORE, operation="delete", path=first)
    assert buffer.collect(faulty).failed == 1
    assert buffer.head.floor == NOW_MS
    buffer.time.passes(GRACE)
    assert buffer.collect().deleted == 2
    assert buffer.data().isdisjoint({first, second})


@pytest.mark.parametrize(
    "fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT, Fault.THIRD_PARTY_BEFORE, Fault.LATE]
)
def test_the_floor_is_set_once_after_any_fault_of_its_write(buffer: Buffer, fault: Fault) -> None:
    buffer.orphan(-GRACE - 1)
    buffer.produce(b"entry")
    faulty = FaultyStore(buffer.store, rates={})
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    buffer.collect(faulty)
    assert not faulty.planned
    faulty.settle()
    assert (buffer.head.floor, buffer.head.floor_set_at) == (NOW_MS - GRACE_MS, NOW_MS)


def test_an_entry_that_comes_while_the_floor_is_being_set_is_not_below_it(buffer: Buffer) -> None:
    buffer.orphan(-2 * GRACE)
    buffer.produce(b"before")

    def enqueue(store: ObjectStore, path: str) -> None:
        buffer.produce(b"behind", skew=-GRACE - 1)

    faulty = FaultyStore(buffer.store, rates={}, third_party=enqueue)
    faulty.inject(Fault.THIRD_PARTY_BEFORE, operation="put_if_match", path=MANIFEST)
    buffer.collect(faulty)
    assert buffer.head.floor == NOW_MS - round((GRACE + 1) * 1000)
    buffer.time.passes(GRACE)
    buffer.collect()
    assert buffer.rest() == [b"before", b"behind"]


@pytest.mark.parametrize("listing", [1, 2])
def test_when_either_listing_breaks_off_nothing_is_deleted_and_no_floor_is_set(small: Buffer, listing: int) -> None:
    small.fill(8)
    small.ack(8)
    small.time.passes(10 * GRACE)
    small.collect()
    small.time.passes(GRACE)
    before, head = small.paths(), small.head
    broken = _EndsInTheMiddle(small.store, listing)
    with pytest.raises(StorageError, match="broke off"):
        small.collect(broken)
    assert (small.paths(), small.head) == (before, head)


class _EndsInTheMiddle(RecordingStore):
    """A store whose n-th listing ends in the middle."""

    def __init__(self, store: ObjectStore, number: int) -> None:
        super().__init__(store)
        self._listings = number

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        self._listings -= 1
        found = super().list_objects(prefix)
        yield next(found)
        if not self._listings:
            raise StorageError("the listing broke off")
        yield from found
