"""On a real disk with syncs: produce, consume, ack, let time pass, collect; exactly the right files remain."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, GcReport, Producer
from penstock.storage import LocalStore
from tests.support.dated_buffer import named_at
from tests.support.filled_buffers import no_gc

GRACE = ConsumerConfig().gc_grace_period
OLD, ALMOST = GRACE, GRACE - 30  # a slow machine may take that long until it collects
OUR_OWN = {
    "native": {"ingest/manifest", "ingest/.owner"},
    "opendata": {"ingest/manifest", "ingest/manifest.id", "ingest/.owner"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def redate(root: Path, location: str, seconds: float) -> None:
    """Date a file so much before the manifest: this decides on version 1, and the name of the file on version 2."""
    stamp = (root / "ingest/manifest").stat().st_mtime_ns - round(seconds * 1e9)
    os.utime(root / location, ns=(stamp, stamp))


def produced(root: Path, count: int, *, age: float = 0.0, first: int = 0) -> list[str]:
    """Produce batches of one entry each, dated `age` seconds ago, and return their locations."""
    with Producer(LocalStore(root), clock=lambda: time.time() - age) as producer:
        numbers = range(first, first + count)
        locations = [producer.produce(f"entry {number}").result().location for number in numbers]
    for location in locations:
        redate(root, location, age)
    return locations


def collected(root: Path, manifest: str) -> GcReport:
    """Run a cycle; on version 2 one that sets a floor, and one that applies it a grace period later."""
    if manifest == "opendata":
        return GarbageCollector(LocalStore(root)).collect_once()
    GarbageCollector(LocalStore(root)).collect_once()
    return GarbageCollector(LocalStore(root), clock=lambda: time.time() + GRACE).collect_once()


def files(root: Path) -> set[str]:
    """The files that are objects, by their paths in the store."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and ".penstock" not in path.parts
    }


def acked(root: Path, count: int) -> Consumer:
    """Consume and ack `count` batches."""
    consumer = Consumer(LocalStore(root), no_gc())
    for _ in range(count):
        batch = consumer.next_batch()
        assert batch is not None
        batch.ack()
    return consumer


def test_acked_batches_that_are_old_enough_are_gone_and_nothing_else_is(root: Path, manifest: str) -> None:
    old, young = produced(root, 3, age=OLD), produced(root, 1, age=ALMOST)
    pending = produced(root, 2, age=ALMOST)
    acked(root, 4)
    assert collected(root, manifest) == GcReport(deleted=3, failed=0, kept=3)
    assert files(root).isdisjoint(old)
    assert files(root) == {*young, *pending, *OUR_OWN[manifest]}


def test_batches_that_are_not_acked_stay_and_can_be_consumed_however_old_they_are(root: Path, manifest: str) -> None:
    old, pending = produced(root, 2, age=3 * OLD), produced(root, 2, age=2 * OLD, first=2)
    consumer = acked(root, 2)
    assert collected(root, manifest) == GcReport(deleted=2, failed=0, kept=2)
    assert files(root).isdisjoint(old)
    assert files(root) == {*pending, *OUR_OWN[manifest]}
    assert [batch.entries for batch in consumer] == [[b"entry 2"], [b"entry 3"]]


def test_an_orphan_of_a_killed_producer_is_gone_when_it_is_old_enough(root: Path, manifest: str) -> None:
    (location,) = produced(root, 1)
    orphan = f"ingest/{named_at(time.time_ns() // 1_000_000 - round(OLD * 1000))}.batch"
    LocalStore(root).put(orphan, b"written, and never enqueued")
    redate(root, orphan, OLD)
    collected(root, manifest)
    assert files(root) == {location, *OUR_OWN[manifest]}


def test_what_was_just_acked_stays_for_now(root: Path, manifest: str) -> None:
    locations = produced(root, 2)
    acked(root, 2)
    collected(root, manifest)
    assert files(root) == {*locations, *OUR_OWN[manifest]}


def test_a_store_without_a_buffer_is_left_without_a_file(root: Path, manifest: str) -> None:
    assert collected(root, manifest) == GcReport(deleted=0, failed=0, kept=0)
    assert files(root) == set()


def test_a_buffer_that_is_drained_and_old_has_no_data_left(root: Path, manifest: str) -> None:
    produced(root, 3, age=OLD)
    acked(root, 3)
    collected(root, manifest)
    assert files(root) == OUR_OWN[manifest]


def test_a_file_that_an_outsider_put_there_stays(root: Path, manifest: str) -> None:
    produced(root, 1)
    strange = root / "ingest" / "README"
    strange.write_text("not of Penstock")
    os.utime(strange, (0, 0))
    collected(root, manifest)
    assert strange.exists()


def test_a_link_that_has_a_data_files_name_stays(root: Path, tmp_path: Path, manifest: str) -> None:
    produced(root, 1)
    target = tmp_path / "target"
    target.write_text("not in the store")
    link = root / "ingest" / "01ARZ3NDEKTSV4RRFFQ69G5FAV.batch"
    link.symlink_to(target)
    os.utime(target, (0, 0))
    collected(root, manifest)
    assert link.is_symlink()
    assert target.exists()
