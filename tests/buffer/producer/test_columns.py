"""`produce` of a `pyarrow.RecordBatch`: the columns of records go in as they are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock import ObjectStore, Record
from penstock.buffer import decode_batch
from penstock.errors import InvalidInput
from penstock.records import HEADERS_TYPE, records_from_arrow, records_to_arrow, values_to_arrow
from tests.buffer.producer.conftest import OpenProducer
from tests.support.buffer_contents import batches, data_objects, entries, queue
from tests.support.processes import PATIENCE

RECORDS = [
    Record(b"a", key=b"k", headers=[("h", b"1"), ("h", b"2")], timestamp_ms=5),
    Record(b""),
    Record(b"c", headers=[]),
]


def stored(store: ObjectStore) -> list[Record]:
    """All records, in the queue's order."""
    found = [decode_batch(store.get(entry.location).data) for entry in queue(store)]
    return [record for batch in found for record in records_from_arrow(batch)]


def test_columns_are_stored_as_the_records_they_are(store: ObjectStore, open_producer: OpenProducer) -> None:
    with open_producer(store, format="arrow") as producer:
        producer.produce(records_to_arrow(RECORDS))
    assert stored(store) == RECORDS


def test_a_slice_of_columns_is_stored_alone(memory: ObjectStore, open_producer: OpenProducer) -> None:
    with open_producer(memory, format="arrow") as producer:
        producer.produce(records_to_arrow(RECORDS).slice(1, 1))
    assert stored(memory) == RECORDS[1:2]


def test_columns_in_another_order_are_stored_in_that_of_records(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    columns = records_to_arrow(RECORDS)
    with open_producer(memory, format="arrow") as producer:
        producer.produce(columns.select(list(reversed(columns.schema.names))))
    (entry,) = queue(memory)
    assert decode_batch(memory.get(entry.location).data).equals(columns)


def test_columns_come_between_entries_in_the_order_of_the_calls(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    with open_producer(memory, format="arrow") as producer:
        producer.produce(b"first")
        producer.produce(values_to_arrow([b"second", b"third"]))
        producer.produce([b"fourth"])
        producer.produce(records_to_arrow([Record(b"fifth", key=b"k")]))
    assert batches(memory) == [[b"first", b"second", b"third", b"fourth", b"fifth"]]


def test_the_handle_of_columns_says_where_they_are(memory: ObjectStore, open_producer: OpenProducer) -> None:
    with open_producer(memory, flush_size_bytes=1) as producer:
        written = producer.produce(values_to_arrow([b"a"])).result(PATIENCE)
    assert written.location == queue(memory)[0].location


def test_metadata_of_columns_start_at_their_first_row(memory: ObjectStore, open_producer: OpenProducer) -> None:
    with open_producer(memory, clock=lambda: 1.0) as producer:
        producer.produce(values_to_arrow([b"a", b"b"]), b"one")
        producer.produce(values_to_arrow([b"c"]), b"two")
    assert [(item.start_index, item.payload) for item in queue(memory)[0].metadata] == [(0, b"one"), (2, b"two")]


def test_the_bytes_of_columns_end_a_batch(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, flush_size_bytes=10)
    producer.produce(values_to_arrow([b"12345", b"67890"])).result(PATIENCE)
    assert batches(memory) == [[b"12345", b"67890"]]


def test_a_slice_counts_with_its_own_bytes(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, flush_size_bytes=10)
    producer.produce(values_to_arrow([b"x" * 100, b"1"]).slice(1, 1))
    assert data_objects(memory) == set()


def test_keys_headers_and_timestamps_count_too(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, flush_size_bytes=24, format="arrow")
    columns = records_to_arrow([Record(b"", key=b"k" * 24)])
    assert producer.produce(columns).result(PATIENCE).sequence == 0


def test_more_than_a_batch_may_have_is_refused_and_nothing_is_produced(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(memory, flush_size_bytes=10, max_batch_bytes=20)
    with pytest.raises(InvalidInput, match="20"):
        producer.produce(values_to_arrow([b"x" * 21]))
    producer.close()
    assert entries(memory) == []


NULL = pa.array([b"a", None], pa.binary())
BAD = {
    "no rows": values_to_arrow([]),
    "no value": pa.record_batch({"key": pa.array([b"k"], pa.binary())}),
    "value of text": pa.record_batch({"value": ["text"]}),
    "large binary": pa.record_batch({"value": pa.array([b"a"], pa.large_binary())}),
    "another column": pa.record_batch({"value": pa.array([b"a"], pa.binary()), "more": [1]}),
    "a column twice": pa.RecordBatch.from_arrays([NULL.slice(0, 1)] * 2, names=["value", "value"]),
    "a null value": pa.record_batch({"value": NULL}),
    "a null header": pa.record_batch(
        {"value": NULL.slice(0, 1), "headers": pa.array([[{"key": "h", "value": None}]], HEADERS_TYPE)}
    ),
    "a timestamp in seconds": pa.record_batch(
        {"value": NULL.slice(0, 1), "timestamp": pa.array([1], pa.timestamp("s", tz="UTC"))}
    ),
    "a table": pa.table({"value": NULL.slice(0, 1)}),
}


@pytest.mark.parametrize("what", BAD)
def test_what_are_no_columns_of_records_is_refused(memory: ObjectStore, open_producer: OpenProducer, what: str) -> None:
    columns: Any = BAD[what]
    with pytest.raises(InvalidInput):
        open_producer(memory).produce(columns)


def test_nulls_outside_a_slice_do_not_matter(memory: ObjectStore, open_producer: OpenProducer) -> None:
    with open_producer(memory) as producer:
        producer.produce(pa.record_batch({"value": NULL}).slice(0, 1))
    assert entries(memory) == [b"a"]


def test_keys_are_refused_where_the_format_has_values_alone(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, format="opendata")
    with pytest.raises(InvalidInput, match="key"):
        producer.produce(records_to_arrow([Record(b"a", key=b"k")]))


def test_values_alone_are_accepted_where_the_format_has_values_alone(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    with open_producer(memory, format="opendata") as producer:
        producer.produce(values_to_arrow([b"a", b"b"]))
    assert entries(memory) == [b"a", b"b"]
