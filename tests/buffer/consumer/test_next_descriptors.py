"""`next_descriptors`: what is next, without its data, by one read of the manifest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.buffer import BatchDescriptor, Metadata
from penstock.buffer.manifest.state import Limits
from penstock.errors import InvalidInput, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import (
    MANIFEST,
    Cursors,
    consume,
    cursors,
    fill,
    kept,
    queue_up,
    read,
    sequences,
)


def test_a_descriptor_has_a_location_and_metadata(store: ObjectStore, manifest: str) -> None:
    (written,) = fill(store, [b"a"], metadata=b"attached", clock=lambda: 1_700_000_000.0)
    attached = Metadata(0, 1_700_000_000_000, b"attached")
    expected = BatchDescriptor(0, written.location, (attached,))
    if manifest == "native":  # which has more
        expected = replace(expected, size=len(store.get(written.location).data), records=1)
    assert consume(store).next_descriptors(1) == [expected]


def test_descriptors_cost_one_read_of_each_segment_that_holds_them(store: ObjectStore, manifest: str) -> None:
    for _ in range(2):
        queue_up(store, Limits().tail_entries)
    queue_up(store, 3)  # two segments, and a tail
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    intercepted.calls.clear()
    for _ in range(2):
        consumer.next_descriptors(100)
    (read_manifest, *read_once, _) = intercepted.calls
    segments = [path for path in (found.path for found in store.list_objects()) if path.endswith(".seg")]
    assert read_manifest == ("get", MANIFEST)
    assert len(segments) == (2 if manifest == "native" else 0)
    assert read_once == ([("get", min(segments))] if manifest == "native" else [])
    assert sequences(consumer.next_descriptors(999)) == list(range(200, 2 * Limits().tail_entries + 3))


def test_descriptors_cost_one_read_of_the_manifest_and_no_read_of_data(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    intercepted.calls.clear()
    consumer.next_descriptors(3)
    assert intercepted.calls == [("get", MANIFEST)]


def test_descriptors_are_handed_out_though_their_data_is_gone(store: ObjectStore) -> None:
    queue_up(store, 2)
    assert sequences(consume(store).next_descriptors(2)) == [0, 1]


def test_descriptors_are_contiguous_from_call_to_call(store: ObjectStore) -> None:
    queue_up(store, 10)
    consumer = consume(store)
    assert [sequences(consumer.next_descriptors(most)) for most in (3, 1, 4)] == [[0, 1, 2], [3], [4, 5, 6, 7]]
    assert cursors(consumer) == Cursors(None, None, 7)
    assert kept(store) == list(range(10))


def test_there_are_no_more_descriptors_than_entries(store: ObjectStore) -> None:
    queue_up(store, 3)
    consumer = consume(store)
    assert sequences(consumer.next_descriptors(1 << 70)) == [0, 1, 2]


def test_there_are_no_descriptors_where_nothing_was_ever_produced(store: ObjectStore) -> None:
    assert consume(store).next_descriptors(3) == []


def test_after_the_last_descriptor_there_are_none_and_no_cursor_moves(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    consumer.next_descriptors(2)
    assert sequences(consumer.next_descriptors(5)) == [2]
    assert consumer.next_descriptors(1) == []
    assert cursors(consumer) == Cursors(None, None, 2)


def test_descriptors_of_entries_that_come_later_follow_on(store: ObjectStore) -> None:
    queue_up(store, 2)
    consumer = consume(store)
    consumer.next_descriptors(5)
    queue_up(store, 2)
    assert sequences(consumer.next_descriptors(5)) == [2, 3]


def test_a_call_for_no_descriptors_reads_nothing_and_moves_no_cursor(store: ObjectStore) -> None:
    queue_up(store, 2)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    intercepted.calls.clear()
    assert consumer.next_descriptors(0) == []
    assert intercepted.calls == []
    assert cursors(consumer) == Cursors(None, None, None)


@pytest.mark.parametrize("most", [-1, True, False, 1.0, "1", None])
def test_an_invalid_number_of_descriptors_is_refused(memory: ObjectStore, most: object) -> None:
    with pytest.raises(InvalidInput, match=f"max must be an integer, 0 or more, not {most!r}"):
        consume(memory).next_descriptors(most)  # type: ignore[arg-type]


def test_a_dropped_descriptor_is_not_handed_out_again_by_the_same_consumer(store: ObjectStore) -> None:
    queue_up(store, 3)
    consumer = consume(store)
    consumer.next_descriptors(2)
    assert sequences(consumer.next_descriptors(3)) == [2]


def test_a_dropped_descriptor_is_handed_out_again_by_a_new_consumer(store: ObjectStore) -> None:
    queue_up(store, 3)
    consume(store).next_descriptors(2)
    assert sequences(consume(store).next_descriptors(3)) == [0, 1, 2]


def test_a_batch_follows_on_the_descriptors_before_it(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    consumer = consume(store)
    consumer.next_descriptors(2)
    assert read(consumer).entries == [b"c"]


def test_descriptors_follow_on_the_batch_before_them(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    consumer = consume(store)
    read(consumer)
    assert sequences(consumer.next_descriptors(3)) == [1, 2]


@pytest.mark.parametrize("error", [StorageError("the store is down"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_after_a_read_that_failed_the_same_descriptors_are_handed_out(store: ObjectStore, error: BaseException) -> None:
    queue_up(store, 3)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(1)
    intercepted.fail("get", error, path=MANIFEST)
    with pytest.raises(type(error)):
        consumer.next_descriptors(2)
    assert sequences(consumer.next_descriptors(2)) == [1, 2]
