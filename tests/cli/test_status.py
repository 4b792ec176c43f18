"""`penstock status`: what waits in a buffer, at a glance, and nobody is disturbed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig, Producer
from penstock.buffer import Manifest
from penstock.cli.status import look
from penstock.storage import LocalStore, open_store
from tests.cli.command import run
from tests.servers import BUCKET, S3Server


def fill(buffer: Path | str, batches: int = 3, *, at: float = 1_000_000.0) -> None:
    """Put some batches of two events into a buffer, each a second after the one before; ack the first of them."""
    times = iter([at + second for second in range(2 * batches)])  # one for the metadata, one for the object's name
    with Producer(buffer, clock=lambda: next(times)) as producer:
        for _ in range(batches):
            producer.produce([b"one", b"two"]).result()
    with Consumer(buffer, ConsumerConfig(gc=False)) as consumer:
        consumer.next_descriptors(1)
        consumer.ack_through(0)


def sizes(buffer: Path) -> dict[str, int]:
    return {str(file.relative_to(buffer)): file.stat().st_size for file in buffer.rglob("*.batch")}


def test_a_table_shows_what_waits(tmp_path: Path) -> None:
    fill(tmp_path)
    done = run("status", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    found = {line[:17].strip(): line[18:] for line in done.stdout.splitlines()}
    age = found.pop("oldest event")
    one, *_ = sizes(tmp_path).values()
    assert found == {
        "buffer": f"file://{tmp_path}",
        "manifest version": "1",
        "epoch": "1",
        "next sequence": "3",
        "batches waiting": "2",
        "bytes waiting": str(2 * one),
        "records waiting": "not known: a manifest of version 1 does not count them",
        "data objects": f"3, {3 * one} bytes",
    }
    assert age.endswith(" old, from 1970-01-12 13:46:42 UTC")


def test_scripts_get_json(tmp_path: Path) -> None:
    fill(tmp_path)
    done = run("status", str(tmp_path), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found.pop("oldest_age_seconds") > 1e9
    one, *_ = sizes(tmp_path).values()
    assert found == {
        "where": f"file://{tmp_path}",
        "version": 1,
        "epoch": 1,
        "next_sequence": 3,
        "batches_waiting": 2,
        "batches_measured": 2,
        "batches_missing": 0,
        "bytes_waiting": 2 * one,
        "records_waiting": None,
        "oldest_ingestion_time_ms": 1_000_002_000,
        "data_objects": 3,
        "data_bytes": 3 * one,
    }


def test_the_age_is_that_of_the_oldest_event_that_waits(tmp_path: Path) -> None:
    fill(tmp_path)
    assert look(open_store(tmp_path), now=1_000_010.5).oldest_age_seconds == 8.5


def test_a_clock_that_is_behind_makes_no_negative_age(tmp_path: Path) -> None:
    fill(tmp_path)
    assert look(open_store(tmp_path), now=0.0).oldest_age_seconds == 0.0


def test_it_stops_measuring_after_so_many_and_says_so(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    found = look(open_store(tmp_path), now=0.0, most_measured=3)
    one, *_ = sizes(tmp_path).values()
    assert (found.batches_waiting, found.batches_measured, found.bytes_waiting) == (4, 3, 3 * one)
    code = "import penstock.cli.status as s; s.look.__kwdefaults__['most_measured'] = 3"
    shown = run_after(code, "status", str(tmp_path))
    assert f"bytes waiting     {3 * one} in the first 3 batches; the rest was not looked at\n" in shown


def run_after(code: str, *words: str) -> str:
    """What the command prints when some code ran before it."""
    command = [sys.executable, "-c", f"{code}\nfrom penstock.cli.app import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_data_that_is_gone_though_it_waits_is_shown(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / Manifest.read(tmp_path).entries[1].location).unlink()
    done = run("status", str(tmp_path))
    assert done.returncode == 0
    assert "MISSING           1 batches that wait have no data object\n" in done.stdout


def test_data_that_was_acked_and_collected_meanwhile_is_not_missing(tmp_path: Path) -> None:
    fill(tmp_path)

    class Overtaken(LocalStore):
        def head(self, path: str):  # type: ignore[no-untyped-def]
            Consumer(tmp_path, last_acked_sequence=2).close()
            self.delete([path])
            return super().head(path)

    found = look(Overtaken(tmp_path), now=0.0)
    assert (found.batches_waiting, found.batches_missing, found.bytes_waiting) == (2, 0, 0)


def test_looking_takes_no_epoch_and_fences_nobody(tmp_path: Path) -> None:
    fill(tmp_path)
    with Consumer(tmp_path) as consumer:
        assert run("status", str(tmp_path)).returncode == 0
        assert consumer.next_batch() is not None
    assert Manifest.read(tmp_path).epoch == 2


@pytest.mark.parametrize("there", [True, False], ids=["drained", "absent"])
def test_an_empty_buffer_is_said_to_be_empty(tmp_path: Path, there: bool) -> None:
    buffer = tmp_path / "buffer"
    if there:
        fill(buffer, 1)
    done = run("status", str(buffer))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"batches waiting   0: it is empty{'' if there else ', and new'}\n" in done.stdout
    assert "oldest event      none\n" in done.stdout
    assert buffer.exists() == there


def test_a_bucket_is_looked_at_with_storage_options(s3_server: S3Server, fresh_name: str) -> None:
    where = f"s3://{BUCKET}/{fresh_name}"
    with Producer(open_store(where, **s3_server.options)) as producer:
        producer.produce(b"event")
    options = [f"{name}={str(value).lower()}" for name, value in s3_server.options.items()]
    done = run("status", where, "--json", *(word for option in options for word in ("-o", option)))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["batches_waiting"], found["data_objects"]) == (1, 1)
    assert found["bytes_waiting"] == found["data_bytes"] > 0


def test_what_is_no_buffer_is_one_line_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "ingest").mkdir()
    (tmp_path / "ingest" / "manifest").write_text("not a manifest at all, though long enough")
    for where in (tmp_path / "file", tmp_path):
        done = run("status", str(where))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("penstock: ")
        assert done.stderr.count("\n") == 1
