"""`examples/recipes/flask_producer.py` under gunicorn: workers with threads, and what --preload leads to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from penstock import open_store
from tests.support.buffer_contents import entries
from tests.support.web_servers import Clients, Serve

GUNICORN = ["gunicorn", "flask_producer:app", "--bind", "127.0.0.1:0", "--workers", "2"]


def test_sigterm_under_load_loses_nothing_that_was_answered(serve: Serve, buffer: Path) -> None:
    server = serve(*GUNICORN, "--worker-class", "gthread", "--threads", "4")
    clients = Clients(server, threads=8)
    clients.wait_for_answers(100)
    assert server.terminate() == 0
    answered = clients.stop()
    assert clients.statuses == {200}
    found = Counter(entries(open_store(buffer)))
    assert all(found[event] == 1 for event in answered)
    assert not server.complaints()


def test_a_producer_that_was_made_before_the_fork_says_what_to_do(serve: Serve, buffer: Path) -> None:
    server = serve(*GUNICORN, "--preload")
    assert server.post(b"event") == 500
    (complaint,) = [line for line in server.output().splitlines() if "penstock.errors.InvalidInput" in line]
    assert "belongs to the process" in complaint
    assert complaint.endswith("make a Producer here")
    assert server.terminate() == 0
    assert not (buffer / "ingest").exists()
