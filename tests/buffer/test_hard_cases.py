"""Cases that once broke the buffer: unusual stores, errors and interrupts."""

from __future__ import annotations

import inspect
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig, peek
from penstock.buffer import BatchFormat, GarbageCollector, Manifest, decode_batch, encode_batch
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.producer.capacity import Capacity
from penstock.buffer.producer.pending_batch import Held, PendingBatch, take
from penstock.errors import BackpressureTimeout, InvalidInput, StorageError
from penstock.storage import DeleteResult, Object, ObjectMeta, ObjectStore
from penstock.storage.object_store import Data
from tests.support.dated_buffer import queue_of
from tests.support.enqueuing import enqueue
from tests.support.filled_buffers import each_alone, metric, no_gc
from tests.support.interrupts import Interrupts


class Crash(BaseException):
    """An error that is not an `Exception`, for example a panic of a native library."""


class Plain:
    """A store with the seven methods only, and without a `url`."""

    def __init__(self, inner: ObjectStore, before_put: Callable[[str], object] = lambda _: None) -> None:
        self._inner = inner
        self._before_put = before_put

    def get(self, path: str) -> Object:
        return self._inner.get(path)

    def head(self, path: str) -> ObjectMeta:
        return self._inner.head(path)

    def put(self, path: str, data: Data) -> str:
        self._before_put(path)
        return self._inner.put(path, data)

    def put_if_absent(self, path: str, data: Data) -> str:
        self._before_put(path)
        return self._inner.put_if_absent(path, data)

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        self._before_put(path)
        return self._inner.put_if_match(path, data, version)

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return self._inner.list_objects(prefix)

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        raise StorageError("deletes fail")


def plain(inner: ObjectStore, before_put: Callable[[str], object] = lambda _: None) -> ObjectStore:
    return cast("ObjectStore", Plain(inner, before_put))


def once(suffix: str, error: BaseException) -> Callable[[str], None]:
    """Raise an error at the first write of a path with this ending."""
    errors = [error]

    def raise_it(path: str) -> None:
        if path.endswith(suffix) and errors:
            raise errors.pop()

    return raise_it


def test_a_store_without_a_url_can_be_used(memory: ObjectStore) -> None:
    with Producer(plain(memory)) as producer:
        producer.produce(b"a")
    with Consumer(plain(memory), no_gc()) as consumer:
        assert [batch.entries for batch in consumer] == [[b"a"]]


def test_an_object_that_lacks_a_method_of_a_store_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidInput, match="not object: it has no get"):
        Producer(cast("ObjectStore", object()))


@pytest.mark.parametrize("where", [".batch", "manifest"])
def test_any_error_of_a_store_fails_its_batch_and_the_next_goes_on(memory: ObjectStore, where: str) -> None:
    with Producer(plain(memory, once(where, Crash("panic"))), each_alone()) as producer:
        first = producer.produce(b"a")
        with pytest.raises(Crash, match="panic"):
            first.result(60)
        assert producer.produce(b"b").result(60).sequence == 0


def test_a_close_raises_what_only_some_handles_have_raised(memory: ObjectStore) -> None:
    # Two calls fill the limit, so that both are in the batch that the third one ends, which waits.
    config = ProducerConfig(flush_interval=3600, max_buffered_inputs=2)
    producer = Producer(plain(memory, once(".batch", StorageError("down"))), config)
    asked, _, third = (producer.produce(given) for given in (b"a", b"b", b"c"))
    with pytest.raises(StorageError, match="down"):
        asked.result(60)
    with pytest.raises(StorageError, match="down"):
        producer.close()
    assert third.result().sequence == 0


def test_a_call_that_was_interrupted_while_it_waited_does_not_block_the_others() -> None:
    capacity_file = inspect.getfile(Capacity)
    for number in itertools.count():
        lock = threading.Lock()
        capacity = Capacity(lock, ProducerConfig(max_buffered_inputs=1))
        batch = PendingBatch(math.inf)
        batch.add(take(b"x", BatchFormat.ARROW), 1, 0, b"")
        capacity.add(batch)
        interrupts = Interrupts(number, lambda file: file == capacity_file, lambda _, event: event == "line")

        def wait(capacity: Capacity = capacity) -> None:
            with pytest.raises(BackpressureTimeout):
                capacity.wait(Held(1, 1, 1, 1), 0)

        with lock:
            interrupts.during(wait)
            assert not capacity.is_awaited
        if not interrupts.came:
            assert number > 0
            return


def test_a_clock_that_no_manifest_can_hold_fails_only_its_own_call(memory: ObjectStore) -> None:
    times = iter([1.0, 1e17, float("nan"), 2.0])
    with Producer(memory, ProducerConfig(flush_interval=3600), clock=lambda: next(times, 3.0)) as producer:
        producer.produce(b"a")
        for _ in range(2):
            with pytest.raises(InvalidInput, match="clock"):
                producer.produce(b"never")
        producer.produce(b"b")
    (entry,) = Manifest.read(memory).entries
    assert [(item.start_index, item.ingestion_time_ms) for item in entry.metadata] == [(0, 1000), (1, 2000)]


def test_an_empty_batch_is_true_and_does_not_end_a_loop(memory: ObjectStore) -> None:
    memory.put("ingest/empty", encode_batch([]))
    enqueue(queue_of(memory), [NewEntry("ingest/empty", ())])
    with Producer(memory) as producer:
        producer.produce(b"behind it")
    read = []
    with Consumer(memory, no_gc()) as consumer:
        while batch := consumer.next_batch():
            read.append(batch.entries)
            assert {batch: 1}[batch] == 1
    assert read == [[], [b"behind it"]]


def test_peeking_is_not_counted_as_consuming(memory: ObjectStore) -> None:
    with Producer(memory) as producer:
        producer.produce(b"a")
    assert [record.value for record in peek(memory)] == [b"a"]
    assert not metric("batches_collected_total", memory.url)


@pytest.mark.parametrize("make", [Producer, Consumer, GarbageCollector])
@pytest.mark.parametrize("config", [5, {"gc": False}, "config"])
def test_a_config_of_another_kind_is_refused_before_anything_happens(
    memory: ObjectStore, make: Callable[..., Any], config: object
) -> None:
    with pytest.raises(InvalidInput, match=f"^config must be a .*Config, not {type(config).__name__}"):
        make(memory, config)
    assert list(memory.list_objects()) == []


def test_a_consumer_with_a_producers_config_fences_no_consumer(memory: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="ConsumerConfig"):
        Consumer(memory, cast("ConsumerConfig", ProducerConfig()))
    assert Manifest.read(memory).epoch == 0


@pytest.mark.parametrize("data", ["text", None, 5])
def test_data_that_is_not_bytes_is_refused(data: object) -> None:
    with pytest.raises(InvalidInput, match="data must be bytes"):
        decode_batch(cast("bytes", data))


def test_a_call_that_was_refused_is_accepted_once_there_is_space(memory: ObjectStore) -> None:
    gate = threading.Event()
    store = plain(memory, lambda path: gate.wait(60) if path.endswith(".batch") else None)
    config = ProducerConfig(max_buffered_inputs=1, format=BatchFormat.OPENDATA, flush_interval=3600)
    with Producer(store, config) as producer:
        producer.produce(b"a")
        with pytest.raises(BackpressureTimeout):
            producer.produce(b"no", timeout=0)
        gate.set()
        producer.produce(b"b")
    assert [record.value for record in peek(memory)] == [b"a", b"b"]
