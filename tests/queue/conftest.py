"""A queue in both modes: every test that asks for `place` or `queue` runs on a lazy and on an eager one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import DurableEventQueue
from penstock.queue.database import Changes, Database
from tests.queue.writes import Writes
from tests.support.queue_folder import Place


@pytest.fixture(params=["lazy", "eager"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where no queue is yet."""
    place = Place(tmp_path / "queue", lazy=request.param == "lazy")
    yield place
    place.close()


@pytest.fixture
def queue(place: Place) -> DurableEventQueue[bytes]:
    """An empty queue."""
    return place.open()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writes]:
    """What every queue of this test writes, from now on."""
    writes = Writes(Database.write)

    def write(database: Database, changes: Changes) -> None:
        writes(database, changes)

    monkeypatch.setattr(Database, "write", write)
    yield writes
    writes.let_go()
