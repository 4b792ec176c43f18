"""A stream read as Spark 4.0 and 4.1 have it, into a stream write, under SIGKILL: each event is there once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.backlogs import Backlog
from tests.support.process_sessions import Session
from tests.support.repository import ROOT
from tests.support.spark_session import skip_without_java
from tests.support.waiting import until

EVENTS = 24
STARTED = 240  # seconds for a session and its first blocks, on a busy machine too


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_copy_that_is_killed_has_every_event_once(tmp_path: Path) -> None:
    skip_without_java()
    events, copy = Backlog(str(tmp_path / "events")), Backlog(str(tmp_path / "copy"))
    events.put_numbers(0, EVENTS)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }

    def start() -> Session:
        job = str(Path(__file__).with_name("killed_copy.py"))
        places = [events.url, copy.url, str(tmp_path / "checkpoint")]
        return Session([sys.executable, job, *places], environment, tmp_path)

    for block in (1, 4):
        running = start()
        try:
            running.hear(rf"block ({'|'.join(str(number) for number in range(block, EVENTS))})$", STARTED)
        finally:
            running.kill()
        assert set(events.sequences()) >= set(range(len(copy.values()), EVENTS))  # nothing is acked that is not there
    running = start()
    try:
        until(lambda: len(copy.values()) >= EVENTS or None, "all events in the copy", STARTED)
    finally:
        running.kill()

    assert sorted(int(value) for value in copy.values()) == list(range(EVENTS))
