"""What the manifest says of a batch: when its entries were ingested, and what their callers attached."""

from __future__ import annotations

import itertools

import pytest

from penstock import Metadata, ObjectStore, Record
from penstock.errors import InvalidInput
from tests.buffer.producer.conftest import OpenProducer
from tests.support.buffer_contents import queue

NOON = 1_700_000_000.5


def test_each_call_has_its_item_with_its_start_its_time_and_its_payload(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(store, clock=itertools.count(NOON, 1).__next__)
    producer.produce([b"a", b"b", b"c"], b"first")
    producer.produce(b"d", b"second")
    producer.produce([b"e", Record(b"f")], b"second")
    producer.produce(b"g")
    producer.produce(b"h")
    producer.flush()
    assert [entry.metadata for entry in queue(store)] == [
        (
            Metadata(0, 1_700_000_000_500, b"first"),
            Metadata(3, 1_700_000_001_500, b"second"),
            Metadata(4, 1_700_000_002_500, b"second"),
            Metadata(6, 1_700_000_003_500, b""),
            Metadata(7, 1_700_000_004_500, b""),
        )
    ]


def test_before_1970_too_a_call_has_its_own_time_and_payload(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, clock=itertools.count(-10.0, 5).__next__)
    producer.produce(b"a", b"first")
    producer.produce(b"b")
    producer.flush()
    assert [entry.metadata for entry in queue(memory)] == [(Metadata(0, -10_000, b"first"), Metadata(1, -5_000, b""))]


@pytest.mark.parametrize("payload", [b"", b"same"])
def test_neighbours_with_the_same_time_and_payload_share_an_item(
    store: ObjectStore, open_producer: OpenProducer, payload: bytes
) -> None:
    producer = open_producer(store, clock=lambda: NOON)
    for given in (b"a", b"b", [b"c", b"d"], "e", b"f"):
        producer.produce(given, payload)
    producer.flush()
    assert [entry.metadata for entry in queue(store)] == [(Metadata(0, 1_700_000_000_500, payload),)]


def test_only_neighbours_share_an_item(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, clock=lambda: NOON)
    for payload in (b"a", b"b", b"b", b"a", b"", b"", b"a"):
        producer.produce(b"x", payload)
    producer.flush()
    items = [(item.start_index, item.payload) for item in queue(memory)[0].metadata]
    assert items == [(0, b"a"), (1, b"b"), (3, b"a"), (4, b""), (6, b"a")]


def test_a_thousand_small_calls_at_one_time_make_one_item(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, clock=lambda: NOON)
    for _ in range(1000):
        producer.produce(b"x")
    producer.flush()
    assert [len(entry.metadata) for entry in queue(memory)] == [1]


def test_each_batch_counts_its_entries_from_zero(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, clock=lambda: NOON)
    for given in ([b"a", b"b"], [b"c"]):
        producer.produce(given, b"p")
        producer.flush()
    assert [entry.metadata for entry in queue(memory)] == [(Metadata(0, 1_700_000_000_500, b"p"),)] * 2


def test_the_handle_says_the_time_that_the_manifest_says(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, clock=itertools.count(NOON, 1).__next__)
    handles = [producer.produce(b"x", payload) for payload in (b"", b"", b"long", b"")]
    producer.flush()
    times = [item.ingestion_time_ms for item in queue(store)[0].metadata]
    assert [handle.ingestion_time_ms for handle in handles] == times == [1_700_000_000_500 + n * 1000 for n in range(4)]


def test_a_payload_of_any_bytes_is_kept(store: ObjectStore, open_producer: OpenProducer) -> None:
    payload = bytes(range(256)) * 300
    producer = open_producer(store)
    producer.produce(b"x", payload)
    producer.flush()
    assert queue(store)[0].metadata[0].payload == payload


@pytest.mark.parametrize("bad", ["text", None, 5, bytearray(b"x")], ids=repr)
def test_metadata_that_are_no_bytes_are_refused_and_nothing_is_produced(
    memory: ObjectStore, open_producer: OpenProducer, bad: object
) -> None:
    producer = open_producer(memory)
    with pytest.raises(InvalidInput, match="metadata must be bytes"):
        producer.produce(b"x", bad)  # type: ignore[arg-type]
    producer.flush()
    assert queue(memory) == ()
