"""The whole way on a real disk: produce, consume, ack, grow old, collect; exactly the right files remain."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, GcReport, Producer
from penstock.storage import LocalStore

GRACE = ConsumerConfig().gc_grace_period
WITHOUT_COLLECTOR = ConsumerConfig(gc=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def produced(root: Path, count: int) -> list[str]:
    """Produce batches of one entry each, and return their locations."""
    with Producer(LocalStore(root)) as producer:
        return [producer.produce(f"entry {number}").result().location for number in range(count)]


def grow_old(root: Path, locations: Iterable[str], seconds: float) -> None:
    """Let data files be that much older than the manifest."""
    stamp = (root / "ingest/manifest").stat().st_mtime_ns - round(seconds * 1e9)
    for location in locations:
        os.utime(root / location, ns=(stamp, stamp))


def files(root: Path) -> set[str]:
    """The files that are objects, by their paths in the store."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and ".penstock" not in path.parts
    }


def acked(root: Path, count: int) -> Consumer:
    """Consume and ack that many batches."""
    consumer = Consumer(LocalStore(root), WITHOUT_COLLECTOR)
    for _ in range(count):
        batch = consumer.next_batch()
        assert batch is not None
        batch.ack()
    return consumer


def test_acked_batches_that_are_old_enough_are_gone_and_nothing_else_is(root: Path) -> None:
    locations = produced(root, 6)
    acked(root, 4)
    old, young, pending = locations[:3], locations[3:4], locations[4:]
    grow_old(root, [*old, *pending], GRACE)
    grow_old(root, young, GRACE - 1)
    report = GarbageCollector(LocalStore(root)).collect_once()
    assert report == GcReport(deleted=3, failed=0, kept=3)
    assert files(root) == {*young, *pending, "ingest/manifest", "ingest/.owner"}


def test_an_orphan_of_a_killed_producer_is_gone_when_it_is_old_enough(root: Path) -> None:
    (location,) = produced(root, 1)
    orphan = "ingest/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch"
    LocalStore(root).put(orphan, b"written, and never enqueued")
    grow_old(root, [orphan], GRACE)
    GarbageCollector(LocalStore(root)).collect_once()
    assert files(root) == {location, "ingest/manifest", "ingest/.owner"}


def test_what_is_left_can_be_consumed(root: Path) -> None:
    locations = produced(root, 4)
    consumer = acked(root, 2)
    grow_old(root, locations, 2 * GRACE)
    GarbageCollector(LocalStore(root)).collect_once()
    assert [batch.entries for batch in consumer] == [[b"entry 2"], [b"entry 3"]]


def test_what_was_just_acked_stays_for_now(root: Path) -> None:
    locations = produced(root, 2)
    acked(root, 2)
    GarbageCollector(LocalStore(root)).collect_once()
    assert files(root) == {*locations, "ingest/manifest", "ingest/.owner"}


def test_a_store_without_a_buffer_is_left_without_a_file(root: Path) -> None:
    assert GarbageCollector(LocalStore(root)).collect_once() == GcReport(deleted=0, failed=0, kept=0)
    assert files(root) == set()


def test_a_buffer_that_is_drained_and_old_has_no_data_left(root: Path) -> None:
    locations = produced(root, 3)
    acked(root, 3)
    grow_old(root, locations, GRACE)
    GarbageCollector(LocalStore(root)).collect_once()
    assert files(root) == {"ingest/manifest", "ingest/.owner"}


def test_a_file_that_an_outsider_put_there_stays(root: Path) -> None:
    produced(root, 1)
    strange = root / "ingest" / "README"
    strange.write_text("not of Penstock")
    os.utime(strange, (0, 0))
    GarbageCollector(LocalStore(root)).collect_once()
    assert strange.exists()


def test_a_link_that_has_a_data_files_name_stays(root: Path, tmp_path: Path) -> None:
    produced(root, 1)
    target = tmp_path / "target"
    target.write_text("not in the store")
    link = root / "ingest" / "01ARZ3NDEKTSV4RRFFQ69G5FAV.batch"
    link.symlink_to(target)
    os.utime(target, (0, 0))
    GarbageCollector(LocalStore(root)).collect_once()
    assert link.is_symlink()
    assert target.exists()
