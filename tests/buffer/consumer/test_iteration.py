"""`for batch in consumer` drains what is there; `follow` tails it; `batch.ack()` acks through."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from penstock.buffer import ConsumedBatch, Consumer
from penstock.errors import Closed, InvalidInput, OutOfOrderAck, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.edited_manifests import dequeued
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, PATIENCE, Cursors, consume, cursors, fill, kept, sequences

# Draining


def test_iteration_drains_what_is_there(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    assert [batch.entries for batch in consume(store)] == [[b"a"], [b"b"], [b"c"]]


def test_iteration_over_an_empty_queue_ends_at_once(store: ObjectStore) -> None:
    assert list(consume(store)) == []


def test_iteration_goes_on_where_the_one_before_it_ended(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    consumer = consume(store)
    for _ in consumer:
        break
    assert sequences(consumer) == [1]
    fill(store, [b"c"])
    assert sequences(consumer) == [2]


def test_iteration_yields_what_is_enqueued_while_it_drains(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    found: list[int] = []
    for batch in consume(memory):
        found.append(batch.sequence)
        if batch.sequence < 2:
            fill(memory, [b"more"])
    assert found == [0, 1, 2]


def test_iteration_that_failed_goes_on_with_the_same_batch(memory: ObjectStore) -> None:
    _, second = fill(memory, [b"a"], [b"b"])
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    intercepted.fail("get", StorageError("the store is down"), path=second.location)
    with pytest.raises(StorageError):
        list(consumer)
    assert sequences(consumer) == [1]


# Acking through a batch


def test_a_batch_acks_through_itself(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    consumer = consume(store)
    batches = list(consumer)
    batches[1].ack()
    assert kept(store) == [2]
    assert cursors(consumer) == Cursors(1, 2, 2)


def test_each_batch_is_acked_as_it_comes(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    consumer = consume(store)
    for batch in consumer:
        batch.ack()
    assert kept(store) == []
    assert cursors(consumer) == Cursors(2, 2, 2)


def test_a_batch_that_is_acked_twice_is_out_of_order(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    (batch,) = consume(memory)
    batch.ack()
    with pytest.raises(OutOfOrderAck):
        batch.ack()


# Following


def test_following_yields_what_is_there_first(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    assert sequences(consume(store).follow(timeout=0)) == [0, 1]


@pytest.mark.parametrize("timeout", [math.nan, -1, "1"])
def test_following_for_what_is_no_length_of_time_is_refused(memory: ObjectStore, timeout: Any) -> None:
    with pytest.raises(InvalidInput, match="timeout must be a number of seconds, 0 or more"):
        next(consume(memory).follow(timeout))


def test_following_without_a_timeout_reads_once(memory: ObjectStore) -> None:
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    intercepted.calls.clear()
    assert list(consumer.follow(timeout=0)) == []
    assert intercepted.calls == [("get", MANIFEST)]


def test_what_another_thread_produces_arrives(store: ObjectStore) -> None:
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    waited, at_the_end = threading.Event(), threading.Event()

    def produce() -> None:
        # Each only after the follower has found the queue empty: there was nothing to drain.
        assert waited.wait(PATIENCE)
        fill(store, [b"first"])
        assert at_the_end.wait(PATIENCE)
        fill(store, [b"second"])

    thread = threading.Thread(target=produce)
    thread.start()
    intercepted.after("get", waited.set, path=MANIFEST)
    following = consumer.follow(timeout=PATIENCE)
    first = next(following)
    intercepted.after("get", at_the_end.set, path=MANIFEST)
    second = next(following)
    thread.join(PATIENCE)
    assert [first.entries, second.entries] == [[b"first"], [b"second"]]


def follow_on_a_clock_of_reads(store: ObjectStore, timeout: float, produce_at: set[int]) -> tuple[int, int]:
    """Follow on a clock on which each read of the manifest takes a second; return the batches and the reads."""
    intercepted = InterceptedStore(store)
    reads = 0
    consumer = consume(intercepted, uptime=lambda: float(reads))

    def read() -> None:
        nonlocal reads
        reads += 1
        if reads in produce_at:
            fill(store, [b"here"])

    intercepted.before("get", read, path=MANIFEST, times=1000)
    return len(list(consumer.follow(timeout))), reads


def test_following_ends_when_nothing_came_for_its_timeout(memory: ObjectStore) -> None:
    assert follow_on_a_clock_of_reads(memory, timeout=3.5, produce_at=set()) == (0, 4)


def test_the_timeout_starts_again_with_each_batch(memory: ObjectStore) -> None:
    assert follow_on_a_clock_of_reads(memory, timeout=3.5, produce_at={3, 6}) == (2, 10)


def test_the_time_that_the_caller_takes_does_not_count_for_the_timeout(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    now = [0.0]
    intercepted = InterceptedStore(memory)
    following = consume(intercepted, uptime=lambda: now[0]).follow(timeout=5.0)
    next(following)
    now[0] += 1000.0  # the caller works on the batch
    intercepted.after("get", lambda: fill(memory, [b"b"]), path=MANIFEST)
    assert next(following).entries == [b"b"]


def in_a_thread(consumer: Consumer, found: list[ConsumedBatch]) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.extend(consumer.follow()), daemon=True)
    thread.start()
    return thread


def test_following_ends_when_another_thread_closes(store: ObjectStore) -> None:
    fill(store, [b"a"])
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    at_the_end = threading.Event()
    found: list[ConsumedBatch] = []
    intercepted.after("get", at_the_end.set, path=MANIFEST, times=1000)
    follower = in_a_thread(consumer, found)
    assert at_the_end.wait(PATIENCE)
    consumer.close()
    follower.join(PATIENCE)
    assert not follower.is_alive()


def test_following_ends_when_another_thread_closes_while_it_reads(memory: ObjectStore) -> None:
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    closer = threading.Thread(target=consumer.close)
    intercepted.after("get", closer.start, path=MANIFEST)
    found: list[ConsumedBatch] = []
    follower = in_a_thread(consumer, found)
    follower.join(PATIENCE)
    closer.join(PATIENCE)
    assert not follower.is_alive()
    assert found == []


def test_following_ends_when_it_is_closed_between_two_reads_of_the_manifest(memory: ObjectStore) -> None:
    (written,) = fill(memory, [b"a"])
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)

    def dequeue_and_close() -> None:
        # The entry is gone, and so the follower reads the manifest again: by then the consumer is closed.
        memory.put(MANIFEST, dequeued(memory.get(MANIFEST).data, 0))
        memory.delete([written.location])
        consumer.close()

    intercepted.before("get", dequeue_and_close, path=written.location)
    assert list(consumer.follow()) == []
    assert intercepted.is_done


def test_following_ends_after_a_batch_whose_reader_closed(memory: ObjectStore) -> None:
    fill(memory, [b"a"], [b"b"])
    consumer = consume(memory)
    found: list[int] = []
    for batch in consumer.follow():
        found.append(batch.sequence)
        consumer.close()
    assert found == [0]


def test_following_a_closed_consumer_yields_nothing(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    consumer = consume(memory)
    consumer.close()
    assert list(consumer.follow()) == []


def test_iteration_over_a_consumer_that_is_closed_meanwhile_raises_closed(memory: ObjectStore) -> None:
    fill(memory, [b"a"], [b"b"])
    consumer = consume(memory)
    draining = iter(consumer)
    next(draining)
    consumer.close()
    with pytest.raises(Closed):
        next(draining)


def test_following_raises_an_error_of_the_store_and_goes_on_when_asked_again(memory: ObjectStore) -> None:
    (written,) = fill(memory, [b"a"])
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    intercepted.fail("get", StorageError("the store is down"), path=written.location)
    with pytest.raises(StorageError):
        next(consumer.follow())
    assert next(consumer.follow()).entries == [b"a"]
