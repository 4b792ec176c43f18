"""A newer consumer fences the one before it: every read and every write of that one raises `Fenced`."""

from __future__ import annotations

import pytest

from penstock.errors import Fenced
from penstock.storage import ObjectStore
from tests.buffer.consumer.edited_manifests import empty, with_epoch
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import (
    MANIFEST,
    USES,
    Cursors,
    consume,
    cursors,
    epoch,
    fill,
    kept,
    metric,
    queue_up,
    read,
)


@pytest.mark.parametrize("use", USES)
def test_a_fenced_call_raises_moves_no_cursor_and_writes_nothing(store: ObjectStore, manifest: str, use: str) -> None:
    path = f"{store.url}/{MANIFEST}"
    what = path if manifest == "opendata" else f"the group 'default' of {path}"
    fill(store, [b"a"], [b"b"])
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    read(consumer)
    consume(store)
    intercepted.calls.clear()
    with pytest.raises(Fenced, match=rf"newer consumer has taken over {what}: .*its epoch is 2, and this one's 1\b"):
        USES[use](consumer)
    assert cursors(consumer) == Cursors(None, 0, 0)
    assert intercepted.calls == [("get", MANIFEST)]
    assert metric("acks_total", store.url) == 0


def test_a_fence_is_raised_by_each_ack_from_the_hundredth_on(store: ObjectStore) -> None:
    queue_up(store, 102)
    consumer = consume(store)
    consumer.next_descriptors(102)
    consume(store)
    for sequence in range(99):
        consumer.ack(sequence)  # in memory: the manifest is not read
    for sequence in (99, 100, 101):
        with pytest.raises(Fenced):
            consumer.ack(sequence)
    assert consumer.last_acked_sequence == 101
    assert kept(store) == list(range(102))


def test_a_fence_reaches_a_write_that_is_under_way(store: ObjectStore) -> None:
    queue_up(store, 3)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(2)
    intercepted.before("put_if_match", lambda: consume(store), path=MANIFEST)
    with pytest.raises(Fenced):
        consumer.ack_through(1)
    assert intercepted.is_done
    assert kept(store) == [0, 1, 2]
    assert cursors(consumer) == Cursors(None, None, 1)


def test_a_fenced_consumer_does_not_disturb_the_newer_one(store: ObjectStore) -> None:
    queue_up(store, 3)
    old = consume(store)
    old.next_descriptors(3)
    new = consume(store)
    new.next_descriptors(3)
    with pytest.raises(Fenced):
        old.ack_through(2)
    new.ack_through(0)
    assert kept(store) == [1, 2]


def test_a_fence_reaches_every_consumer_before(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    consumers = [consume(memory) for _ in range(4)]
    for old in consumers[:-1]:
        with pytest.raises(Fenced):
            old.flush()
    consumers[-1].flush()


def test_a_manifest_that_was_deleted_is_a_fence(store: ObjectStore) -> None:
    queue_up(store, 2)
    consumer = consume(store)
    consumer.next_descriptors(2)
    store.delete([MANIFEST])
    for use in (consumer.flush, consumer.next_batch, lambda: consumer.ack_through(1)):
        with pytest.raises(Fenced):
            use()


def test_a_fenced_consumer_does_not_create_a_manifest_that_was_deleted(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    consumer = consume(memory)
    consumer.next_descriptors(2)
    consumer.ack(0)
    memory.delete([MANIFEST])
    with pytest.raises(Fenced):
        consumer.flush()
    with pytest.raises(Fenced):
        consumer.close()
    assert list(memory.list_objects()) == []


def test_a_manifest_of_an_earlier_epoch_is_a_fence_too(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    consume(memory)
    backup = memory.get(MANIFEST).data
    consumer = consume(memory)
    memory.put(MANIFEST, backup)
    with pytest.raises(Fenced):
        consumer.next_descriptors(1)


def test_a_producer_does_not_fence_a_consumer(store: ObjectStore) -> None:
    fill(store, [b"a"])
    consumer = consume(store)
    fill(store, [b"b"])
    consumer.flush()
    assert epoch(store) == 1


def test_a_fence_is_one_of_the_manifest_it_is_in(memory: ObjectStore) -> None:
    # Two buffers in one store: each has its own epoch.
    memory.put("other/manifest", with_epoch(empty(), 7))
    consumer = consume(memory)
    consumer.flush()
    assert epoch(memory) == 1
