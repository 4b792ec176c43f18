"""`ack_through`: dequeues first and moves the cursor after that, or changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.buffer import Consumer
from penstock.errors import CorruptData, Fenced, InvalidInput, OutOfOrderAck, StorageError
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import (
    MANIFEST,
    Cursors,
    consume,
    cursors,
    fill,
    kept,
    metric,
    queue_up,
    read,
    sequences,
)

REFUSED = StorageError("the store refuses to write")
FAILURES = [
    ("get", StorageError("the store is down")),
    ("put_if_match", REFUSED),
    ("get", KeyboardInterrupt()),
    ("put_if_match", KeyboardInterrupt()),
]
BY_NAME = [f"{operation}-{type(error).__name__}" for operation, error in FAILURES]


@dataclass(frozen=True)
class State:
    """Everything that an ack changes, and what it must leave alone when it fails."""

    cursors: Cursors
    length: int
    acks: float | None
    kept: list[int]


def state(consumer: Consumer, store: ObjectStore) -> State:
    return State(cursors(consumer), len(consumer), metric("acks_total", store.url), kept(store))


def test_acking_through_dequeues_at_once_by_one_read_and_one_write(store: ObjectStore) -> None:
    queue_up(store, 5)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(4)
    intercepted.calls.clear()
    consumer.ack_through(2)
    assert intercepted.calls == [("get", MANIFEST), ("put_if_match", MANIFEST)]
    assert kept(store) == [3, 4]
    assert cursors(consumer) == Cursors(2, None, 3)


def test_acking_through_everything_empties_the_queue(store: ObjectStore) -> None:
    queue_up(store, 3)
    consumer = consume(store)
    consumer.next_descriptors(3)
    consumer.ack_through(2)
    assert kept(store) == []


def test_acking_through_goes_on_from_single_acks(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    consumer = consume(memory)
    consumer.next_descriptors(5)
    consumer.ack(0)
    consumer.ack_through(3)
    consumer.ack(4)
    assert consumer.last_acked_sequence == 4
    assert kept(memory) == [4]


def test_what_was_enqueued_in_the_meantime_is_kept(store: ObjectStore) -> None:
    fill(store, [b"a"])
    consumer = consume(store)
    batch = read(consumer)
    fill(store, [b"b"])
    batch.ack()
    assert kept(store) == [1]
    assert read(consumer).entries == [b"b"]


def test_what_is_enqueued_while_it_dequeues_is_kept(store: ObjectStore) -> None:
    queue_up(store, 2)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(1)
    intercepted.before("put_if_match", lambda: queue_up(store, 2), path=MANIFEST)
    consumer.ack_through(0)
    assert intercepted.is_done
    assert kept(store) == [1, 2, 3]


# Out of order


@pytest.mark.parametrize(("sequence", "handed_out"), [(3, 3), (2, 6), (3, 6), (0, 6), (7, 6), (100, 6), (4, 3)])
def test_acking_through_what_is_acked_or_not_handed_out_is_out_of_order(
    memory: ObjectStore, sequence: int, handed_out: int
) -> None:
    queue_up(memory, 10)
    consumer = consume(memory)
    consumer.next_descriptors(handed_out + 1)
    consumer.ack_through(3)
    with pytest.raises(OutOfOrderAck, match=rf"\b{sequence}\b.*\b{handed_out}\b"):
        consumer.ack_through(sequence)


def test_acking_through_what_single_acks_have_acked_is_out_of_order(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    consumer.next_descriptors(3)
    consumer.ack(0)
    with pytest.raises(OutOfOrderAck):
        consumer.ack_through(0)


def test_acking_through_the_sequence_a_consumer_started_at_is_out_of_order(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    consumer = consume(memory, 2)
    consumer.next_descriptors(1)
    with pytest.raises(OutOfOrderAck):
        consumer.ack_through(2)


def test_acking_through_what_came_before_the_first_that_was_handed_out_is_out_of_order(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    consume(memory, 2)
    consumer = consume(memory)
    assert sequences(consumer.next_descriptors(1)) == [3]
    with pytest.raises(OutOfOrderAck):
        consumer.ack_through(2)


@pytest.mark.parametrize("last_acked_sequence", [None, 1])
def test_acking_through_where_nothing_was_handed_out_is_out_of_order(
    memory: ObjectStore, last_acked_sequence: int | None
) -> None:
    queue_up(memory, 3)
    consumer = consume(memory, last_acked_sequence)
    with pytest.raises(OutOfOrderAck, match=r"\b2\b"):
        consumer.ack_through(2)


def test_acking_through_out_of_order_changes_nothing(memory: ObjectStore) -> None:
    queue_up(memory, 10)
    consumer = consume(memory)
    consumer.next_descriptors(7)
    consumer.ack_through(3)
    before = state(consumer, memory)
    for sequence in (0, 3, 7, 9):
        with pytest.raises(OutOfOrderAck):
            consumer.ack_through(sequence)
    assert state(consumer, memory) == before


@pytest.mark.parametrize("sequence", [-1, True, 1.0, "0", None])
def test_acking_through_what_is_not_a_sequence_is_refused(memory: ObjectStore, sequence: object) -> None:
    queue_up(memory, 1)
    consumer = consume(memory)
    consumer.next_descriptors(1)
    with pytest.raises(InvalidInput, match=f"sequence must be an integer, 0 or more, not {sequence!r}"):
        consumer.ack_through(sequence)  # type: ignore[arg-type]


# When it fails


@pytest.mark.parametrize(("operation", "error"), FAILURES, ids=BY_NAME)
def test_acking_through_that_fails_changes_nothing_and_can_be_tried_again(
    store: ObjectStore, operation: str, error: BaseException
) -> None:
    queue_up(store, 5)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(4)
    consumer.ack(0)
    before = state(consumer, store)
    intercepted.fail(operation, error, path=MANIFEST)
    with pytest.raises(type(error)):
        consumer.ack_through(2)
    assert intercepted.is_done
    assert state(consumer, store) == before
    consumer.ack_through(2)
    assert state(consumer, store) == State(Cursors(2, None, 3), 2, 3.0, [3, 4])


def test_acking_through_under_a_fence_changes_nothing(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumer = consume(store)
    consumer.next_descriptors(4)
    consumer.ack(0)
    consume(store)
    before = state(consumer, store)
    for _ in range(2):  # the second call fails too
        with pytest.raises(Fenced):
            consumer.ack_through(2)
        assert state(consumer, store) == before


def test_acking_through_in_a_manifest_that_cannot_be_read_changes_nothing(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    consumer = consume(memory)
    consumer.next_descriptors(4)
    before = state(consumer, memory)
    whole = memory.get(MANIFEST).data
    memory.put(MANIFEST, whole[:-1])
    with pytest.raises(CorruptData):
        consumer.ack_through(2)
    memory.put(MANIFEST, whole)
    assert state(consumer, memory) == before


def test_a_dequeue_that_happened_though_it_failed_can_be_tried_again(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    intercepted = InterceptedStore(memory)
    faulty = FaultyStore(intercepted, rates={})
    consumer = consume(faulty)
    consumer.next_descriptors(4)
    # It takes effect, its reply is lost, and the read that would show this fails.
    faulty.inject(Fault.ERROR_AFTER, operation="put_if_match")
    intercepted.after("put_if_match", lambda: intercepted.fail("get", StorageError("the store is down")))
    with pytest.raises(StorageError):
        consumer.ack_through(2)
    assert cursors(consumer) == Cursors(None, None, 3)
    assert kept(memory) == [3, 4]
    consumer.ack_through(2)
    assert cursors(consumer) == Cursors(2, None, 3)
    assert metric("acks_total", memory.url) == 3


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT, Fault.LATE])
def test_a_dequeue_whose_reply_is_lost_is_decided_by_the_manifest(memory: ObjectStore, fault: Fault) -> None:
    queue_up(memory, 5)
    faulty = FaultyStore(memory, rates={})
    consumer = consume(faulty)
    consumer.next_descriptors(4)
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    consumer.ack_through(2)
    faulty.settle()
    assert not faulty.planned
    assert state(consumer, memory) == State(Cursors(2, None, 3), 2, 3.0, [3, 4])


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT])
def test_a_dequeue_that_happened_is_not_written_again(memory: ObjectStore, fault: Fault) -> None:
    queue_up(memory, 5)
    intercepted = InterceptedStore(memory)
    faulty = FaultyStore(intercepted, rates={})
    consumer = consume(faulty)
    consumer.next_descriptors(4)
    intercepted.calls.clear()
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    consumer.ack_through(2)
    assert intercepted.count("put_if_match") == 1
