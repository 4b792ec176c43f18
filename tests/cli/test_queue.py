"""`penstock queue dump`: what a durable queue holds, as JSON, without taking any of it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import rocksdict

from penstock import DurableEventQueue
from tests.cli.command import run


def test_a_queue_is_dumped_and_nothing_is_taken(tmp_path: Path) -> None:
    with DurableEventQueue(tmp_path / "outbox") as queue:
        queue.push_many([b"acked", b"first", b"\xff\x00", b"third"])
        queue.ack(0)
    raw = rocksdict.Rdict(str(tmp_path / "outbox"), rocksdict.Options(raw_mode=True))
    raw[b"\x01odd"] = b"?"
    raw.close()
    done = run("queue", "dump", str(tmp_path / "outbox"), "--most", "2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
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


def test_where_there_is_no_queue_none_is_made(tmp_path: Path) -> None:
    done = run("queue", "dump", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no durable queue in {tmp_path}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_queue_that_is_open_is_said_to_be(tmp_path: Path) -> None:
    with DurableEventQueue(tmp_path):
        done = run("queue", "dump", str(tmp_path))
    assert done.returncode == 1
    assert "is open in another process" in done.stderr
