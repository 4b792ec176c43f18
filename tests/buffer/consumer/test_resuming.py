"""`last_acked_sequence`: everything through it is dequeued, and reading starts behind it; or nothing happens."""

from __future__ import annotations

import re
import threading

import pytest

from penstock.buffer import Consumer, Manifest
from penstock.errors import InvalidInput, StorageError
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import (
    MANIFEST,
    Cursors,
    consume,
    cursors,
    epoch,
    fill,
    kept,
    no_gc,
    queue_up,
    read,
    sequences,
)


def queue(store: ObjectStore, first: int, stop: int) -> Consumer:
    """The consumer of a queue that keeps the entries from `first` up to `stop`."""
    queue_up(store, stop)
    consumer = consume(store)
    if first:
        consumer.next_descriptors(first)
        consumer.ack_through(first - 1)
    assert kept(store) == list(range(first, stop))
    return consumer


def refusal(store: ObjectStore, last_acked_sequence: int) -> set[int]:
    """The numbers in the message of the refusal."""
    with pytest.raises(InvalidInput) as refused:
        consume(store, last_acked_sequence)
    return {int(number) for number in re.findall(r"\b\d+\b", str(refused.value).replace(store.url, ""))}


# What it does


def test_reading_starts_behind_the_last_ack(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    assert read(consume(store, 0)).entries == [b"b"]


def test_the_claim_dequeues_everything_through_the_last_ack_in_the_same_write(store: ObjectStore) -> None:
    queue_up(store, 5)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted, 2)
    assert intercepted.calls == [("get", MANIFEST), ("put_if_match", MANIFEST)]
    assert cursors(consumer) == Cursors(2, 2, 2)
    found = Manifest.read(store)
    assert (found.epoch, sequences(found.entries)) == (1, [3, 4])
    assert sequences(consumer.next_descriptors(5)) == [3, 4]


def test_the_last_ack_may_be_dequeued_already(store: ObjectStore) -> None:
    queue(store, 3, 5)
    consumer = consume(store, 2)
    assert sequences(consumer.next_descriptors(5)) == [3, 4]


