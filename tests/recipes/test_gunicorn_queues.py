"""`examples/recipes/flask_queue.py`: workers of gunicorn, each with a queue of its own, beside `penstock ship`."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from penstock import open_store
from penstock.engine import ship
from penstock.queue import queues_in
from tests.support.buffer_contents import entries
from tests.support.waiting import until
from tests.support.web_servers import Clients, Run, Serve, Server

BOOTING = r"Booting worker with pid: (\d+)"
GUNICORN = ["gunicorn", "flask_queue:app", "-c", "gunicorn_hooks.py", "--bind", "127.0.0.1:0"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queues"


def shipped(buffer: Path) -> Counter[bytes]:
    return Counter(entries(open_store(buffer)))


def workers_of(server: Server) -> list[int]:
    """The processes of the workers that have begun and not ended."""
    begun = [int(number) for number in re.findall(BOOTING, server.output())]
    return [number for number in begun if Path(f"/proc/{number}").exists()]


@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["", "preload"])
def test_sigterm_under_load_drains_every_queue(
    serve: Serve, folder: Path, buffer: Path, preload: tuple[str, ...]
) -> None:
    server = serve(*GUNICORN, "--workers", "2", *preload, QUEUES=str(folder))
    clients = Clients(server)
    until(lambda: True if len(queues_in(folder)) == 2 else None, "the queue of the second worker")
    clients.wait_for_answers(100)
    assert server.terminate() == 0
    answered = clients.stop()
    assert clients.statuses == {200}
    assert not server.complaints()
    found = shipped(buffer)
    assert all(found[event] == 1 for event in answered), "the workers have shipped all before they ended"


@pytest.mark.slow
def test_workers_that_are_killed_under_load_lose_nothing_and_only_queues_of_live_workers_stay(
    serve: Serve, run: Run, folder: Path, buffer: Path
) -> None:
    server = serve(*GUNICORN, "--workers", "4", QUEUES=str(folder))
    shipper = run("penstock.cli", "ship", str(folder), str(buffer))
    clients = Clients(server, threads=8)
    for kills in range(1, 9):
        clients.wait_for_answers(50)
        os.kill(workers_of(server)[0], signal.SIGKILL)
        server.wait_for_output(BOOTING, 4 + kills)
    clients.wait_for_answers(50)
    assert clients.statuses == {200}
    until(lambda: True if len(queues_in(folder)) <= 4 else None, "the end of the queues of killed workers")
    server.kill()
    answered = clients.stop()
    until(lambda: True if not queues_in(folder) else None, "the end of all queues")
    assert shipper.terminate() == 0
    assert not shipper.complaints()
    found = shipped(buffer)
    assert [event for event in answered if not found[event]] == []
    assert sum(found.values()) - len(found) < 100, "what came again is what was under way at a kill"


def test_without_a_shipper_beside_it_a_new_worker_goes_on_with_the_queue_of_a_killed_one(
    serve: Serve, folder: Path, buffer: Path
) -> None:
    server = serve(*GUNICORN, "--workers", "1", QUEUES=str(folder))
    assert server.post(b"one") == 200
    (worker,) = workers_of(server)
    os.kill(worker, signal.SIGKILL)
    server.wait_for_output(BOOTING, 2)
    assert server.post(b"two") == 200
    assert server.terminate() == 0
    assert len(queues_in(folder)) == 1
    assert set(shipped(buffer)) == {b"one", b"two"}
    assert ship(folder, buffer, until_idle=True).processed == 0


QUEUE_AT_THE_TOP = """
from flask import Flask, request
from penstock import DurableEventQueue

queue = DurableEventQueue.for_worker({folder!r})
app = Flask(__name__)

@app.post("/events")
def receive():
    queue.push(request.get_data())
    return {{}}
"""


def test_a_queue_that_was_opened_before_the_fork_says_what_to_do(serve: Serve, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "top.py").write_text(QUEUE_AT_THE_TOP.format(folder=str(folder)))
    server = serve("gunicorn", "top:app", "--bind", "127.0.0.1:0", "--preload", at=tmp_path)
    assert server.post(b"event") == 500
    (complaint,) = [line for line in server.output().splitlines() if "penstock.errors.InvalidInput" in line]
    assert "Open queues after the fork, and none before it: in a server's hook for a new worker" in complaint
    assert server.terminate() == 0
