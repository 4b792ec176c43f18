"""`penstock gc`: a cycle of the collector, now; and what it would delete."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig
from penstock.buffer import GarbageCollector, Manifest
from penstock.errors import StorageError
from penstock.storage import DeleteResult, LocalStore
from tests.support.command import Here
from tests.support.filled_buffers import each_alone

DAY = 86_400.0


def in_the_past(days: float) -> Callable[[], float]:
    return lambda: time.time() - days * DAY


def files(buffer: Path) -> dict[str, bytes]:
    """Every object, with what is in it."""
    found = [path for path in buffer.rglob("*") if path.is_file() and ".penstock" not in path.parts]
    return {str(path.relative_to(buffer)): path.read_bytes() for path in found}


def batches(buffer: Path) -> list[str]:
    return sorted(path for path in files(buffer) if path.endswith(".batch"))


@pytest.fixture
def acked(tmp_path: Path) -> Path:
    """A buffer of which two batches were acked two days ago, and one is queued."""
    with Producer(tmp_path, each_alone(), clock=in_the_past(2)) as producer:
        for number in range(2):
            producer.produce(b"%d" % number).result()
    with Producer(tmp_path, each_alone()) as producer:
        producer.produce(b"queued").result()
    with Consumer(tmp_path, ConsumerConfig(gc=False)) as consumer:
        consumer.next_descriptors(2)
        consumer.ack_through(1)
    return tmp_path


def let_the_grace_period_pass(buffer: Path) -> None:
    """Have the floor set by a collector of an hour ago."""
    GarbageCollector(buffer, clock=in_the_past(1 / 24)).collect_once()


def test_the_first_visit_sets_the_floor_and_says_what_goes_later(acked: Path, here: Here) -> None:
    shown = here("gc", str(acked))
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.splitlines() == [
        "deleted 0 objects of 0 bytes",
        "kept 3; the queue has 1 entry",
        "  in no queue, and deleted after a grace period, which this cycle began: 2",
    ]
    head = Manifest.read(acked).head
    assert head is not None
    assert head.floor > 0


def test_the_second_visit_within_the_grace_period_says_when_they_go(acked: Path, here: Here) -> None:
    here("gc", str(acked))
    shown = here("gc", str(acked))
    assert shown.status == 0
    assert re.search("deleted after 20.*, the end of their grace period: 2\n", shown.out)
    assert "floor: 20" in shown.out
    assert len(batches(acked)) == 3


def test_a_visit_after_the_grace_period_deletes_and_says_how_much(acked: Path, here: Here) -> None:
    let_the_grace_period_pass(acked)
    sizes = [len(content) for path, content in files(acked).items() if path in batches(acked)[:2]]
    shown = here("gc", str(acked))
    assert shown.status == 0
    assert shown.out.splitlines()[0] == f"deleted 2 objects of {sum(sizes)} bytes"
    assert len(batches(acked)) == 1


def test_a_dry_run_shows_the_same_and_writes_nothing(acked: Path, here: Here) -> None:
    before = files(acked)
    first = here("gc", "--dry-run", str(acked))
    assert "  in no queue, and deleted after a grace period, which a cycle would begin: 2" in first.out
    assert files(acked) == before
    let_the_grace_period_pass(acked)
    before = files(acked)
    second = here("gc", "--dry-run", str(acked))
    assert second.status == 0
    assert second.out.startswith("would delete 2 objects of ")
    assert files(acked) == before


def test_a_dry_run_claims_no_prefix(tmp_path: Path, here: Here) -> None:
    with Producer(tmp_path) as producer:
        producer.produce(b"one").result()
    (tmp_path / "ingest/.owner").unlink()
    assert here("gc", "--dry-run", str(tmp_path)).status == 0
    assert not (tmp_path / "ingest/.owner").exists()


def test_scripts_get_json(acked: Path, here: Here) -> None:
    let_the_grace_period_pass(acked)
    shown = json.loads(here("gc", str(acked), "--json").out)
    assert (shown["deleted"], shown["failed"], shown["kept"]) == (2, 0, 1)
    assert shown["details"]["named"] == 1
    assert shown["details"]["is_complete"] is True


def test_version_1_is_collected_in_one_visit(tmp_path: Path, here: Here) -> None:
    with Producer(tmp_path, ProducerConfig(manifest_format="opendata", format="opendata")) as producer:
        producer.produce(b"one").result()
    shown = here("gc", str(tmp_path))
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.splitlines() == ["deleted 0 objects of 0 bytes", "kept 1; the queue has 1 entry"]


def test_where_no_manifest_is_it_says_so(tmp_path: Path, here: Here) -> None:
    shown = here("gc", str(tmp_path))
    assert (shown.status, shown.out) == (1, "")
    assert "there is no manifest 'ingest/manifest'" in shown.err
    assert files(tmp_path) == {}


def test_of_another_manifest_the_prefix_has_to_be_given(tmp_path: Path, here: Here) -> None:
    config = ProducerConfig(manifest_path="other/manifest", data_path_prefix="other/data")
    with Producer(tmp_path, config) as producer:
        producer.produce(b"one").result()
    refused = here("gc", str(tmp_path), "--path", "other/manifest")
    assert (refused.status, refused.out) == (1, "")
    assert "give --prefix" in refused.err
    shown = here("gc", str(tmp_path), "--path", "other/manifest", "--prefix", "other/data")
    assert (shown.status, shown.out.splitlines()[1]) == (0, "kept 1; the queue has 1 entry")


def test_a_prefix_of_another_manifest_is_refused(acked: Path, here: Here) -> None:
    with Producer(acked, ProducerConfig(manifest_path="other/manifest", data_path_prefix="other")) as producer:
        producer.produce(b"one").result()
    before = files(acked)
    shown = here("gc", str(acked), "--path", "other/manifest", "--prefix", "ingest")
    assert shown.status == 1
    assert files(acked) == before


def test_a_grace_period_that_is_too_short_is_refused(acked: Path, here: Here) -> None:
    shown = here("gc", str(acked), "--grace", "10")
    assert shown.status == 1
    assert "gc_grace_period must be at least twice enqueue_deadline" in shown.err


def test_what_cannot_be_deleted_is_counted_and_the_status_says_so(
    acked: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_the_grace_period_pass(acked)

    def refuse(_: LocalStore, paths: list[str]) -> list[DeleteResult]:
        return [DeleteResult(path, StorageError("the disk is read-only")) for path in paths]

    monkeypatch.setattr(LocalStore, "delete", refuse)
    shown = here("gc", str(acked))
    assert shown.status == 1
    assert "could not delete 2" in shown.out
