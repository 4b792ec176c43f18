"""Appending on version 2: the head has the last block of each writer, and the floor decides which objects are old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer
from penstock.buffer import ConsumerConfig, GarbageCollector, Manifest
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.groups import Writers
from penstock.buffer.locations import location_time
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Limits
from penstock.buffer.manifest.upgrade import upgrade
from penstock.buffer.producer.block_appender import BlockAppender, BlockName, WrittenObject
from penstock.errors import CorruptData, InvalidInput, NotFound, OutcomeUnknown
from penstock.records import values_to_arrow
from penstock.storage import LocalStore, MemoryStore, ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.support import manifests
from tests.support.appended_blocks import DEADLINE, NAME, Time, appender, locations, objects_in, queued, write
from tests.support.enqueuing import enqueue
from tests.support.hooked_store import HookedStore
from tests.support.processes import Parent, Start

MANIFESTS = ["native"]
GRACE = ConsumerConfig().gc_grace_period
MANIFEST = "ingest/manifest"


def drain(store: ObjectStore) -> None:
    """Consume all there is, and ack it."""
    with Consumer(store, ConsumerConfig(gc=False)) as consumer:
        for batch in consumer:
            batch.ack()


def count(store: ObjectStore) -> int:
    """How many entries were ever enqueued."""
    return Manifest.read(store).next_sequence


def test_a_block_that_was_dequeued_is_not_appended_again(store: ObjectStore) -> None:
    written = write(store, b"a", b"b")
    appender(store).append(written, NAME)
    drain(store)

    assert not appender(store).append(written, NAME)
    assert not appender(store).append(write(store, b"a", b"b"), NAME)

    assert count(store) == 2


def test_a_block_that_was_dequeued_and_collected_is_not_appended_again(fresh_name: str) -> None:
    time = Time()
    memory = MemoryStore(fresh_name, clock=time)
    written = write(memory, b"a", time=time)
    appender(memory, time).append(written, NAME)
    drain(memory)
    collect_all(memory, time)
    assert not objects_in(memory)

    assert not appender(memory, time).append(written, NAME)  # its object is not needed

    assert count(memory) == 1


@pytest.mark.parametrize("older", [0, 4, 6])
@pytest.mark.parametrize("is_dequeued", [False, True])
def test_a_block_before_the_last_one_of_its_writer_is_refused_for_it_may_never_have_been_appended(
    memory: ObjectStore, older: int, is_dequeued: bool
) -> None:
    appender(memory).append(write(memory, b"a"), BlockName("query", 7))
    if is_dequeued:
        drain(memory)

    with pytest.raises(InvalidInput, match=rf"'query' comes with transaction {older}, and 7 is its last"):
        appender(memory).append(write(memory, b"old"), BlockName("query", older))

    assert count(memory) == 1


def test_writers_do_not_count_for_each_other(memory: ObjectStore) -> None:
    appender(memory).append(write(memory, b"a"), BlockName("one", 7))

    assert appender(memory).append(write(memory, b"b"), BlockName("two", 0))
    assert not appender(memory).append(write(memory, b"b"), BlockName("two", 0))

    assert queued(memory) == [b"a", b"b"]


def test_a_writer_that_was_dropped_begins_again(memory: ObjectStore) -> None:
    appender(memory).append(write(memory, b"a"), NAME)
    Writers(memory).drop(NAME.writer)

    assert appender(memory).append(write(memory, b"b"), NAME)


LOST_REPLIES = [Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT]


@pytest.mark.parametrize("fault", LOST_REPLIES)
@pytest.mark.parametrize("name", [NAME, None])
def test_a_block_whose_reply_was_lost_and_that_is_dequeued_at_once_is_there_once(
    memory: ObjectStore, fault: Fault, name: BlockName | None
) -> None:
    written = write(memory, b"a", b"b")
    faulty = FaultyStore(memory, rates={}, third_party=lambda store, path: drain(memory))
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    faulty.inject(Fault.THIRD_PARTY_AFTER, operation="put_if_match", path=MANIFEST)

    appender(faulty).append(written, name)

    assert not faulty.planned
    assert count(memory) == 2


@pytest.mark.parametrize("fault", LOST_REPLIES)
def test_an_appender_that_died_of_a_lost_reply_is_followed_by_one_that_appends_nothing(
    memory: ObjectStore, fault: Fault
) -> None:
    written = write(memory, b"a", b"b")
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    dying = HookedStore(faulty)
    dying.after("write manifest", lambda: dying.before("read manifest", _die))
    with pytest.raises(_Died):
        appender(dying).append(written, NAME)
    assert not faulty.planned
    drain(memory)

    assert not appender(memory).append(write(memory, b"a", b"b"), NAME)

    assert count(memory) == 2


class _Died(BaseException):
    """Ends an appender as a kill would."""


def _die() -> None:
    raise _Died


def append_and_be_killed(parent: Parent, root: str, written: list[WrittenObject]) -> None:
    """Append a block, and wait to be killed before the append returns."""

    def stay() -> None:
        parent.tell("appended")
        parent.wait()

    store = HookedStore(LocalStore(root))
    store.after("write manifest", stay)
    BlockAppender(store).append(written, NAME)


def append_in_another_process(parent: Parent, root: str, values: list[bytes]) -> bool:
    """Write the same block, and append it."""
    store = LocalStore(root)
    return appender(store).append(write(store, *values), NAME)


@pytest.mark.parametrize("is_dequeued", [False, True])
def test_a_block_of_a_process_that_was_killed_is_not_appended_by_the_next_one(
    tmp_path: Path, start: Start, is_dequeued: bool
) -> None:
    store = LocalStore(tmp_path)
    victim = start(append_and_be_killed, str(tmp_path), write(store, b"a", b"b"))
    assert victim.hear() == "appended"
    victim.kill()
    if is_dequeued:
        drain(store)

    assert start(append_in_another_process, str(tmp_path), [b"a", b"b"]).answer() is False

    assert count(store) == 2


# Another block under the same name.


def test_another_block_under_the_same_name_is_corrupt_data_while_the_first_is_queued(memory: ObjectStore) -> None:
    appender(memory).append(write(memory, b"a"), BlockName("query", 1, end="10"))

    with pytest.raises(CorruptData, match="the checkpoint has lost what it had planned"):
        appender(memory).append(write(memory, b"b"), BlockName("query", 1, end="11"))

    assert queued(memory) == [b"a"]


def test_the_same_end_is_the_same_block(memory: ObjectStore) -> None:
    name = BlockName("query", 1, end="10")
    appender(memory).append(write(memory, b"a"), name)

    assert not appender(memory).append(write(memory, b"a"), name)


def test_another_end_is_not_noticed_once_the_first_is_dequeued_and_is_not_appended_either(memory: ObjectStore) -> None:
    appender(memory).append(write(memory, b"a"), BlockName("query", 1, end="10"))
    drain(memory)

    assert not appender(memory).append(write(memory, b"b"), BlockName("query", 1, end="11"))

    assert count(memory) == 1


def test_a_block_that_is_there_is_found_though_its_segment_is_collected_before_it_is_compared(fresh_name: str) -> None:
    time = Time()
    memory = MemoryStore(fresh_name, clock=time)
    appender(memory, time).append(write(memory, b"a", time=time), NAME)
    seals = [NewEntry(f"ingest/{number}", ()) for number in range(Limits().tail_entries)]
    enqueue(BufferQueue(memory, "ingest/manifest", "producer"), seals)
    assert Manifest.read(memory).head.segments  # type: ignore[union-attr]
    again = write(memory, b"a", time=time)
    hooked = HookedStore(memory)

    def consume_and_collect() -> None:
        with Consumer(memory, ConsumerConfig(gc=False)) as consumer:
            consumer.next_descriptors(1_000)
            consumer.ack_through(len(seals))
        collect_all(memory, time)

    hooked.before("read manifest", consume_and_collect, skip=2, times=1)  # twice the head, and then the segment

    assert not appender(hooked, time).append(again, NAME)

    assert count(memory) == 1 + len(seals)


# Objects that get old, and the floor.


def collect_all(store: ObjectStore, time: Time) -> None:
    """Run the cycles that it takes to delete what can be deleted now."""
    time.passes(GRACE + 1)
    for _ in range(3):
        GarbageCollector(store, clock=time).collect_once()
        time.passes(GRACE)


def set_floor(store: ObjectStore, time: Time) -> int:
    """Let the floor rise over all that was written so far, without applying it yet."""
    time.passes(GRACE + 1)
    GarbageCollector(store, clock=time).collect_once()
    head = Manifest.read(store).head
    assert head is not None
    assert head.floor > 0
    return head.floor


def test_an_object_of_any_age_is_named_as_it_is_while_it_is_above_the_floor(memory: ObjectStore) -> None:
    time = Time()
    appender(memory, time).append(write(memory, b"before", time=time))
    written = write(memory, b"a", time=time)
    time.passes(100 * DEADLINE)

    assert appender(memory, time).append(written, NAME)

    assert locations(memory)[1:] == [written[0].location]


def test_of_what_was_written_before_an_upgrade_the_age_counts(memory: ObjectStore) -> None:
    """A collector may have listed the objects when the manifest was version 1."""
    time = Time()
    with manifests.new_buffers_are("opendata"):
        written = write(memory, b"a", time=time)
    upgrade(memory)
    time.passes(DEADLINE)

    assert appender(memory, time).append(written, NAME)

    assert locations(memory) != [written[0].location]
    assert queued(memory) == [b"a"]


@pytest.mark.parametrize("name", [NAME, None])
def test_a_try_that_arrives_late_and_one_of_new_objects_leave_one_block(
    memory: ObjectStore, name: BlockName | None
) -> None:
    time = Time()
    with manifests.new_buffers_are("opendata"):
        written = write(memory, b"a", b"b", time=time)
    upgrade(memory)
    faulty = FaultyStore(memory, rates={}, max_late=100)
    faulty.inject(Fault.LATE, path=MANIFEST)
    hooked = HookedStore(faulty)
    # The first try is late, and time passes. It takes effect when the objects are written again.
    hooked.after("write manifest", lambda: time.passes(DEADLINE), times=1)
    hooked.after("write data", faulty.settle, skip=1, times=1)

    assert appender(hooked, time).append(written, name)

    assert locations(memory) == [one.location for one in written]


def test_a_store_that_never_replies_ends_in_an_error(memory: ObjectStore) -> None:
    time = Time()
    appender(memory, time).append(write(memory, b"before", time=time))
    written = write(memory, b"a", time=time)
    hooked = HookedStore(memory)

    def lose() -> None:
        time.passes(DEADLINE / 3)
        raise OutcomeUnknown("no reply")

    hooked.before("write manifest", lose)

    with pytest.raises(OutcomeUnknown, match="not known to be enqueued"):
        appender(hooked, time).append(written, NAME)

    assert queued(memory) == [b"before"]


@pytest.mark.parametrize(
    ("writer", "transaction"),
    [
        ("", 1),
        ("a\nb", 1),
        ("x" * 129, 1),
        ("\ud800", 1),
        (None, 1),
        ("a", -1),
        ("a", True),
        ("a", "7"),
        ("a", 1 << 63),
    ],
)
def test_a_name_that_a_manifest_cannot_hold_is_refused(writer: Any, transaction: Any) -> None:
    with pytest.raises(InvalidInput, match=r"(writer|transaction) must be"):
        BlockName(writer, transaction)


@pytest.mark.parametrize("name", [NAME, None])
def test_objects_below_the_floor_are_written_again(memory: ObjectStore, name: BlockName | None) -> None:
    time = Time()
    appender(memory, time).append(write(memory, b"before", time=time))
    drain(memory)
    old = write(memory, b"a", b"b", time=time)
    floor = set_floor(memory, time)
    young = write(memory, b"c", time=time)

    assert appender(memory, time).append([*old, *young], name)

    assert queued(memory) == [b"a", b"b", b"c"]
    assert not set(locations(memory)) & {one.location for one in old}
    assert locations(memory)[2] == young[0].location
    assert all((location_time(location) or 0) > floor for location in locations(memory))
    collect_all(memory, time)
    assert queued(memory) == [b"a", b"b", b"c"]


def test_an_entry_that_is_written_again_keeps_its_time_and_its_size(memory: ObjectStore) -> None:
    time = Time()
    appender(memory, time).append(write(memory, b"before", time=time))
    drain(memory)
    (old,) = write(memory, b"a", time=time)
    set_floor(memory, time)

    appender(memory, time).append([old], NAME)

    (entry,) = Manifest.read(memory).entries
    assert (entry.size, entry.records) == (old.size, old.records)
    assert entry.metadata[0].ingestion_time_ms == int(old.began * 1000)


def test_a_floor_that_rises_between_reading_and_writing_the_manifest_is_respected(memory: ObjectStore) -> None:
    time = Time()
    appender(memory, time).append(write(memory, b"before", time=time))
    drain(memory)
    written = write(memory, b"a", b"b", time=time)
    hooked = HookedStore(memory)
    hooked.before("write manifest", lambda: set_floor(memory, time), times=1)

    assert appender(hooked, time).append(written, NAME)

    assert not set(locations(memory)) & {one.location for one in written}
    collect_all(memory, time)
    assert queued(memory) == [b"a", b"b"]


@pytest.mark.parametrize("name", [NAME, None])
def test_an_object_below_the_floor_that_is_gone_is_named_and_nothing_is_enqueued(
    memory: ObjectStore, name: BlockName | None
) -> None:
    time = Time()
    appender(memory, time).append(write(memory, b"before", time=time))
    drain(memory)
    old = write(memory, b"a", time=time)
    collect_all(memory, time)
    assert old[0].location not in objects_in(memory)
    before = memory.get(MANIFEST)

    with pytest.raises(NotFound, match=old[0].location):
        appender(memory, time).append([*old, *write(memory, b"young", time=time)], name)

    assert memory.get(MANIFEST) == before
    assert count(memory) == 1


def test_a_writer_whose_clock_is_a_day_behind_names_above_the_floor_at_once(memory: ObjectStore) -> None:
    time = Time()
    appender(memory, time).append(write(memory, b"before", time=time))
    drain(memory)
    write(memory, b"orphan", time=time)
    floor = set_floor(memory, time)
    behind = appender(memory, Time(time.now - 86_400))

    written = behind.write(values_to_arrow([b"a"]))
    assert (location_time(written.location) or 0) > floor
    assert behind.append([written], NAME)

    assert locations(memory) == [written.location]


def test_an_object_from_a_host_whose_clock_is_far_ahead_is_named_as_it_is(memory: ObjectStore) -> None:
    time = Time()
    appender(memory, time).append(write(memory, b"before", time=time))
    written = write(memory, b"a", time=Time(time.now + DEADLINE))

    assert appender(memory, time).append(written)

    assert locations(memory)[1:] == [written[0].location]
