"""The owner and the id of a buffer on a full disk: collectors write them with the reserve, producers do not."""

from __future__ import annotations

import pytest

from penstock.buffer import Producer, ProducerConfig
from penstock.errors import StorageError
from tests.buffer.full_disk.small_disk import Disk, produce, spares_of, without_owner


def test_a_consumer_on_a_full_disk_says_which_buffer_it_reads(disk: Disk) -> None:
    produce(disk, 3)
    without_owner(disk)
    disk.fill()
    with disk.consumer() as consumer:
        found = consumer.buffer_id
    with disk.consumer() as consumer:
        assert consumer.buffer_id == found


def test_producers_do_not_claim_a_prefix_from_the_reserve(disk: Disk) -> None:
    produce(disk, 3)
    without_owner(disk)
    spares = spares_of(disk)
    disk.fill()
    for _ in range(5):
        with disk.producer() as producer, pytest.raises(StorageError, match="the disk is full"):
            producer.produce(b"refused").result()
        assert spares_of(disk) == spares


def test_producers_of_new_buffers_do_not_use_the_reserve_of_a_manifest_beside_theirs(disk: Disk) -> None:
    produce(disk, 3)
    spares = spares_of(disk)
    disk.fill()
    for number in range(5):
        config = ProducerConfig(
            manifest_format=disk.manifests, manifest_path=f"ingest/other-{number}", data_path_prefix=f"other-{number}"
        )
        with Producer(disk.store(), config) as producer, pytest.raises(StorageError, match="the disk is full"):
            producer.produce(b"refused").result()
        assert spares_of(disk) == spares
    with disk.consumer() as consumer:
        assert consumer.next_batch() is not None
        consumer.ack_through(0)
