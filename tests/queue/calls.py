"""Calls in threads of their own, and writes that are held back: every wait here has a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, ParamSpec, TypeVar

import pytest

from penstock.queue.database import Changes, Database
from penstock.queue.durable import DurableEventQueue

PATIENCE = 60.0  # seconds after which a call counts as stuck

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


class Call(Generic[Answer]):
    """A call in a thread of its own, which can hang without hanging the tests."""

    def __init__(self, work: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        self._future = Future[Answer]()

        def run() -> None:
            try:
                self._future.set_result(work(*args, **kwargs))
            except BaseException as error:
                self._future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()

    def answer(self) -> Answer:
        """What it returned. Raises what it raised."""
        return self._future.result(PATIENCE)

    def error(self) -> BaseException | None:
        """What it raised."""
        return self._future.exception(PATIENCE)


def together(*works: Callable[[], Answer]) -> list[Answer]:
    """Make calls at the same moment, each in a thread of its own, and return their answers."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], Answer]) -> Answer:
        start.wait(PATIENCE)
        return work()

    return [call.answer() for call in [Call(run, work) for work in works]]


class Writes:
    """The writes of all queues: how many there were, with what in them, and held back one by one if so wished."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, int]] = []  # events and acks of each write
        self._real = Database.write
        self._held: dict[int, Hold] = {}
        monkeypatch.setattr(Database, "write", lambda database, changes: self._write(database, changes))

    def hold(self, number: int, before: BaseException | None = None, after: BaseException | None = None) -> Hold:
        """Hold back the write with this number, counted from now on; raise something before or after it is made."""
        held = self._held[len(self.seen) + number] = Hold(before, after)
        return held

    def _write(self, database: Database, changes: Changes) -> None:
        held = self._held.get(len(self.seen), Hold.open())
        self.seen.append((len(changes.events), len(changes.acked)))
        held.pass_by()
        if held.before is not None:
            raise held.before
        self._real(database, changes)
        if held.after is not None:
            raise held.after


class Hold:
    """One write that is held back."""

    def __init__(self, before: BaseException | None = None, after: BaseException | None = None) -> None:
        self.before = before
        self.after = after
        self._came = threading.Event()
        self._may_go = threading.Event()

    @classmethod
    def open(cls) -> Hold:
        """One that holds back nothing."""
        hold = cls()
        hold.release()
        return hold

    def pass_by(self) -> None:
        """Be held back."""
        self._came.set()
        assert self._may_go.wait(PATIENCE)

    def wait(self) -> None:
        """Return when the write has come."""
        assert self._came.wait(PATIENCE)

    def release(self) -> None:
        """Let it go on."""
        self._may_go.set()


def ids(queue: DurableEventQueue[Any]) -> list[int]:
    """The ids of all that is on disk."""
    return [event.id for event in queue.iterate()]


def drained(queue: DurableEventQueue[Any]) -> list[int]:
    """Take all that is ready, and return its ids in the order in which they came."""
    found = []
    while (event := queue.pop()) is not None:
        found.append(event.id)
    return found


def pushes(queue: DurableEventQueue[bytes], events: Sequence[bytes]) -> list[Call[int]]:
    """Push each event in a thread of its own."""
    return [Call(lambda event=event: queue.push(event).id) for event in events]  # type: ignore[misc]
