"""A local disk without a free byte or inode: acks and deletes go on, and writes fail until there is space."""

from __future__ import annotations

import pytest

from penstock.errors import StorageError
from tests.buffer.full_disk.small_disk import KIB, Disk, produce, spares_of, without_owner


def test_acks_work_on_a_full_disk_for_as_long_as_there_is_something_to_ack(any_disk: Disk) -> None:
    produce(any_disk, 30)
    with any_disk.consumer() as consumer:
        any_disk.fill()
        for sequence in range(30):
            batch = consumer.next_batch()
            assert batch is not None
            assert batch.sequence == sequence
            consumer.ack_through(sequence)
        assert consumer.next_batch() is None
    with any_disk.consumer() as consumer:
        assert consumer.next_batch() is None, "what was acked on a full disk stays acked"


def test_new_consumers_claim_their_epochs_on_a_full_disk(disk: Disk) -> None:
    produce(disk, 3)
    disk.fill()
    for _ in range(10):
        with disk.consumer() as consumer:
            batch = consumer.next_batch()
            assert batch is not None
            assert batch.sequence == 0


@pytest.mark.parametrize("has_owner", [True, False], ids=["with an owner", "without one"])
def test_what_was_acked_on_a_full_disk_is_collected_there_and_frees_space_to_produce(
    any_disk: Disk, has_owner: bool
) -> None:
    produce(any_disk, 40)
    if not has_owner:
        without_owner(any_disk)
    any_disk.fill()
    with any_disk.consumer() as consumer:
        for _ in consumer:
            pass
        consumer.ack_through(39)

    assert any_disk.collect() >= 39  # version 1 keeps what is as young as the manifest
    produce(any_disk, 3)
    with any_disk.consumer() as consumer:
        assert [batch.sequence for batch in consumer] == [40, 41, 42]


def test_producing_on_a_full_disk_is_refused_with_a_clear_error_and_goes_on_when_there_is_space(disk: Disk) -> None:
    with disk.producer() as producer:
        producer.produce(b"first").result()
        spares = spares_of(disk)
        disk.fill()
        for _ in range(10):
            with pytest.raises(StorageError, match="the disk is full"):
                producer.produce(b"refused" * KIB).result()
            assert spares_of(disk) == spares
        disk.free_space()
        producer.produce(b"second").result()
    with disk.consumer() as consumer:
        assert [batch.entries for batch in consumer] == [[b"first"], [b"second"]]


def test_what_an_ack_frees_on_a_full_disk_goes_to_the_reserve_and_not_to_producers(disk: Disk) -> None:
    produce(disk, 20)
    with disk.producer() as producer, disk.consumer() as consumer:
        consumer.next_batch()
        disk.fill()
        for sequence in range(15):
            with pytest.raises(StorageError, match="the disk is full"):
                producer.produce(b"small").result()
            consumer.ack_through(sequence)
            consumer.next_batch()
        disk.free_space()
        producer.produce(b"small").result()
