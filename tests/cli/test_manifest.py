"""`penstock manifest dump`: a manifest as JSON, from wherever it is."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from unittest.mock import ANY

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig, open_store
from penstock.buffer import Manifest
from penstock.storage import ObjectStore
from tests.support.command import Here, storage_options
from tests.support.servers import BUCKET, S3Server


def fill(store: ObjectStore | Path, manifest_path: str = "ingest/manifest") -> list[str]:
    """Put two batches into a buffer, under epoch 1, and ack the first; return both locations."""
    with Producer(store, ProducerConfig(manifest_path=manifest_path), clock=lambda: 1234.567) as producer:
        first = producer.produce([b"a", b"b"], metadata=b"\x00\xff").result()
        producer.produce(b"c", metadata=b"one")
        second = producer.produce(b"d", metadata=b"two").result()
    with Consumer(store, ConsumerConfig(manifest_path=manifest_path, gc=False)) as consumer:
        consumer.next_descriptors(1)
        consumer.ack_through(0)
    return [first.location, second.location]


def expected(location: str) -> dict[str, object]:
    def item(start: int, payload: bytes) -> dict[str, object]:
        encoded = base64.b64encode(payload).decode()
        return {"start_index": start, "ingestion_time_ms": 1_234_567, "payload_base64": encoded}

    metadata = [item(0, b"one"), item(1, b"two")]
    entry = {"sequence": 1, "location": location, "size": ANY, "records": 2, "metadata": metadata}
    reader = {"epoch": 1, "acked_through": 0, "owner": ANY, "taken_at": ANY}
    writer = {"transaction": 1, "first_sequence": 1, "revision": 3, "at": 1_234_567, "is_named": False}
    return {
        "version": 2,
        "id": ANY,
        "epoch": 1,
        "next_sequence": 2,
        "entries": [entry],
        "revision": 5,
        "groups": {"default": reader},
        "forgotten_through": 0,
        "floor": 0,
        "floor_set_at": 0,
        "segments": [],
        "writers": OneOf(writer),
    }


class OneOf:
    """Equal to a map of some name to this."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and list(other.values()) == [self._value]

    __hash__ = None  # type: ignore[assignment]


def test_a_directory_is_dumped(tmp_path: Path, here: Here) -> None:
    _, location = fill(tmp_path)
    done = here("manifest", "dump", str(tmp_path))
    assert (done.status, json.loads(done.out), done.err) == (0, expected(location), "")


@pytest.mark.parametrize("shape", ["{}", "file://{}"])
def test_a_manifests_own_file_is_dumped(tmp_path: Path, shape: str, here: Here) -> None:
    _, location = fill(tmp_path)
    done = here("manifest", "dump", shape.format(tmp_path / "ingest" / "manifest"))
    assert (done.status, json.loads(done.out)) == (0, expected(location))


def test_another_manifest_path_is_dumped_when_it_is_given(tmp_path: Path, here: Here) -> None:
    _, location = fill(tmp_path, "orders/manifest")
    done = here("manifest", "dump", str(tmp_path), "--path", "orders/manifest")
    assert json.loads(done.out) == expected(location)


