"""`penstock queue`: what durable queues hold, as a table or as JSON, without taking any of it, and their repair."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import rocksdict

from penstock import DurableEventQueue
from tests.support.command import Here, run


def test_a_queue_is_dumped_and_nothing_is_taken(tmp_path: Path, here: Here) -> None:
    with DurableEventQueue(tmp_path / "outbox") as queue:
        queue.push_many([b"acked", b"first", b"\xff\x00", b"third"])
        queue.ack(0)
    raw = rocksdict.Rdict(str(tmp_path / "outbox"), rocksdict.Options(raw_mode=True))
    raw[b"\x01odd"] = b"?"
    raw.close()
    done = here("queue", "dump", str(tmp_path / "outbox"), "--most", "2")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert 0 <= found.pop("oldest_age_seconds") < 100
    assert found == {
        "not_acked": 3,
        "corrupt_keys": [b"\x01odd".hex()],
        "events": [
            {"id": number, "bytes": len(event), "base64": base64.b64encode(event).decode()}
            for number, event in ((1, b"first"), (2, b"\xff\x00"))
        ],
    }
    with DurableEventQueue(tmp_path / "outbox") as queue:
        assert queue.ready_len() == 3


def test_where_there_is_no_queue_none_is_made(tmp_path: Path, here: Here) -> None:
    done = here("queue", "dump", str(tmp_path))
    assert (done.status, done.out) == (1, "")
    assert f"there is no durable queue in {tmp_path}" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_queue_that_is_open_is_reported(tmp_path: Path) -> None:
    with DurableEventQueue(tmp_path):
        done = run("queue", "dump", str(tmp_path))
    assert done.returncode == 1
    assert "is open in another process" in done.stderr


def lose_the_log(path: Path) -> None:
    """Push five events, and lose the log with the last three, as after a crash."""
    with DurableEventQueue(path) as queue:
        queue.push_many([b"first", b"second"])
    with DurableEventQueue(path) as queue:  # opening it writes what is in the log to another file
        queue.push_many([b"lost"] * 3)
        files = {file.name: file.read_bytes() for file in path.iterdir()}
    for file in path.iterdir():
        if file.is_file():
            file.unlink()
    for name, data in files.items():
        (path / name).write_bytes(data)
    max(path.glob("*.log")).write_bytes(b"")


def test_a_damaged_queue_is_not_dumped_and_its_error_says_how_to_repair_it(tmp_path: Path, here: Here) -> None:
    lose_the_log(tmp_path)
    done = here("queue", "dump", str(tmp_path))
    assert (done.status, done.out) == (1, "")
    assert "3 events are missing: ids up to 4 were given" in done.err
    assert f"`penstock queue repair {tmp_path}`" in done.err


def test_a_damaged_queue_is_repaired_and_what_is_lost_is_named(tmp_path: Path, here: Here) -> None:
    lose_the_log(tmp_path)
    done = here("queue", "repair", str(tmp_path))
    assert done.status == 0, done.err
    assert "2 events kept (ids 0 to 1), 3 lost (of the ids 2 to 4)" in done.out
    assert f"The damaged files are in {tmp_path / 'damaged-1'}" in done.out
    assert "Nothing was changed" not in done.out
    again = here("queue", "repair", str(tmp_path))
    assert (again.status, "is whole: 2 events, and nothing was changed" in again.out) == (0, True)
    found = json.loads(here("queue", "dump", str(tmp_path)).out)
    assert [base64.b64decode(event["base64"]) for event in found["events"]] == [b"first", b"second"]


def test_where_there_is_no_queue_none_is_repaired(tmp_path: Path, here: Here) -> None:
    done = here("queue", "repair", str(tmp_path))
    assert (done.status, done.out) == (1, "")
    assert f"there is no durable queue in {tmp_path}" in done.err


def test_control_characters_of_a_path_never_reach_the_terminal(tmp_path: Path, here: Here) -> None:
    path = tmp_path / "out\x1b[31m\nbox"
    for words in (("dump",), ("repair",)):
        done = here("queue", *words, str(path))
        assert (done.status, done.err.count("\n"), "\x1b" in done.err) == (1, 1, False)
    lose_the_log(path)
    done = here("queue", "dump", str(path))
    assert (done.status, done.err.count("\n"), "\x1b" in done.err) == (1, 1, False)
    done = here("queue", "repair", str(path))
    assert (done.status, done.out.count("\n"), "\x1b" in done.out) == (0, 2, False)


# --- status


def test_the_status_of_a_queue_that_another_process_has_open(tmp_path: Path) -> None:
    with DurableEventQueue(tmp_path / "outbox") as queue:
        queue.push_many([b"event"] * 3)
        queue.ack(0)
        done = run("queue", "status", str(tmp_path / "outbox"), "--json")
        assert queue.ready_len() == 2
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = json.loads(done.stdout)
    assert found.pop("bytes_on_disk") > 0
    assert 0 <= found.pop("seconds_since_write") < 100
    assert found == {
        "path": str(tmp_path / "outbox"),
        "of_worker": False,
        "not_acked": 2,
        "is_open": True,
        "process": os.getpid(),
        "damage": None,
    }


def test_the_status_of_a_folder_is_a_line_for_each_queue(tmp_path: Path, here: Here) -> None:
    with DurableEventQueue(tmp_path / "broken") as queue:
        queue.push(b"event")
    (tmp_path / "broken" / "penstock-mark").unlink()
    with DurableEventQueue(tmp_path / "own") as queue:
        queue.push_many([b"event"] * 2)
    with DurableEventQueue.for_worker(tmp_path) as queue:
        queue.push(b"event")
        done = here("queue", "status", str(tmp_path))
    assert (done.status, done.err) == (0, "")
    broken, own, worker, total = [line for line in done.out.splitlines() if " │ " in line or "queues" in line]
    assert "damaged: its file penstock-mark is missing" in broken
    assert [cell.strip() for cell in own.strip("│").split("│")][:2] == ["own", "2"]
    assert "not open" in own
    assert f"of a worker, open in process {os.getpid()}" in worker
    assert total == "3 queues, 1 open; 3 events"


def test_where_there_is_no_queue_its_status_is_an_error_in_one_line(tmp_path: Path, here: Here) -> None:
    for place in (tmp_path, tmp_path / "nothing"):
        for more in ((), ("--json",)):
            done = here("queue", "status", str(place), *more)
            assert done.is_error(f"there is no durable queue in {place}")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_queues_of_workers_are_all_shipped_has_an_empty_status(tmp_path: Path, here: Here) -> None:
    with DurableEventQueue.for_worker(tmp_path):
        pass
    assert here("ship", str(tmp_path), str(tmp_path / "buffer"), "--until-idle").status == 0
    assert json.loads(here("queue", "status", str(tmp_path), "--json").out) == []
    assert here("queue", "status", str(tmp_path)).out == "0 queues, 0 open; 0 events\n"
