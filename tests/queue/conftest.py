"""A queue in both modes: every test that asks for `lazy`, `place` or `queue` runs on a lazy and on an eager one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import DurableEventQueue
from tests.queue.writes import Writes
from tests.support.queue_folder import Place


@pytest.fixture(params=[True, False], ids=["lazy", "eager"])
def lazy(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def place(lazy: bool, tmp_path: Path) -> Iterator[Place]:
    """A directory without a queue."""
    place = Place(tmp_path / "queue", lazy=lazy)
    yield place
    place.close()


@pytest.fixture
def queue(place: Place) -> DurableEventQueue[bytes]:
    """An empty queue."""
    return place.open()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writes]:
    """The writes of every queue of this test."""
    writes = Writes(monkeypatch)
    yield writes
    writes.release_all()
