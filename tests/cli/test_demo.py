"""The command: its demo, its version, its errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock
from penstock import Consumer, DurableEventQueue
from penstock.buffer import Manifest
from penstock.cli.demo import AT_ONCE
from penstock.queue import queues_in
from tests.cli.command import run


def numbers(output: str) -> dict[str, int]:
    """The rows of the demo's table, by their words."""
    rows = re.findall(r"│ (.*?) +│ +(\d+) │", output)
    return {words: int(number) for words, number in rows}


def test_the_demo_loses_nothing_although_services_are_killed(tmp_path: Path) -> None:
    done = run("demo", str(tmp_path), "--producers", "2", "--events", "310", "--kills", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = numbers(done.stdout)
    assert rows["events pushed"] >= 2 * 310 + 2 * AT_ONCE
    assert rows["events at the sink (one under way at a kill may have come)"] >= rows["events pushed"]
    assert (rows["lost"], rows["out of order"]) == (0, 0)
    assert rows["broken events, set aside as dead letters"] >= 4


def test_without_a_kill_nothing_comes_twice_and_every_queue_is_empty(tmp_path: Path) -> None:
    done = run("demo", str(tmp_path), "--producers", "2", "--events", "30", "--kills", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = numbers(done.stdout)
    assert rows["events at the sink (one under way at a kill may have come)"] == rows["events pushed"] == 60
    assert rows["twice (shipped, and killed before the ack)"] == 0
    assert rows["broken events, set aside as dead letters"] == 2
    for place in queues_in(tmp_path / "queues"):
        with DurableEventQueue(place) as queue:
            assert queue.is_empty


def test_the_demo_acks_all_and_leaves_one_event_to_look_at(tmp_path: Path) -> None:
    done = run("demo", str(tmp_path), "--producers", "1", "--events", "10", "--kills", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    buffer = tmp_path / "buffer"
    manifest = Manifest.read(buffer)
    assert [entry.sequence for entry in manifest.entries] == [manifest.next_sequence - 1]
    with Consumer(buffer) as consumer:
        assert [batch.entries for batch in consumer] == [[b"one more, for you to look at"]]
    for path in ("ingest/.owner", "ingest/manifest", manifest.entries[0].location):
        assert path in done.stdout


def test_a_second_demo_in_the_same_directory_works_too(tmp_path: Path) -> None:
    for _ in range(2):
        done = run("demo", str(tmp_path), "--producers", "1", "--events", "5", "--kills", "0")
        assert done.returncode == 0, done.stderr
        assert numbers(done.stdout)["events pushed"] == 5


def test_the_version_is_the_packages() -> None:
    assert run("--version").stdout.strip() == f"penstock {penstock.__version__}"


@pytest.mark.parametrize("words", [("nonsense",), ("demo", "--producers", "0"), ("manifest", "nonsense")])
def test_a_mistake_is_said_and_ends_with_status_2(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_error_of_ours_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("demo", str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr.strip() == f"penstock: {tmp_path / 'file'} is a file, and a store needs a directory"
