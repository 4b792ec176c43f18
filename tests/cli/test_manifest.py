"""`penstock manifest dump`: a manifest as JSON, from wherever it is."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig, open_store
from penstock.buffer import Manifest
from penstock.storage import ObjectStore
from tests.cli.command import run
from tests.servers import BUCKET, S3Server


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
    entries = [{"sequence": 1, "location": location, "metadata": metadata}]
    return {"version": 1, "epoch": 1, "next_sequence": 2, "entries": entries}


def test_a_directory_is_dumped(tmp_path: Path) -> None:
    _, location = fill(tmp_path)
    done = run("manifest", "dump", str(tmp_path))
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, expected(location), "")


@pytest.mark.parametrize("shape", ["{}", "file://{}"])
def test_a_manifests_own_file_is_dumped(tmp_path: Path, shape: str) -> None:
    _, location = fill(tmp_path)
    done = run("manifest", "dump", shape.format(tmp_path / "ingest" / "manifest"))
    assert (done.returncode, json.loads(done.stdout)) == (0, expected(location))


@pytest.mark.parametrize("below", ["", "/ingest/manifest"])
def test_a_bucket_is_dumped_by_its_url_or_by_the_manifests(s3_server: S3Server, fresh_name: str, below: str) -> None:
    _, location = fill(open_store(f"s3://{BUCKET}/{fresh_name}", **s3_server.options))
    environment = {f"AWS_{name.upper()}": str(value) for name, value in s3_server.options.items()}
    done = run("manifest", "dump", f"s3://{BUCKET}/{fresh_name}{below}", **environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected(location)


def test_another_manifest_path_is_dumped_when_it_is_given(tmp_path: Path) -> None:
    _, location = fill(tmp_path, "orders/manifest")
    done = run("manifest", "dump", str(tmp_path), "--path", "orders/manifest")
    assert json.loads(done.stdout) == expected(location)


def test_dumping_takes_no_epoch_and_fences_nobody(tmp_path: Path) -> None:
    fill(tmp_path)
    with Consumer(tmp_path) as consumer:
        assert run("manifest", "dump", str(tmp_path)).returncode == 0
        assert consumer.next_batch() is not None
    assert Manifest.read(tmp_path).epoch == 2


def test_a_buffer_without_a_manifest_is_an_empty_queue_and_is_said_to_have_none(tmp_path: Path) -> None:
    done = run("manifest", "dump", str(tmp_path))
    assert json.loads(done.stdout) == {"version": 1, "epoch": 0, "next_sequence": 0, "entries": []}
    assert "no manifest" in done.stderr


def test_a_place_that_is_not_there_is_one_line_and_status_1(tmp_path: Path) -> None:
    done = run("manifest", "dump", str(tmp_path / "typo"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip() == f"penstock: there is no file or directory {tmp_path / 'typo'}"


def test_a_file_that_is_no_manifest_is_one_line_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"not a manifest at all, though long enough")
    done = run("manifest", "dump", str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("penstock: unsupported version")
