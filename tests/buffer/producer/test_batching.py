"""When a batch ends (by its size, by its time, by a flush), and what its data object is."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

import pytest

from penstock import ObjectStore, Producer, Record, WriteHandle, open_store
from penstock.buffer import BatchFormat, Compression, Manifest, encode_batch
from tests.buffer.producer.conftest import OpenProducer
from tests.support.buffer_contents import batches, data_objects, queue
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE


def _is_done_within(handle: WriteHandle, seconds: float) -> bool:
    with suppress(TimeoutError):
        handle.result(seconds)
    return handle.done()


def test_a_batch_ends_when_it_has_its_size(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, flush_size_bytes=10)
    producer.produce(b"12345")
    producer.produce(b"67890").result(PATIENCE)
    assert batches(store) == [[b"12345", b"67890"]]


def test_a_batch_below_its_size_waits(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, flush_size_bytes=10)
    waiting = producer.produce(b"12345"), producer.produce(b"6789")
    with pytest.raises(TimeoutError):
        waiting[1].result(A_WHILE)
    assert data_objects(memory) == set()


def test_metadata_count_towards_the_size_of_a_batch(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, flush_size_bytes=10)
    first = producer.produce(b"1", b"four")
    assert producer.produce(b"2", b"four").result(PATIENCE) == first.result(PATIENCE)


@pytest.mark.parametrize(
    "record",
    [
        Record(b"v" * 24),
        Record(b"", key=b"k" * 24),
        Record(b"", headers=[("h" * 12, b"v" * 12)]),
        [Record(b"", timestamp_ms=0)] * 3,
    ],
    ids=["value", "key", "headers", "timestamps"],
)
def test_everything_that_a_record_has_counts_towards_the_size_of_a_batch(
    memory: ObjectStore, open_producer: OpenProducer, record: Record | list[Record]
) -> None:
    producer = open_producer(memory, flush_size_bytes=24, format="arrow")
    assert producer.produce(record).result(PATIENCE).sequence == 0


def test_small_calls_fill_a_batch_too(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, flush_size_bytes=100)
    handles = [producer.produce(b"x") for _ in range(300)]
    for handle in handles:
        handle.result(PATIENCE)
    assert [len(batch) for batch in batches(memory)] == [100, 100, 100]


def test_a_batch_ends_when_its_time_is_up(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, flush_interval=0.01)
    producer.produce(b"x").result(PATIENCE)
    assert batches(store) == [[b"x"]]


def test_an_interval_of_zero_flushes_at_once(memory: ObjectStore, open_producer: OpenProducer) -> None:
    assert open_producer(memory, flush_interval=0).produce(b"x").result(PATIENCE).sequence == 0


def test_the_time_of_a_batch_counts_from_its_first_entry_whatever_follows(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(
        memory, flush_interval=0.5, max_buffered_inputs=1 << 40, max_buffered_bytes=1 << 40, flush_size_bytes=1 << 40
    )
    first = producer.produce(b"first")
    give_up = time.monotonic() + PATIENCE
    while not _is_done_within(first, 0.005):
        assert time.monotonic() < give_up, "each call puts off the end of the batch"
        producer.produce(b"more")


def test_the_time_of_a_batch_does_not_count_from_the_batch_before(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(memory)
    producer.produce(b"x")
    producer.flush()
    with pytest.raises(TimeoutError):
        producer.produce(b"y").result(A_WHILE)


@pytest.mark.parametrize("interval", [1e9, 1e10, 1e300])
def test_an_interval_of_any_length_is_only_an_interval(
    memory: ObjectStore, open_producer: OpenProducer, interval: float
) -> None:
    producer = open_producer(memory, flush_interval=interval)
    handle = producer.produce(b"x")
    with pytest.raises(TimeoutError):
        handle.result(A_WHILE)  # for as long as this, a thread of the producer watches the time
    producer.flush()
    assert batches(memory) == [[b"x"]]


def test_a_flush_ends_a_batch(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store)
    producer.produce(b"x")
    producer.flush()
    producer.produce(b"y")
    producer.flush()
    assert batches(store) == [[b"x"], [b"y"]]


def test_a_flush_of_nothing_writes_nothing(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    open_producer(store).flush()
    assert not any(step.startswith("write") for step in store.steps)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("form", BatchFormat)
def test_a_data_object_is_a_batch_of_the_configured_format_and_compression(
    store: ObjectStore, open_producer: OpenProducer, form: BatchFormat, compression: Compression
) -> None:
    given = [b"some bytes" * 20, b"", b"more"]
    producer = open_producer(store, format=form, compression=compression)
    producer.produce(given)
    producer.flush()
    written = store.get(queue(store)[0].location).data
    assert written == encode_batch(given, format=form, compression=compression)


@pytest.mark.parametrize("prefix", ["ingest", "a/b c/ä"])
def test_a_data_object_is_named_by_a_ulid_below_its_prefix(
    store: ObjectStore, open_producer: OpenProducer, prefix: str, manifest: str
) -> None:
    prefix = prefix if manifest == "native" else prefix.replace("ä", "a")  # which OpenData's crate could not read
    producer = open_producer(store, data_path_prefix=prefix)
    handle = producer.produce(b"x")
    producer.flush()
    location = handle.result().location
    assert re.fullmatch(re.escape(prefix) + r"/[0-7][0-9A-HJKMNP-TV-Z]{25}\.batch", location)
    assert data_objects(store, prefix) == {location}


def test_the_manifest_lies_where_it_is_configured(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, manifest_path="queues/one")
    producer.produce(b"x")
    producer.flush()
    assert [entry.sequence for entry in queue(store, "queues/one")] == [0]


def test_a_buffer_of_opendata_gets_a_manifest_of_version_1(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, manifest_format="opendata")
    producer.produce(b"x")
    producer.flush()
    assert Manifest.read(store).version == 1


def test_a_place_can_be_a_url_a_path_or_a_store(tmp_path: Path) -> None:
    places: list[str | Path | ObjectStore] = [tmp_path.as_uri(), tmp_path, open_store(tmp_path)]
    for where in places:
        with Producer(where) as producer:
            producer.produce(b"x")
    assert batches(open_store(tmp_path)) == [[b"x"]] * 3
