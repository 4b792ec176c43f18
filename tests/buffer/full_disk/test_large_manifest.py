"""A manifest of version 1 grows with the backlog, and its reserve with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.buffer.full_disk.small_disk import KIB, Disk

MANIFESTS = ("opendata",)


def test_a_manifest_of_megabytes_is_acked_on_a_full_disk(mount: Callable[[str], Path], full: str) -> None:
    disk = Disk(mount("size=40m,nr_inodes=400"), "opendata", full)
    with disk.producer() as producer:
        for _ in range(20):
            producer.produce(b"event", metadata=b"m" * 100 * KIB).result()
    with disk.consumer() as consumer:
        assert consumer.next_batch() is not None
        disk.fill()
        for sequence in range(20):
            consumer.ack_through(sequence)
            consumer.next_batch()
    with disk.consumer() as consumer:
        assert consumer.next_batch() is None
