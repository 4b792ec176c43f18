"""Appending on version 1: evidence by names and locations that are still queued, and objects that get too old."""

from __future__ import annotations

import pytest

from penstock import Consumer, Producer
from penstock.buffer import ConsumerConfig, GarbageCollector, Manifest
from penstock.buffer.producer.block_appender import BlockName
from penstock.errors import InvalidInput, NotFound, OutcomeUnknown
from penstock.storage import MemoryStore, ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.support.appended_blocks import DEADLINE, NAME, Time, appender, locations, queued, write
from tests.support.hooked_store import HookedStore

MANIFESTS = ["opendata"]


def test_the_same_objects_without_a_name_are_not_appended_again(store: ObjectStore) -> None:
    written = write(store, b"a", b"b")
    appender(store).append(written)

    assert not appender(store).append(written)

    assert queued(store) == [b"a", b"b"]


def test_a_block_with_a_number_below_the_last_one_is_refused_while_that_one_is_queued(memory: ObjectStore) -> None:
    appender(memory).append(write(memory, b"a"), NAME)

    with pytest.raises(InvalidInput, match=f"'query' comes with transaction 0, and {NAME.transaction} is its last one"):
        appender(memory).append(write(memory, b"b"), BlockName("query", 0))

    assert queued(memory) == [b"a"]


@pytest.mark.parametrize("writer", ["query2", "quer", "other", 'que"ry', "query\\"])
def test_the_numbers_of_other_writers_do_not_matter(memory: ObjectStore, writer: str) -> None:
    appender(memory).append(write(memory, b"a"), BlockName(writer, 70))

    assert appender(memory).append(write(memory, b"b"), BlockName("query", 0))


def test_a_users_own_payload_that_looks_like_a_later_block_is_no_later_block(memory: ObjectStore) -> None:
    with Producer(memory) as producer:
        producer.produce(b"a", metadata=b'is {"writer":"query","transaction":70} a name?')

    assert appender(memory).append(write(memory, b"b"), BlockName("query", 0))


def test_a_block_is_known_by_its_last_entry(memory: ObjectStore) -> None:
    written = write(memory, b"a", b"b")
    for name in (NAME, None):
        appender(memory).append(written, name)
    with Consumer(memory) as consumer:
        consumer.next_batch()
        consumer.ack_through(0)

    assert not appender(memory).append(write(memory, b"a", b"b"), NAME)
    assert not appender(memory).append(written)


def test_a_block_that_was_dequeued_is_appended_again(memory: ObjectStore) -> None:
    written = write(memory, b"a")
    appender(memory).append(written, NAME)
    with Consumer(memory) as consumer:
        consumer.next_batch()
        consumer.ack_through(0)

    assert appender(memory).append(written, NAME)


# Objects that get old.


def test_an_old_object_is_written_again_before_it_is_named(store: ObjectStore) -> None:
    time = Time()
    old = write(store, b"old", time=time)
    time.passes(DEADLINE * 2 / 3 + 1)
    young = write(store, b"young", time=time)

    assert appender(store, time).append([*old, *young], NAME)

    assert queued(store) == [b"old", b"young"]
    assert locations(store)[0] not in {old[0].location, young[0].location}
    assert locations(store)[1] == young[0].location
    assert Manifest.read(store).entries[0].metadata[0].ingestion_time_ms == int(old[0].began * 1000)


@pytest.mark.parametrize("name", [NAME, None])
def test_an_object_whose_time_passes_in_the_middle_is_written_again(
    memory: ObjectStore, name: BlockName | None
) -> None:
    time = Time()
    written = write(memory, b"a", b"b", time=time)
    hooked = HookedStore(memory)
    hooked.after("read manifest", lambda: time.passes(DEADLINE), times=1)

    assert appender(hooked, time).append(written, name)

    assert queued(memory) == [b"a", b"b"]
    assert not set(locations(memory)) & {one.location for one in written}


def test_a_try_that_arrives_late_and_one_of_new_objects_leave_one_block(memory: ObjectStore) -> None:
    time = Time()
    written = write(memory, b"a", b"b", time=time)
    faulty = FaultyStore(memory, rates={}, max_late=100)
    faulty.inject(Fault.LATE, path="ingest/manifest")
    hooked = HookedStore(faulty)
    # The first try is late, and time passes. It takes effect when the objects are written again.
    hooked.after("write manifest", lambda: time.passes(DEADLINE), times=1)
    hooked.after("write data", faulty.settle, skip=1, times=1)

    assert appender(hooked, time).append(written)

    assert locations(memory) == [one.location for one in written]


def test_an_object_that_is_gone_is_named_and_nothing_is_enqueued(memory: ObjectStore) -> None:
    time = Time()
    written = write(memory, b"a", b"b", time=time)
    memory.delete([written[1].location])
    time.passes(DEADLINE)

    with pytest.raises(NotFound, match=written[1].location):
        appender(memory, time).append(written, NAME)

    assert Manifest.read(memory).next_sequence == 0


def test_an_object_from_a_host_whose_clock_is_far_ahead_counts_as_old(memory: ObjectStore) -> None:
    time = Time()
    written = write(memory, b"a", time=Time(time.now + DEADLINE))

    appender(memory, time).append(written)

    assert locations(memory) != [written[0].location]


def test_a_store_that_is_always_too_slow_fails_the_append(memory: ObjectStore) -> None:
    time = Time()
    hooked = HookedStore(memory)
    hooked.after("read manifest", lambda: time.passes(DEADLINE))

    with pytest.raises(OutcomeUnknown, match="not known to be enqueued"):
        appender(hooked, time).append(write(memory, b"a", time=time), NAME)

    assert Manifest.read(memory).next_sequence == 0


def test_a_collector_between_reading_and_writing_the_manifest_deletes_nothing_of_an_old_block(fresh_name: str) -> None:
    time = Time()
    memory = MemoryStore(fresh_name, clock=time)
    written = write(memory, b"a", b"b", time=time)
    time.passes(ConsumerConfig().gc_grace_period + 1)
    appender(memory, time).append(write(memory, b"before", time=time))
    hooked = HookedStore(memory)
    collected: list[int] = []
    hooked.before("write manifest", lambda: collected.append(GarbageCollector(memory).collect_once().deleted))

    assert appender(hooked, time).append(written, NAME)

    assert collected == [2]
    assert queued(memory) == [b"before", b"a", b"b"]
