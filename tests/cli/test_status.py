"""`penstock status`: what waits in a buffer, at a glance; it changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig
from penstock.buffer import Manifest, Metadata
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.groups import Groups
from penstock.buffer.locations import Names
from penstock.buffer.manifest.queue import BufferQueue
from penstock.cli.status import look
from penstock.storage import LocalStore, MemoryStore, Object, ObjectMeta, open_store
from tests.support.command import Here, storage_options
from tests.support.servers import BUCKET, S3Server


def fill(buffer: Path | str, batches: int = 3, *, at: float = 1_000_000.0, manifest_format: str = "native") -> None:
    """Put some batches of two events into a buffer, each a second after the one before; ack the first of them."""
    now = [at]
    with Producer(buffer, ProducerConfig(manifest_format=manifest_format), clock=lambda: now[0]) as producer:
        for _ in range(batches):
            producer.produce([b"one", b"two"]).result()
            now[0] += 1
    with Consumer(buffer, ConsumerConfig(gc=False)) as consumer:
        consumer.next_descriptors(1)
        consumer.ack_through(0)


def sizes(buffer: Path) -> dict[str, int]:
    return {str(file.relative_to(buffer)): file.stat().st_size for file in buffer.rglob("*.batch")}


def rows(answer: str) -> dict[str, str]:
    return {line[:17].strip(): line[18:] for line in answer.splitlines()}


def test_a_table_shows_what_waits(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    Groups(tmp_path).create("audit", "latest")
    done = here("status", str(tmp_path))
    assert (done.status, done.err) == (0, "")
    found = rows(done.out)
    age = found.pop("oldest event")
    owner = Groups(tmp_path).list()[1].owner
    one, *_ = sizes(tmp_path).values()
    assert found == {
        "buffer": f"file://{tmp_path}",
        "id": str(Manifest.read(tmp_path).id),
        "manifest version": "2",
        "epoch": "2",
        "next sequence": "3",
        "batches waiting": "2",
        "bytes waiting": str(2 * one),
        "records waiting": "4",
        "data objects": f"3, {3 * one} bytes in ingest/",
        "group default": f"2 batches behind, epoch 1, last taken over by {owner}",
        "group audit": f"0 batches behind, epoch 2, last taken over by {owner}",
    }
    assert age.endswith(" old, from 1970-01-12 13:46:41 UTC")


def test_of_version_1_a_table_shows_what_is_known(tmp_path: Path, here: Here) -> None:
    fill(tmp_path, manifest_format="opendata")
    found = rows(here("status", str(tmp_path)).out)
    age = found.pop("oldest event")
    one, *_ = sizes(tmp_path).values()
    assert found == {
        "buffer": f"file://{tmp_path}",
        "id": str(Manifest.read(tmp_path).id),
        "manifest version": "1",
        "epoch": "1",
        "next sequence": "3",
        "batches waiting": "2",
        "bytes waiting": str(2 * one),
        "records waiting": "not known: a manifest of version 1 does not count them",
        "data objects": f"3, {3 * one} bytes in ingest/",
    }
    assert age.endswith(" old, from 1970-01-12 13:46:41 UTC")


@pytest.mark.parametrize(("manifest_format", "version", "records"), [("native", 2, 4), ("opendata", 1, None)])
def test_scripts_get_json(tmp_path: Path, here: Here, manifest_format: str, version: int, records: int | None) -> None:
    fill(tmp_path, manifest_format=manifest_format)
    done = here("status", str(tmp_path), "--json")
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    assert found.pop("oldest_age_seconds") > 1e9
    (group,) = found.pop("groups")
    assert (group["name"], group["acked_through"], group["lag"], group["epoch"]) == ("default", 0, 2, 1)
    one, *_ = sizes(tmp_path).values()
    assert found == {
        "where": f"file://{tmp_path}",
        "id": str(Manifest.read(tmp_path).id),
        "version": version,
        "epoch": 1,
        "next_sequence": 3,
        "batches_waiting": 2,
        "batches_measured": 2,
        "batches_missing": 0,
        "bytes_waiting": 2 * one,
        "records_waiting": records,
        "records_at_least": records or 0,
        "oldest_ingestion_time_ms": 1_000_001_000,
        "data_objects": 3,
        "data_bytes": 3 * one,
    }


def test_another_manifest_path_is_looked_at_when_it_is_given(tmp_path: Path, here: Here) -> None:
    with Producer(tmp_path, ProducerConfig(manifest_path="orders/manifest")) as producer:
        producer.produce(b"one")
    found = json.loads(here("status", str(tmp_path), "--json", "--path", "orders/manifest").out)
    assert (found["batches_waiting"], found["batches_missing"]) == (1, 0)
    assert json.loads(here("status", str(tmp_path), "--json").out)["batches_waiting"] == 0


def test_an_event_from_a_time_that_no_calendar_has_is_shown_without_a_date(tmp_path: Path, here: Here) -> None:
    fill(tmp_path, at=1e12)
    assert rows(here("status", str(tmp_path)).out)["oldest event"] == "0.0 s old"


def test_the_age_is_that_of_the_oldest_event_that_waits(tmp_path: Path) -> None:
    fill(tmp_path)
    assert look(open_store(tmp_path), now=1_000_010.5).oldest_age_seconds == 9.5


def test_a_clock_that_is_behind_makes_no_negative_age(tmp_path: Path) -> None:
    fill(tmp_path)
    assert look(open_store(tmp_path), now=0.0).oldest_age_seconds == 0.0


def test_of_version_1_it_stops_measuring_after_so_many_and_says_so(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 5, manifest_format="opendata")
    found = look(open_store(tmp_path), now=0.0, most_measured=3)
    one, *_ = sizes(tmp_path).values()
    assert (found.batches_waiting, found.batches_measured, found.bytes_waiting) == (4, 3, 3 * one)
    monkeypatch.setattr("penstock.cli.status.MAX_MEASURED_BATCHES", 3)
    shown = here("status", str(tmp_path)).out
    assert f"bytes waiting     {3 * one} in the first 3 batches; the rest was not looked at\n" in shown


class Counted(MemoryStore):
    """Counts what is read, by path, and what is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.read: list[str] = []
        self.asked = 0

    def get(self, path: str) -> Object:
        self.read.append(path)
        return super().get(path)

    def head(self, path: str) -> ObjectMeta:
        self.asked += 1
        return super().head(path)


