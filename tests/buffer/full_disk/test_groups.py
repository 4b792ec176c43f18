"""Groups are administered on a full disk too."""

from __future__ import annotations

from penstock.buffer.groups import Groups
from tests.buffer.full_disk.small_disk import Disk, produce

MANIFESTS = ("native",)  # version 1 has no groups


def test_groups_are_created_reset_and_dropped_on_a_full_disk(disk: Disk) -> None:
    produce(disk, 5)
    disk.fill()
    groups = Groups(disk.store())
    groups.create("audit")
    groups.reset("audit", "latest")
    with disk.consumer("audit") as consumer:
        assert consumer.next_batch() is None
    groups.drop("audit", force=True)
