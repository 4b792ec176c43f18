"""`fastapi_app.py` and `fastapi_queue.py` of the recipes under uvicorn, and under gunicorn with its workers."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from penstock import open_store
from penstock.engine import ship
from penstock.queue import queues_in
from tests.support.buffer_contents import entries
from tests.support.waiting import until
from tests.support.web_servers import Clients, Serve

UVICORN = ["uvicorn", "fastapi_app:app", "--port", "0", "--no-access-log"]
GUNICORN = ["gunicorn", "fastapi_app:app", "--bind", "127.0.0.1:0", "--worker-class", "uvicorn_worker.UvicornWorker"]
SERVERS = {
    "uvicorn": UVICORN,
    "uvicorn, 2 workers": [*UVICORN, "--workers", "2"],
    "gunicorn, 2 workers": [*GUNICORN, "--workers", "2"],
}


def in_buffer(buffer: Path) -> Counter[bytes]:
    return Counter(entries(open_store(buffer)))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_answer_of_200_means_that_the_event_is_in_the_buffer(serve: Serve, buffer: Path, loop: str) -> None:
    server = serve(*UVICORN, "--loop", loop)
    for number in range(3):
        status, body = server.ask("POST", "/events", b"click %d" % number)
        assert (status, body) == (200, b'{"sequence":%d}' % number)
        assert entries(open_store(buffer))[number] == b"click %d" % number
    assert server.terminate() in (0, -signal.SIGTERM)
    assert not server.complaints()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "uvicorn, 2 workers")) for kind in SERVERS]
)
def test_sigterm_under_load_loses_nothing_that_was_answered(serve: Serve, buffer: Path, kind: str) -> None:
    server = serve(*SERVERS[kind])
    clients = Clients(server, threads=8)
    clients.wait_for_answers(100)
    assert server.terminate() in (0, -signal.SIGTERM)
    answered = clients.stop()
    assert clients.statuses == {200}
    found = in_buffer(buffer)
    assert all(found[event] == 1 for event in answered)
    assert not server.complaints()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "uvicorn")) for kind in SERVERS]
)
def test_a_kill_under_load_loses_nothing_that_was_answered(serve: Serve, buffer: Path, kind: str) -> None:
    server = serve(*SERVERS[kind])
    clients = Clients(server, threads=8)
    clients.wait_for_answers(100)
    server.kill()
    answered = clients.stop()
    found = in_buffer(buffer)
    assert all(found[event] == 1 for event in answered)


def of_queues(kind: str) -> list[str]:
    return [word.replace("fastapi_app", "fastapi_queue") for word in SERVERS[kind]]


@pytest.mark.parametrize("kind", [pytest.param("uvicorn, 2 workers", marks=pytest.mark.slow), "gunicorn, 2 workers"])
def test_workers_with_queues_of_their_own_drain_them_at_sigterm(
    serve: Serve, buffer: Path, tmp_path: Path, kind: str
) -> None:
    server = serve(*of_queues(kind), QUEUES=str(tmp_path / "queues"))
    clients = Clients(server, threads=8)
    until(lambda: True if len(queues_in(tmp_path / "queues")) == 2 else None, "the queue of the second worker")
    clients.wait_for_answers(100)
    assert server.terminate() in (0, -signal.SIGTERM)
    answered = clients.stop()
    assert clients.statuses == {200}
    assert not server.complaints()
    found = in_buffer(buffer)
    assert all(found[event] == 1 for event in answered)


def test_after_a_kill_the_queues_of_the_workers_are_shipped_and_removed(
    serve: Serve, buffer: Path, tmp_path: Path
) -> None:
    server = serve(*of_queues("uvicorn, 2 workers"), QUEUES=str(tmp_path / "queues"))
    clients = Clients(server, threads=8)
    clients.wait_for_answers(100)
    server.kill()
    answered = clients.stop()
    ship(tmp_path / "queues", buffer, until_idle=True)
    assert not queues_in(tmp_path / "queues")
    found = in_buffer(buffer)
    assert all(found[event] for event in answered)
