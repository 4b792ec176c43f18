"""What a producer counts, under its buffer's name."""

from __future__ import annotations

from functools import partial

import pytest
from prometheus_client import REGISTRY

from penstock import ObjectStore, Producer, open_store
from penstock.buffer import encode_batch
from penstock.errors import StorageError
from tests.buffer.producer.conftest import OpenProducer
from tests.support.buffer_contents import data_objects
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.servers import BUCKET, S3Server


def sample(buffer: str, metric: str, **labels: str) -> float:
    """Read one value from the registry, without asking all the other metrics for theirs."""
    name = f"penstock_buffer_{metric}"
    families = REGISTRY.restricted_registry([name]).collect()
    (found,) = (
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and sample.labels == {"buffer": buffer, **labels}
    )
    return found


def compete(store: ObjectStore) -> None:
    with Producer(store) as other:
        other.produce(b"other")


def refuse() -> None:
    raise StorageError("no")


def test_batches_and_entries_are_counted_when_they_are_enqueued(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    of = partial(sample, store.url)
    producer = open_producer(store)
    for given in ([b"a", b"b", b"c"], [b"d"], b"e"):
        producer.produce(given)
    assert (of("batches_flushed_total"), of("entries_flushed_total")) == (0, 0)
    producer.flush()
    producer.produce(b"f")
    producer.flush()
    assert (of("batches_flushed_total"), of("entries_flushed_total")) == (2, 6)


@pytest.mark.parametrize("form", ["arrow", "opendata"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_bytes_are_counted_before_and_after_compression(
    store: ObjectStore, open_producer: OpenProducer, form: str, compression: str
) -> None:
    given = [b"again and " * 100, b"again"]
    producer = open_producer(store, compression=compression, format=form)
    producer.produce(given)
    producer.flush()
    plain = len(encode_batch(given, format=form))
    (written,) = (store.head(path).size for path in data_objects(store))
    assert (sample(store.url, "bytes_flushed_total"), sample(store.url, "bytes_written_total")) == (plain, written)
    assert (written < plain) == (compression == "zstd")


def test_each_batch_is_timed(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, flush_size_bytes=1)
    for _ in range(3):
        producer.produce(b"x").result(PATIENCE)
    producer.flush()
    assert sample(memory.url, "flush_duration_seconds_count") == 3
    assert sample(memory.url, "flush_duration_seconds_sum") > 0


@pytest.mark.parametrize("step", ["write data", "write manifest"])
def test_a_batch_that_failed_is_not_counted_as_flushed(
    memory: ObjectStore, open_producer: OpenProducer, step: str
) -> None:
    store = HookedStore(memory)
    store.before("write data" if step == "write data" else "write manifest", refuse)
    with pytest.raises(StorageError):
        open_producer(store, flush_size_bytes=1).produce(b"x").result(PATIENCE)
    names = ("batches_flushed_total", "entries_flushed_total", "bytes_flushed_total", "bytes_written_total")
    assert [sample(memory.url, name) for name in (*names, "flush_duration_seconds_count")] == [0] * 5


def test_the_length_of_the_queue_is_known(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, flush_size_bytes=1)
    for number in range(3):
        producer.produce(b"x").result(PATIENCE)
        assert sample(store.url, "queue_length") == number + 1


def test_manifest_writes_are_counted_under_the_role_of_the_producer(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(store, flush_size_bytes=1)
    for _ in range(3):
        producer.produce(b"x").result(PATIENCE)
    assert sample(store.url, "manifest_writes_total", role="producer") == 4  # the first one creates the manifest
    assert sample(store.url, "manifest_conflicts_total", role="producer") == 0


def test_writes_that_lost_are_counted_and_are_the_conflict_rate(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    hooked = HookedStore(store)
    hooked.before("create manifest", lambda: compete(store), times=1)  # it loses to one that makes the manifest
    hooked.before("write manifest", lambda: compete(store), skip=1, times=1)  # and to one that changes it
    producer = open_producer(hooked, flush_size_bytes=1)
    rates = [producer.conflict_rate]
    for _ in range(3):
        producer.produce(b"x").result(PATIENCE)
        rates.append(producer.conflict_rate)
    assert rates == [0.0, 50.0, 50.0, 40.0]
    theirs = 3
    assert sample(store.url, "manifest_writes_total", role="producer") == 5 + theirs
    assert sample(store.url, "manifest_conflicts_total", role="producer") == 2


def test_a_conflict_rate_is_that_of_one_producer(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    store.before("write manifest", lambda: compete(memory), times=1)
    unlucky, lucky = open_producer(store, flush_size_bytes=1), open_producer(memory, flush_size_bytes=1)
    for producer in (unlucky, lucky):
        producer.produce(b"x").result(PATIENCE)
    # One of three: it created the manifest, lost once, and won.
    assert unlucky.conflict_rate == pytest.approx(100 / 3)
    assert lucky.conflict_rate == 0.0


def test_two_buffers_in_one_process_count_for_themselves(fresh_name: str, open_producer: OpenProducer) -> None:
    stores = [open_store(f"memory://{fresh_name}-{letter}") for letter in "ab"]
    for times, store in enumerate(stores, 1):
        producer = open_producer(store, flush_size_bytes=1)
        for _ in range(times):
            producer.produce([b"x", b"y"]).result(PATIENCE)
    for name, per_batch in (("batches_flushed_total", 1), ("entries_flushed_total", 2), ("queue_length", 1)):
        assert [sample(store.url, name) for store in stores] == [per_batch, 2 * per_batch]


def test_two_buffers_in_one_store_count_for_themselves(memory: ObjectStore, open_producer: OpenProducer) -> None:
    for times, name in enumerate("ab", 1):
        producer = open_producer(memory, data_path_prefix=name, manifest_path=f"{name}/manifest", flush_size_bytes=1)
        for _ in range(times):
            producer.produce(b"x").result(PATIENCE)
    for metric in ("batches_flushed_total", "queue_length"):
        assert [sample(f"{memory.url}/{name}/manifest", metric) for name in "ab"] == [1, 2]


def test_no_label_holds_a_credential(s3_server: S3Server, fresh_name: str, open_producer: OpenProducer) -> None:
    options = {**s3_server.options, "access_key_id": "the-secret-key-id", "secret_access_key": "the-secret-key"}
    store = open_store(f"s3://{BUCKET}/{fresh_name}", **options)
    producer = open_producer(store, flush_size_bytes=1)
    producer.produce(b"x").result(PATIENCE)
    samples = [sample for family in REGISTRY.collect() for sample in family.samples]
    labels = {value for sample in samples for value in sample.labels.values()}
    assert f"s3://{BUCKET}/{fresh_name}" in labels
    assert not [label for label in labels if "the-secret" in label]
