"""`penstock manifest upgrade`: from version 1 to version 2, for good."""

from __future__ import annotations

import json
from pathlib import Path

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig
from penstock.buffer import Manifest
from tests.support.command import Here

WARNING = "OpenData's producers and consumers cannot read version 2: they must be stopped by now.\n"


def fill(buffer: Path, manifest_path: str = "ingest/manifest") -> None:
    config = ProducerConfig(manifest_format="opendata", manifest_path=manifest_path)
    with Producer(buffer, config) as producer:
        for number in range(3):
            producer.produce(b"%d" % number).result()
    with Consumer(buffer, ConsumerConfig(gc=False, manifest_path=manifest_path)) as consumer:
        consumer.next_descriptors(1)
        consumer.ack_through(0)


def test_a_buffer_is_upgraded_and_says_what_it_took_over(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    before = Manifest.read(tmp_path)
    answer = here("manifest", "upgrade", str(tmp_path))
    assert (answer.status, answer.out, answer.err) == (
        0,
        f"upgraded {tmp_path} to version 2, with 2 batches that wait in it\n",
        WARNING,
    )
    after = Manifest.read(tmp_path)
    assert (before.version, after.version) == (1, 2)
    assert [(one.sequence, one.location) for one in after.entries] == [
        (one.sequence, one.location) for one in before.entries
    ]


def test_a_second_upgrade_has_nothing_to_do(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    here("manifest", "upgrade", str(tmp_path))
    data = (tmp_path / "ingest" / "manifest").read_bytes()
    answer = here("manifest", "upgrade", str(tmp_path))
    assert (answer.status, answer.out, answer.err) == (0, f"{tmp_path} is version 2 already\n", "")
    assert (tmp_path / "ingest" / "manifest").read_bytes() == data


def test_another_manifest_path_is_upgraded_when_it_is_given(tmp_path: Path, here: Here) -> None:
    fill(tmp_path, "orders/manifest")
    assert here("manifest", "upgrade", str(tmp_path), "--path", "orders/manifest").status == 0
    assert Manifest.read(tmp_path, "orders/manifest").version == 2


def test_where_no_manifest_is_that_is_one_line_and_none_is_made(tmp_path: Path, here: Here) -> None:
    answer = here("manifest", "upgrade", str(tmp_path / "typo"))
    assert answer.is_error("there is no manifest 'ingest/manifest' in ")
    assert not (tmp_path / "typo").exists()


def test_what_is_no_manifest_is_one_line_and_stays_as_it_is(tmp_path: Path, here: Here) -> None:
    (tmp_path / "ingest").mkdir()
    (tmp_path / "ingest" / "manifest").write_bytes(b"not a manifest at all, though long enough")
    answer = here("manifest", "upgrade", str(tmp_path))
    assert answer.is_error()
    assert (tmp_path / "ingest" / "manifest").read_bytes() == b"not a manifest at all, though long enough"


def test_status_says_that_records_from_before_are_not_counted(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    here("manifest", "upgrade", str(tmp_path))
    with Producer(tmp_path) as producer:
        producer.produce([b"a", b"b"])
    found = json.loads(here("status", str(tmp_path), "--json").out)
    assert (found["batches_waiting"], found["records_waiting"], found["records_at_least"]) == (3, None, 2)
    assert found["bytes_waiting"] == sum(
        (tmp_path / entry.location).stat().st_size for entry in Manifest.read(tmp_path).entries
    )
    shown = here("status", str(tmp_path)).out
    assert "records waiting   at least 2: those from before the upgrade to version 2 were not counted\n" in shown