def entries(count: int, prefix: str = "ingest") -> list[NewEntry]:
    names = Names(lambda: 1_000_000.0)
    item = Metadata(0, 1_000_000_000)
    return [NewEntry(names.location(prefix), (item,), size=10, records=2) for _ in range(count)]


def test_of_a_large_backlog_the_head_tells_and_few_segments_are_opened(fresh_name: str) -> None:
    store = Counted(fresh_name)
    BufferQueue(store, "ingest/manifest", "producer").enqueue(entries(50_000))
    store.read.clear()
    found = look(store, now=1_000_001.0, most_measured=0)
    assert (found.batches_waiting, found.batches_measured) == (50_000, 50_000)
    assert (found.bytes_waiting, found.records_waiting) == (500_000, 100_000)
    assert found.oldest_age_seconds == 1.0
    assert (len(store.read), store.asked) == (2, 0)


def test_of_a_large_backlog_the_first_batches_are_looked_for(fresh_name: str) -> None:
    store = Counted(fresh_name)
    BufferQueue(store, "ingest/manifest", "producer").enqueue(entries(12_000))
    store.read.clear()
    found = look(store, now=0.0, most_measured=100)
    assert (found.batches_waiting, found.batches_missing) == (12_000, 100)
    assert len(store.read) == 3  # the head, a segment, and the head again: are they still waiting?


def test_data_outside_the_usual_prefix_is_not_missing(fresh_name: str) -> None:
    store = Counted(fresh_name)
    elsewhere = entries(3, "elsewhere")
    for entry in elsewhere[:2]:
        store.put(entry.location, b"data")
    BufferQueue(store, "ingest/manifest", "producer").enqueue(elsewhere)
    assert look(store, now=0.0).batches_missing == 1


def test_a_segment_that_was_acked_and_collected_meanwhile_is_looked_past(fresh_name: str) -> None:
    class Overtaken(Counted):
        def get(self, path: str) -> Object:
            if path.endswith(".seg") and not self.asked:
                self.asked = 1
                Consumer(MemoryStore(fresh_name), ConsumerConfig(gc=False), last_acked_sequence=9_999).close()
                self.delete([path])
            return super().get(path)

    store = Overtaken(fresh_name)
    BufferQueue(store, "ingest/manifest", "producer").enqueue(entries(10_001))
    assert look(store, now=0.0, most_measured=1).batches_waiting == 1


@pytest.mark.parametrize("manifest_format", ["native", "opendata"])
def test_data_that_is_gone_though_it_waits_is_shown(tmp_path: Path, here: Here, manifest_format: str) -> None:
    fill(tmp_path, manifest_format=manifest_format)
    (tmp_path / Manifest.read(tmp_path).entries[1].location).unlink()
    done = here("status", str(tmp_path))
    assert done.status == 0
    assert "MISSING           1 batch that waits has no data object\n" in done.out


@pytest.mark.parametrize("manifest_format", ["native", "opendata"])
def test_data_that_was_acked_and_collected_meanwhile_is_not_missing(tmp_path: Path, manifest_format: str) -> None:
    fill(tmp_path, manifest_format=manifest_format)

    class Overtaken(LocalStore):
        def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
            Consumer(tmp_path, ConsumerConfig(gc=False), last_acked_sequence=2).close()
            self.delete(sizes(tmp_path))
            return super().list_objects(prefix)

    found = look(Overtaken(tmp_path), now=0.0)
    assert (found.batches_waiting, found.batches_missing) == (2, 0)


def test_it_takes_no_epoch_and_fences_no_consumer(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    with Consumer(tmp_path) as consumer:
        assert here("status", str(tmp_path)).status == 0
        assert consumer.next_batch() is not None
    assert Manifest.read(tmp_path).epoch == 2


@pytest.mark.parametrize("there", [True, False], ids=["drained", "absent"])
def test_an_empty_buffer_is_reported_as_empty(tmp_path: Path, there: bool, here: Here) -> None:
    buffer = tmp_path / "buffer"
    if there:
        fill(buffer, 1)
    done = here("status", str(buffer))
    assert (done.status, done.err) == (0, "")
    assert f"batches waiting   0: it is empty{'' if there else ', and new'}\n" in done.out
    assert "oldest event      none\n" in done.out
    assert buffer.exists() == there


def test_a_bucket_is_looked_at_with_storage_options(s3_server: S3Server, fresh_name: str, here: Here) -> None:
    where = f"s3://{BUCKET}/{fresh_name}"
    with Producer(open_store(where, **s3_server.options)) as producer:
        producer.produce(b"event")
    done = here("status", where, "--json", *storage_options(s3_server.options))
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["batches_waiting"], found["data_objects"]) == (1, 1)
    assert found["bytes_waiting"] == found["data_bytes"] > 0


def test_what_is_no_buffer_is_one_line_and_status_1(tmp_path: Path, here: Here) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "ingest").mkdir()
    (tmp_path / "ingest" / "manifest").write_text("not a manifest at all, though long enough")
    for where in (tmp_path / "file", tmp_path):
        done = here("status", str(where))
        assert done.is_error()
