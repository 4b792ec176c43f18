"""Blocks: written by many, appended in one write, and distinguished by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Consumer, Producer
from penstock.buffer import Manifest, Metadata, ProducerConfig
from penstock.buffer.producer.block_appender import BlockAppender, BlockName, join_to_size
from penstock.errors import InvalidInput
from penstock.records import Record, records_from_arrow, records_to_arrow, size_of, values_to_arrow
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.support.appended_blocks import DEADLINE, NAME, Time, appender, locations, objects_in, queued, write
from tests.support.hooked_store import HookedStore
from tests.support.waiting import Background, Gate


def test_a_block_is_enqueued_in_order_and_read_back(store: ObjectStore) -> None:
    written = write(store, b"a", b"b", b"c")

    assert appender(store).append(written, NAME)

    assert locations(store) == [one.location for one in written]
    with Consumer(store) as consumer:
        assert [entry for batch in consumer for entry in batch.entries] == [b"a", b"b", b"c"]


def test_a_block_takes_one_manifest_write(memory: ObjectStore) -> None:
    hooked = HookedStore(memory)

    appender(hooked).append(write(memory, b"a", b"b", b"c"), NAME)

    assert hooked.count("write manifest") == 1


def test_a_written_object_has_its_number_of_records_and_bytes(memory: ObjectStore) -> None:
    time = Time()

    written = appender(memory, time).write(values_to_arrow([b"a", b"b"]))

    assert (written.records, written.size, written.began) == (2, memory.head(written.location).size, time.now)


def test_every_entry_carries_the_name_and_the_time_of_its_object(memory: ObjectStore) -> None:
    time = Time(1_700_000_000.25)
    written = write(memory, b"a", time=time)
    time.passes(1)
    written += write(memory, b"b", time=time)
    time.passes(1)

    appender(memory, time).append(written, BlockName('a "writer"', 7))

    payload = b'{"writer":"a \\"writer\\"","transaction":7}'
    assert [entry.metadata for entry in Manifest.read(memory).entries] == [
        (Metadata(0, 1_700_000_000_250, payload),),
        (Metadata(0, 1_700_000_001_250, payload),),
    ]


def test_a_block_without_a_name_carries_nothing(memory: ObjectStore) -> None:
    appender(memory).append(write(memory, b"a"))

    assert [item.payload for item in Manifest.read(memory).entries[0].metadata] == [b""]


@pytest.mark.parametrize("name", [NAME, None])
def test_a_block_without_objects_writes_nothing(memory: ObjectStore, name: BlockName | None) -> None:
    assert not appender(memory).append([], name)

    assert list(memory.list_objects()) == []


# Blocks that are appended again. What only one version does is in `test_appending_on_version_1.py` and `_2.py`.


def test_the_same_objects_again_are_not_appended(store: ObjectStore) -> None:
    written = write(store, b"a", b"b")
    appender(store).append(written, NAME)

    assert not appender(store).append(written, NAME)

    assert queued(store) == [b"a", b"b"]


def test_the_same_block_with_new_objects_leaves_them_as_orphans(store: ObjectStore) -> None:
    appender(store).append(write(store, b"a", b"b"), NAME)
    again = write(store, b"a", b"b")

    assert not appender(store).append(again, NAME)

    assert queued(store) == [b"a", b"b"]
    assert {one.location for one in again} <= objects_in(store)


@pytest.mark.parametrize("other", [BlockName("query", 2), BlockName("query", 11), BlockName("another", 1), None])
def test_a_block_of_another_name_is_another_block(memory: ObjectStore, other: BlockName | None) -> None:
    appender(memory).append(write(memory, b"a"), NAME)

    assert appender(memory).append(write(memory, b"b"), other)

    assert queued(memory) == [b"a", b"b"]


def test_a_name_within_the_metadata_of_another_entry_is_not_the_blocks(memory: ObjectStore) -> None:
    with Producer(memory) as producer:
        producer.produce(b"a", metadata=b"[" + NAME.payload + b"]")

    assert appender(memory).append(write(memory, b"b"), NAME)


def test_a_block_of_which_a_part_is_dequeued_is_known(memory: ObjectStore) -> None:
    appender(memory).append(write(memory, b"a", b"b"), NAME)
    with Consumer(memory) as consumer:
        consumer.next_batch()
        consumer.ack_through(0)

    assert not appender(memory).append(write(memory, b"a", b"b"), NAME)


def test_of_two_commits_of_a_block_at_once_one_stays(store: ObjectStore) -> None:
    first, second = write(store, b"a", b"b"), write(store, b"a", b"b")
    hooked, gate = HookedStore(store), Gate()
    hooked.before("write manifest", gate, times=1)  # it has read, and found nothing
    late = Background(lambda: appender(hooked).append(first, NAME))
    gate.wait_for_arrival()

    assert appender(store).append(second, NAME)
    gate.open()

    assert not late.result()
    assert locations(store) == [one.location for one in second]


def test_two_blocks_without_a_name_at_once_are_both_appended(memory: ObjectStore) -> None:
    first, second = write(memory, b"a"), write(memory, b"b")
    hooked, gate = HookedStore(memory), Gate()
    hooked.before("write manifest", gate, times=1)
    late = Background(lambda: appender(hooked).append(first))
    gate.wait_for_arrival()
    appender(memory).append(second)
    gate.open()

    assert late.result()
    assert queued(memory) == [b"b", b"a"]


WRITE_FAULTS = [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT, Fault.LATE]


@pytest.mark.parametrize("name", [NAME, None])
@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize("before", [[], [b"before"]])
def test_a_manifest_write_that_goes_wrong_leaves_one_block(
    memory: ObjectStore, before: list[bytes], fault: Fault, name: BlockName | None
) -> None:
    appender(memory).append(write(memory, *before))
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, path="ingest/manifest")

    assert appender(faulty).append(write(memory, b"a", b"b"), name)

    assert not faulty.planned
    faulty.settle()
    assert queued(memory) == [*before, b"a", b"b"]


# Objects that get old.


def test_an_object_is_named_as_it_is_until_two_thirds_of_its_time_are_over(memory: ObjectStore) -> None:
    time = Time()
    written = write(memory, b"a", time=time)
    time.passes(DEADLINE * 2 / 3 - 1)

    appender(memory, time).append(written)

    assert locations(memory) == [written[0].location]


def test_a_block_that_is_there_needs_its_old_objects_no_more(memory: ObjectStore) -> None:
    time = Time()
    appender(memory, time).append(write(memory, b"a", time=time), NAME)
    orphans = write(memory, b"a", time=time)
    memory.delete([orphans[0].location])
    time.passes(DEADLINE)

    assert not appender(memory, time).append(orphans, NAME)


def test_an_object_from_a_host_whose_clock_is_a_little_ahead_counts_as_young(memory: ObjectStore) -> None:
    time = Time()
    written = write(memory, b"a", time=Time(time.now + 5))

    appender(memory, time).append(written)

    assert locations(memory) == [written[0].location]


# What cannot be written.


def test_a_prefix_of_another_manifest_is_refused(memory: ObjectStore) -> None:
    write(memory, b"a")

    with pytest.raises(InvalidInput, match="belongs to the buffer"):
        BlockAppender(memory, ProducerConfig(manifest_path="other")).write(values_to_arrow([b"b"]))


def test_a_batch_beyond_max_batch_bytes_is_refused(memory: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="max_batch_bytes = 3"):
        BlockAppender(memory, ProducerConfig(max_batch_bytes=3)).write(values_to_arrow([b"four"]))

    assert list(memory.list_objects()) == []


# Sizes.


records = st.builds(
    Record,
    st.binary(max_size=6),
    key=st.none() | st.binary(max_size=3),
    headers=st.none() | st.lists(st.tuples(st.text(max_size=2), st.binary(max_size=2)), max_size=2),
    timestamp_ms=st.none() | st.integers(0, 9),
)


@given(st.lists(st.lists(records | st.binary(max_size=6), max_size=8), max_size=5), st.integers(1, 40))
def test_joining_to_a_size_keeps_all_records_in_order(given: Sequence[list[Record | bytes]], most: int) -> None:
    batches = [records_to_arrow(some) for some in given]

    joined = list(join_to_size(batches, most))

    assert [one for batch in joined for one in records_from_arrow(batch)] == [
        one for batch in batches for one in records_from_arrow(batch)
    ]


@given(st.lists(st.lists(st.binary(max_size=6), max_size=8), max_size=5), st.integers(1, 20))
def test_joined_batches_are_as_large_as_they_can_be_and_no_larger(given: list[list[bytes]], most: int) -> None:
    joined = list(join_to_size([values_to_arrow(some) for some in given], most))

    assert all(size_of(batch) <= most or batch.num_rows == 1 for batch in joined)
    assert all(size_of(one) + size_of(following.slice(0, 1)) > most for one, following in pairwise(joined))


def test_a_batch_of_empty_rows_is_bounded() -> None:
    most = 1 << 20  # rows of one object
    empty = values_to_arrow([b""] * (most - 1))

    joined = join_to_size([empty, empty, empty.slice(0, 4)], 100)

    assert [batch.num_rows for batch in joined] == [most, most, 2]


def test_joining_reads_no_more_than_it_needs() -> None:
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        while True:
            read += 1
            yield values_to_arrow([b"ab"])

    next(join_to_size(batches(), 4))

    assert read == 3