def test_dumping_takes_no_epoch_and_fences_no_consumer(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    with Consumer(tmp_path) as consumer:
        assert here("manifest", "dump", str(tmp_path)).status == 0
        assert consumer.next_batch() is not None
    assert Manifest.read(tmp_path).epoch == 2


def test_a_buffer_without_a_manifest_is_reported_as_an_empty_queue_without_one(tmp_path: Path, here: Here) -> None:
    done = here("manifest", "dump", str(tmp_path))
    found = json.loads(done.out)
    assert (found["version"], found["epoch"], found["next_sequence"], found["entries"]) == (2, 0, 0, [])
    assert found["groups"] == {"default": {"epoch": 0, "acked_through": -1, "owner": "", "taken_at": 0}}
    assert "no manifest" in done.err


def test_a_place_that_is_not_there_is_one_line_and_status_1(tmp_path: Path, here: Here) -> None:
    done = here("manifest", "dump", str(tmp_path / "typo"))
    assert (done.status, done.out) == (1, "")
    assert done.err.strip() == f"penstock: there is no file or directory {tmp_path / 'typo'}"


def test_a_file_that_is_no_manifest_is_one_line_and_status_1(tmp_path: Path, here: Here) -> None:
    (tmp_path / "file").write_bytes(b"not a manifest at all, though long enough")
    done = here("manifest", "dump", str(tmp_path / "file"))
    assert (done.status, done.out) == (1, "")
    assert "unsupported version" in done.err
    assert done.err.count("\n") == 1


def test_version_1_is_dumped_as_it_is(tmp_path: Path, here: Here) -> None:
    with Producer(tmp_path, ProducerConfig(manifest_format="opendata"), clock=lambda: 1234.567) as producer:
        location = producer.produce(b"a", metadata=b"one").result().location
    item = {"start_index": 0, "ingestion_time_ms": 1_234_567, "payload_base64": base64.b64encode(b"one").decode()}
    entry = {"sequence": 0, "location": location, "size": None, "records": None, "metadata": [item]}
    found = json.loads(here("manifest", "dump", str(tmp_path)).out)
    own_id = str(Manifest.read(tmp_path).id)
    assert found == {"version": 1, "id": own_id, "epoch": 0, "next_sequence": 1, "entries": [entry]}


def fill_segments(buffer: Path) -> None:
    with Producer(buffer) as producer:
        for _ in range(3):
            producer.produce(b"a", metadata=bytes(20_000)).result()


@pytest.mark.parametrize("shape", ["{}", "{}/ingest/manifest", "file://{}/ingest/manifest"])
def test_entries_in_segments_are_dumped_and_so_are_the_references_to_them(
    tmp_path: Path, here: Here, shape: str
) -> None:
    fill_segments(tmp_path)
    found = json.loads(here("manifest", "dump", shape.format(tmp_path)).out)
    assert [entry["sequence"] for entry in found["entries"]] == [0, 1, 2]
    assert [(one["first"], one["last"], one["records"], one["level"]) for one in found["segments"]] == [
        (0, 0, 1, 0),
        (1, 1, 1, 0),
    ]
    assert found["segments"][0]["size"] == found["entries"][0]["size"]


def test_a_segment_that_is_gone_is_one_line_and_status_1(tmp_path: Path, here: Here) -> None:
    fill_segments(tmp_path)
    for segment in (tmp_path / "ingest" / "manifest.d").glob("*.seg"):
        segment.unlink()
    answer = here("manifest", "dump", str(tmp_path))
    assert answer.is_error()
    assert ".seg" in answer.err


def test_a_link_to_a_manifest_is_dumped_with_the_segments_beside_the_manifest(tmp_path: Path, here: Here) -> None:
    fill_segments(tmp_path / "buffer")
    (tmp_path / "link").symlink_to(tmp_path / "buffer" / "ingest" / "manifest")
    found = json.loads(here("manifest", "dump", str(tmp_path / "link")).out)
    assert [entry["sequence"] for entry in found["entries"]] == [0, 1, 2]


def test_a_name_that_no_file_can_have_is_one_line_and_status_1(here: Here) -> None:
    answer = here("manifest", "dump", "x" * 5000)
    assert answer.is_error()


def test_a_manifest_that_was_copied_without_its_segments_is_one_line_and_status_1(tmp_path: Path, here: Here) -> None:
    fill_segments(tmp_path / "buffer")
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(tmp_path / "buffer" / "ingest" / "manifest", tmp_path / "elsewhere" / "copy")
    answer = here("manifest", "dump", str(copy))
    assert answer.is_error(
        f"the manifest 'copy' in file://{tmp_path}/elsewhere needs its segments beside it, in 'copy.d': "
    )
    assert os.listdir(tmp_path / "elsewhere") == ["copy"]


def test_a_manifest_that_was_copied_whole_is_dumped_and_nothing_is_made_beside_it(tmp_path: Path, here: Here) -> None:
    _, location = fill(tmp_path / "buffer")
    (tmp_path / "elsewhere %41").mkdir()
    copy = shutil.copy(tmp_path / "buffer" / "ingest" / "manifest", tmp_path / "elsewhere %41" / "copy")
    for shape in (str(copy), Path(copy).as_uri()):
        assert json.loads(here("manifest", "dump", shape).out) == expected(location)
    assert os.listdir(tmp_path / "elsewhere %41") == ["copy"]


@pytest.mark.parametrize("below", ["", "/ingest/manifest"])
def test_a_bucket_is_dumped_by_its_url_or_by_the_manifests(
    s3_server: S3Server, fresh_name: str, here: Here, below: str
) -> None:
    where = f"s3://{BUCKET}/{fresh_name}"
    _, location = fill(open_store(where, **s3_server.options))
    done = here("manifest", "dump", f"{where}{below}", *storage_options(s3_server.options))
    assert (done.status, json.loads(done.out)) == (0, expected(location))


def test_the_help_says_that_a_manifest_can_be_upgraded_too(here: Here) -> None:
    assert "Look at the manifest of a buffer, or upgrade it." in here("manifest", "--help").out
