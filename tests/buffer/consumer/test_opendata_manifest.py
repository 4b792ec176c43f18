"""What holds of consumers on a manifest of version 1 alone: its epochs, and its one reader."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.buffer import Consumer, ConsumerConfig
from penstock.buffer.groups import Groups, Writers
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.errors import InvalidInput
from penstock.storage import ObjectStore
from tests.support.filled_buffers import MANIFEST, consume, epoch, kept, metric, queue_up, sequences

MANIFESTS = ["opendata"]
UNUSED = (1 << 64) - 1


@pytest.mark.parametrize("before", [UNUSED - 1, UNUSED])
def test_the_epoch_that_opendata_uses_as_a_mark_is_skipped(store: ObjectStore, before: int) -> None:
    store.put(MANIFEST, OpenDataManifest.empty().with_epoch(before).data)
    consumer = consume(store)
    assert epoch(store) == 0
    consumer.flush()


def test_a_manifest_of_an_unused_epoch_is_read_like_any_other(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    memory.put(MANIFEST, OpenDataManifest(memory.get(MANIFEST).data).with_epoch(UNUSED).data)
    assert kept(memory) == [0, 1]


# One reader


def test_a_group_is_refused_when_its_consumer_is_made(store: ObjectStore) -> None:
    queue_up(store, 2)
    there = consume(store)
    before = store.get(MANIFEST).data
    with pytest.raises(InvalidInput, match=r"group must be 'default' .*version 1, not 'audit'.*manifest upgrade"):
        Consumer(store, ConsumerConfig(gc=False, group="audit"))
    assert store.get(MANIFEST).data == before
    there.flush()


def test_a_group_is_refused_where_there_is_no_manifest_yet(memory: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="group must be 'default'"):
        Consumer(memory, ConsumerConfig(gc=False, group="audit", manifest_format="opendata"))
    assert list(memory.list_objects()) == []


@pytest.mark.parametrize(("start", "expected"), [("earliest", [0, 1, 2]), ("latest", []), (0, [0, 1, 2]), (2, [2])])
def test_a_start_counts_for_the_first_consumer(store: ObjectStore, start: str | int, expected: list[int]) -> None:
    queue_up(store, 3)
    consumer = Consumer(store, ConsumerConfig(gc=False, start=start))
    assert kept(store) == expected
    assert sequences(consumer.next_descriptors(9)) == expected


@pytest.mark.parametrize("start", ["latest", 2, 17])
def test_a_start_does_not_count_for_a_later_consumer(memory: ObjectStore, start: str | int) -> None:
    queue_up(memory, 3)
    consume(memory)
    consumer = Consumer(memory, ConsumerConfig(gc=False, start=start))
    assert sequences(consumer.next_descriptors(9)) == [0, 1, 2]


@pytest.mark.parametrize("start", [3, 17])
def test_a_start_that_is_not_there_is_refused(memory: ObjectStore, start: int) -> None:
    queue_up(memory, 3)
    before = memory.get(MANIFEST).data
    with pytest.raises(InvalidInput, match=rf"there are 0 to 2\), not at {start}$"):
        Consumer(memory, ConsumerConfig(gc=False, start=start))
    assert memory.get(MANIFEST).data == before


def test_a_view_shows_the_one_reader_as_default(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    consumer.next_descriptors(2)
    consumer.ack_through(1)
    (group,) = Groups(memory).list()
    assert (group.name, group.epoch, group.acked_through, group.lag) == ("default", 1, 1, 1)


def test_groups_and_writers_of_another_version_are_refused(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    uses: list[Callable[[], object]] = [
        lambda: Groups(memory).create("audit"),
        lambda: Groups(memory).drop("default", force=True),
        lambda: Groups(memory).reset("default", "latest"),
        lambda: Writers(memory).list(),
        lambda: Writers(memory).drop("nightly"),
    ]
    before = memory.get(MANIFEST).data
    for use in uses:
        with pytest.raises(InvalidInput, match="manifest of version 1"):
            use()
    assert memory.get(MANIFEST).data == before


def test_there_is_no_lag_of_groups(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    consume(memory)
    assert metric("group_lag", memory.url, group="default") is None