def test_the_last_ack_may_be_the_newest_entry(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumer = consume(store, 4)
    assert kept(store) == []
    queue_up(store, 1)
    assert sequences(consumer.next_descriptors(1)) == [5]


def test_an_emptied_queue_goes_on_behind_its_newest_entry(store: ObjectStore) -> None:
    queue(store, 5, 5)
    consumer = consume(store, 4)
    queue_up(store, 1)
    assert sequences(consumer.next_descriptors(1)) == [5]


def test_none_means_that_nothing_was_ever_acked(store: ObjectStore) -> None:
    queue(store, 3, 5)
    assert sequences(consume(store, None).next_descriptors(5)) == [3, 4]


def test_acks_go_on_behind_the_last_one(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    consumer = consume(memory, 2)
    consumer.next_descriptors(2)
    consumer.ack(3)
    consumer.ack_through(4)
    assert kept(memory) == []


# What it refuses


def test_an_ack_where_nothing_was_ever_produced_is_refused_and_creates_no_manifest(store: ObjectStore) -> None:
    assert {0} <= refusal(store, 0)
    assert list(store.list_objects()) == []


@pytest.mark.parametrize(
    ("first", "stop", "last_acked_sequence", "also_named"),
    [(0, 5, 7, 5), (0, 5, 5, 5), (5, 5, 7, 5), (4, 6, 2, 4), (5, 5, 2, 5)],
)
def test_what_was_never_enqueued_or_would_skip_entries_is_refused_naming_both_and_changes_nothing(
    store: ObjectStore, first: int, stop: int, last_acked_sequence: int, also_named: int
) -> None:
    consumer = queue(store, first, stop)
    before = store.get(MANIFEST)
    intercepted = InterceptedStore(store)
    assert {last_acked_sequence, also_named} <= refusal(intercepted, last_acked_sequence)
    assert intercepted.calls == [("get", MANIFEST)]
    assert store.get(MANIFEST) == before
    consumer.flush()  # it is not fenced


@pytest.mark.parametrize("last_acked_sequence", [-1, True, 1.0, "0"])
def test_what_is_not_a_sequence_is_refused(memory: ObjectStore, last_acked_sequence: object) -> None:
    queue_up(memory, 5)
    refused = f"last_acked_sequence must be an integer, 0 or more, not {last_acked_sequence!r}"
    with pytest.raises(InvalidInput, match=refused):
        consume(memory, last_acked_sequence)  # type: ignore[arg-type]
    assert epoch(memory) == 0


def test_a_refusal_starts_no_collector(memory: ObjectStore) -> None:
    before = set(threading.enumerate())
    with pytest.raises(InvalidInput):
        Consumer(memory, last_acked_sequence=3)
    assert set(threading.enumerate()) <= before


# With a gap


def test_a_gap_that_is_allowed_goes_on_with_the_first_kept_entry(store: ObjectStore) -> None:
    queue(store, 4, 6)
    consumer = Consumer(store, no_gc(), 2, allow_gap=True)
    assert cursors(consumer) == Cursors(2, 2, 2)
    assert epoch(store) == 2
    assert sequences(consumer.next_descriptors(5)) == [4, 5]


def test_the_first_batch_behind_a_gap_that_is_allowed_is_read(store: ObjectStore) -> None:
    written = fill(store, *([b"%d" % number] for number in range(5)))
    consume(store, 3)
    consumer = Consumer(store, no_gc(), 0, allow_gap=True)
    assert read(consumer).location == written[4].location


def test_a_flush_behind_what_was_never_enqueued_writes_nothing_to_an_empty_queue(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    intercepted = InterceptedStore(memory)
    consumer = Consumer(intercepted, no_gc(), 7, allow_gap=True)
    intercepted.calls.clear()
    consumer.flush()
    assert intercepted.calls == [("get", MANIFEST)]


def test_acks_go_on_behind_a_gap_that_is_allowed(store: ObjectStore) -> None:
    queue(store, 4, 7)
    consumer = Consumer(store, no_gc(), 2, allow_gap=True)
    consumer.next_descriptors(5)
    consumer.ack(4)
    consumer.ack_through(5)
    assert kept(store) == [6]


def test_a_gap_that_is_allowed_on_an_emptied_queue_goes_on_with_what_comes(store: ObjectStore) -> None:
    queue(store, 5, 5)
    consumer = Consumer(store, no_gc(), 2, allow_gap=True)
    queue_up(store, 1)
    assert sequences(consumer.next_descriptors(5)) == [5]


def test_what_was_never_enqueued_is_dequeued_through_where_a_gap_is_allowed(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumer = Consumer(store, no_gc(), 7, allow_gap=True)
    assert kept(store) == []
    queue_up(store, 5)  # 5 to 9
    assert sequences(consumer.next_descriptors(5)) == [8, 9]


def test_a_gap_that_is_allowed_is_logged(memory: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    queue(memory, 4, 6)
    Consumer(memory, no_gc(), 2, allow_gap=True)
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert {"2", "4"} <= set(re.findall(r"\b\d+\b", message))


def test_allowing_a_gap_where_there_is_none_changes_nothing(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    consumer = Consumer(memory, no_gc(), 2, allow_gap=True)
    assert sequences(consumer.next_descriptors(5)) == [3, 4]


# When the claim fails


def test_a_claim_that_the_store_refuses_is_raised_and_changes_nothing(store: ObjectStore) -> None:
    consumer = queue(store, 0, 5)
    intercepted = InterceptedStore(store)
    intercepted.fail("put_if_match", StorageError("the store refuses to write"), path=MANIFEST)
    with pytest.raises(StorageError, match="refuses to write"):
        consume(intercepted, 2)
    assert (epoch(store), kept(store)) == (1, [0, 1, 2, 3, 4])
    consumer.flush()


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT, Fault.LATE])
def test_a_claim_whose_reply_is_lost_dequeues_through_the_last_ack_all_the_same(
    memory: ObjectStore, fault: Fault
) -> None:
    queue_up(memory, 5)
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    consumer = consume(faulty, 2)
    faulty.settle()
    assert not faulty.planned
    assert kept(memory) == [3, 4]
    assert sequences(consumer.next_descriptors(5)) == [3, 4]


def test_a_claim_that_loses_checks_again_whether_it_may_go_on(memory: ObjectStore) -> None:
    old = queue(memory, 0, 5)
    old.next_descriptors(5)
    intercepted = InterceptedStore(memory)
    # Between its read and its write the consumer before it acks further than the caller remembers.
    intercepted.before("put_if_match", lambda: old.ack_through(3), path=MANIFEST)
    assert {1, 4} <= refusal(intercepted, 1)
    assert epoch(memory) == 1
