"""`ack`: in order only, in memory at once, and in the manifest every 100 acks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from penstock.buffer import Consumer
from penstock.errors import InvalidInput, OutOfOrderAck, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, Cursors, consume, cursors, kept, queue_up

REFUSED = StorageError("the store refuses to write")


def handed(store: ObjectStore, count: int, last_acked_sequence: int | None = None) -> Consumer:
    """A consumer that has handed out `count` descriptors."""
    consumer = consume(store, last_acked_sequence)
    assert len(consumer.next_descriptors(count)) == count
    return consumer


def ack(consumer: Consumer, first: int, last: int) -> None:
    for sequence in range(first, last + 1):
        consumer.ack(sequence)


def refusal(consumer: Consumer, sequence: int) -> str:
    with pytest.raises(OutOfOrderAck) as refused:
        consumer.ack(sequence)
    return str(refused.value)


def names(message: str, *numbers: int) -> bool:
    return {*numbers} <= {int(number) for number in re.findall(r"\b\d+\b", message)}


# In order


def test_an_ack_moves_only_the_acked_cursor(store: ObjectStore) -> None:
    queue_up(store, 3)
    consumer = handed(store, 3)
    ack(consumer, 0, 1)
    assert cursors(consumer) == Cursors(1, None, 2)


def test_an_ack_stays_in_memory_at_first(store: ObjectStore) -> None:
    queue_up(store, 3)
    intercepted = InterceptedStore(store)
    consumer = handed(intercepted, 3)
    intercepted.calls.clear()
    ack(consumer, 0, 2)
    assert intercepted.calls == []


def test_the_first_ack_must_be_of_the_first_entry_that_was_handed_out(memory: ObjectStore) -> None:
    queue_up(memory, 12)
    handed(memory, 7).ack_through(6)
    consumer = handed(memory, 3)
    assert names(refusal(consumer, 8), 8, 7)
    assert names(refusal(consumer, 6), 6, 7)
    consumer.ack(7)


def test_an_ack_out_of_order_is_refused_naming_both_and_moves_no_cursor(memory: ObjectStore) -> None:
    queue_up(memory, 12)
    consumer = handed(memory, 12)
    ack(consumer, 0, 6)
    for sequence in (5, 6, 8, 9, 11, 12):
        assert names(refusal(consumer, sequence), sequence, 7)
    assert cursors(consumer) == Cursors(6, None, 11)


def test_the_next_in_order_is_acked_after_one_that_was_not(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    consumer = handed(memory, 3)
    refusal(consumer, 2)
    ack(consumer, 0, 2)
    assert consumer.last_acked_sequence == 2


def test_an_entry_can_be_acked_only_once_it_was_handed_out(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    consumer = handed(memory, 2)
    ack(consumer, 0, 1)
    refusal(consumer, 2)
    assert consumer.last_acked_sequence == 1
    consumer.next_descriptors(1)
    consumer.ack(2)
    assert consumer.last_acked_sequence == 2


def test_an_ack_where_nothing_was_handed_out_is_refused(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    assert names(refusal(consume(memory), 0), 0)


@pytest.mark.parametrize("sequence", [3, 9])
def test_an_ack_is_refused_by_naming_both_also_when_nothing_is_left_to_ack(memory: ObjectStore, sequence: int) -> None:
    queue_up(memory, 12)
    consumer = handed(memory, 7)
    ack(consumer, 0, 6)  # so that 7 is due, which was not handed out yet
    message = refusal(consumer, sequence)
    assert names(message, sequence, 6) or names(message, sequence, 7), message


def test_after_last_acked_sequence_the_one_behind_it_is_due(memory: ObjectStore) -> None:
    queue_up(memory, 12)
    consumer = handed(memory, 3, last_acked_sequence=4)
    assert names(refusal(consumer, 6), 6, 5)
    consumer.ack(5)


@pytest.mark.parametrize("sequence", [-1, True, 1.0, "0", None])
def test_an_ack_of_what_is_not_a_sequence_is_refused(memory: ObjectStore, sequence: object) -> None:
    queue_up(memory, 1)
    with pytest.raises(InvalidInput, match=f"sequence must be an integer, 0 or more, not {sequence!r}"):
        handed(memory, 1).ack(sequence)  # type: ignore[arg-type]


# In the manifest


def test_a_hundred_acks_are_one_write(store: ObjectStore) -> None:
    queue_up(store, 100)
    intercepted = InterceptedStore(store)
    consumer = handed(intercepted, 100)
    intercepted.calls.clear()
    ack(consumer, 0, 99)
    assert intercepted.calls == [("get", MANIFEST), ("put_if_match", MANIFEST)]
    assert kept(store) == []


def test_ninety_nine_acks_are_no_write(store: ObjectStore) -> None:
    queue_up(store, 100)
    consumer = handed(store, 100)
    ack(consumer, 0, 98)
    assert kept(store) == list(range(100))


def test_the_ack_after_a_hundred_waits_for_the_next_write(store: ObjectStore) -> None:
    queue_up(store, 103)
    consumer = handed(store, 103)
    ack(consumer, 0, 100)
    assert kept(store) == [100, 101, 102]


def test_the_second_hundred_is_written_like_the_first(memory: ObjectStore) -> None:
    queue_up(memory, 203)
    intercepted = InterceptedStore(memory)
    consumer = handed(intercepted, 203)
    ack(consumer, 0, 198)
    assert kept(memory)[0] == 100
    consumer.ack(199)
    assert kept(memory) == [200, 201, 202]


@pytest.mark.parametrize(
    ("write", "acked"),
    [(lambda consumer: consumer.flush(), 98), (lambda consumer: consumer.ack_through(99), 99)],
    ids=["flush", "ack_through"],
)
def test_a_flush_and_acking_through_start_the_count_anew(
    memory: ObjectStore, write: Callable[[Consumer], object], acked: int
) -> None:
    queue_up(memory, acked + 102)
    consumer = handed(memory, acked + 102)
    ack(consumer, 0, 98)
    write(consumer)
    ack(consumer, acked + 1, acked + 99)
    assert kept(memory)[0] == acked + 1
    consumer.ack(acked + 100)
    assert kept(memory) == [acked + 101]


def test_acking_through_that_fails_does_not_start_the_count_anew(memory: ObjectStore) -> None:
    queue_up(memory, 101)
    intercepted = InterceptedStore(memory)
    consumer = handed(intercepted, 101)
    ack(consumer, 0, 98)
    intercepted.fail("put_if_match", REFUSED)
    with pytest.raises(StorageError):
        consumer.ack_through(99)
    consumer.ack(99)
    assert kept(memory) == [100]


# If the write fails


def failing_at_the_hundredth(store: ObjectStore, error: BaseException, operation: str) -> Consumer:
    """A consumer whose write at its hundredth ack failed; the next write succeeds."""
    queue_up(store, 102)
    intercepted = InterceptedStore(store)
    consumer = handed(intercepted, 102)
    ack(consumer, 0, 98)
    intercepted.fail(operation, error, path=MANIFEST)
    with pytest.raises(type(error)) as raised:
        consumer.ack(99)
    assert raised.value is error
    return consumer


@pytest.mark.parametrize("operation", ["get", "put_if_match"])
@pytest.mark.parametrize("following", ["an ack", "a flush"])
def test_an_ack_counts_though_its_write_failed_and_what_follows_writes_it(
    store: ObjectStore, operation: str, following: str
) -> None:
    consumer = failing_at_the_hundredth(store, REFUSED, operation)
    assert cursors(consumer) == Cursors(99, None, 101)
    assert names(refusal(consumer, 99), 99, 100)
    if following == "an ack":
        consumer.ack(100)
    else:
        consumer.flush()
    assert kept(store) == ([101] if following == "an ack" else [100, 101])


def test_an_ack_counts_though_its_write_was_interrupted(memory: ObjectStore) -> None:
    consumer = failing_at_the_hundredth(memory, KeyboardInterrupt(), "put_if_match")
    assert consumer.last_acked_sequence == 99
    consumer.flush()
    assert kept(memory) == [100, 101]
