"""`examples/recipes/celery_tasks.py` in a real worker with the prefork pool; its broker is a folder."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import Celery

from penstock import open_store
from tests.support.buffer_contents import entries
from tests.support.waiting import until
from tests.support.web_servers import RECIPES, Program, Run

TASKS_IN_FOLDERS = """
from celery_tasks import app

app.conf.broker_transport_options = {options!r}
"""


@pytest.fixture
def broker(tmp_path: Path) -> Celery:
    """A client of the broker."""
    folders = {f"{name}_folder": str(tmp_path / name) for name in ("control", "processed")}
    options: dict[str, object] = {
        "data_folder_in": str(tmp_path / "tasks"),
        "data_folder_out": str(tmp_path / "tasks"),
        **folders,
    }
    for folder in options.values():
        os.makedirs(str(folder), exist_ok=True)
    options["polling_interval"] = 0.02
    (tmp_path / "tasks_in_folders.py").write_text(TASKS_IN_FOLDERS.format(options=options))
    client = Celery("client", broker="filesystem://")
    client.conf.broker_transport_options = options
    return client


@pytest.fixture
def worker(run: Run, broker: Celery, tmp_path: Path) -> Callable[[], Program]:
    def start() -> Program:
        program = run(
            *("celery", "-A", "tasks_in_folders", "worker", "--concurrency", "2", "-l", "INFO"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            at=tmp_path,
            BROKER="filesystem://",
            PYTHONPATH=str(RECIPES),
        )
        program.wait_for_output("(ready)\\.")
        return program

    return start


def numbers_in(buffer: Path) -> list[int]:
    if not buffer.exists():
        return []
    return sorted(json.loads(entry)["number"] for entry in entries(open_store(buffer)))


def test_a_task_that_is_done_has_its_event_in_the_buffer(
    broker: Celery, worker: Callable[[], Program], buffer: Path
) -> None:
    program = worker()
    for number in range(3):
        broker.send_task("celery_tasks.record", [{"number": number}])
    program.wait_for_output("succeeded in", 3)
    assert numbers_in(buffer) == [0, 1, 2]


@pytest.mark.slow
def test_a_task_whose_process_is_killed_is_run_again_by_another_one(
    broker: Celery, worker: Callable[[], Program], buffer: Path
) -> None:
    program = worker()
    for number in range(20):
        broker.send_task("celery_tasks.record", [{"number": number}])
    program.wait_for_output("succeeded in", 3)
    children = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children")
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    until(lambda: True if set(numbers_in(buffer)) == set(range(20)) else None, "the end of all tasks")
    program.wait_for_output("exited with 'signal 9")
    assert program.terminate() == 0
