"""A Ctrl-C at the entry of every function of the queue, one after the other: the queue goes on after each of them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock.queue
from penstock import DurableEventQueue, EventQueue
from penstock.core import group_commit, waiting
from penstock.errors import BackpressureTimeout, StorageError
from penstock.queue import database
from tests.support.interrupts import Interrupts
from tests.support.queue_folder import Place
from tests.support.waiting import Background, wait_for_waiting_threads

INTERRUPTED = (os.path.dirname(penstock.queue.__file__), group_commit.__file__, waiting.__file__)
"""The files of the queue, and those of the core that its calls wait in."""


def interrupts_at(number: int) -> Interrupts:
    """An interrupt at the entry of a function of these files."""
    return Interrupts(
        number, lambda file: file.startswith(INTERRUPTED), lambda _, event: event == "call", (StorageError,)
    )


SLOW = ("push_many", "ack of one in flight", "ack of one that was given back", "iterate")
WORK: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "push": lambda queue: queue.push(b"x"),
    "push_many": lambda queue: queue.push_many([b"x", b"y"]),
    "pop": lambda queue: queue.pop(),
    "poll": lambda queue: queue.poll(0.001),
    "ack of one in flight": lambda queue: queue.ack(0),
    "ack of one that is ready": lambda queue: queue.ack(2),
    "ack of one that was given back": lambda queue: queue.ack(1),
    "nack": lambda queue: queue.nack(0),
    "len": len,
    "iterate": lambda queue: list(queue.iterate()),
}


def rounds(place: Place) -> Callable[[], DurableEventQueue[bytes]]:
    """A queue of its own for each interrupt: 0 is in flight, 1 was given back, 2 to 4 are ready."""
    names = itertools.count()

    def make() -> DurableEventQueue[bytes]:
        queue = DurableEventQueue(place.path / str(next(names)), lazy=place.lazy)
        queue.push_many([b"event"] * 5)
        queue.pop()
        queue.pop()
        queue.nack(1)
        return queue

    return make


@pytest.fixture(params=["lazy", pytest.param("eager", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path / "queue", lazy=request.param == "lazy")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in WORK]
)
def test_a_queue_goes_on_wherever_it_was_interrupted(place: Place, name: str) -> None:
    make = rounds(place)
    for number in itertools.count():
        queue = make()
        interrupts = interrupts_at(number)
        interrupts.during(lambda queue=queue: WORK[name](queue))  # type: ignore[misc]
        pushed = Background(lambda queue=queue: queue.push(b"after")).result()  # type: ignore[misc]
        there = [event.id for event in queue.iterate()]
        assert pushed.id in there
        assert len(queue) == len(there)
        for identifier in there:
            queue.nack(identifier)
        assert [event.id for event in iter(queue.pop, None)] == there
        Background(queue.close).result()
        if not interrupts.came:
            assert number > 0
            return


@pytest.mark.slow
def test_a_queue_whose_close_was_interrupted_is_closed_by_the_next_and_can_be_opened_again(tmp_path: Path) -> None:
    for number in itertools.count():
        path = tmp_path / str(number)
        queue = DurableEventQueue(path)
        queue.push(b"event")
        files = (database.__file__, contextlib.__file__)
        interrupts = Interrupts(number, files.__contains__, lambda _, event: event == "call")
        error = interrupts.during(queue.close)  # kept, with the frames that it came through
        Background(queue.close).result()
        with DurableEventQueue(path) as again:
            assert [event.event for event in again.iterate()] == [b"event"]
        if error is None:
            assert number > 0
            return


@pytest.mark.slow
def test_an_interrupt_while_another_queue_is_collected_as_garbage_hits_no_call_of_it(tmp_path: Path) -> None:
    """What is raised in a finalizer is lost, and so would be the interrupt."""
    for number in itertools.count():
        dropped: Any = DurableEventQueue(tmp_path / f"dropped{number}")
        dropped.close()
        dropped.itself = dropped  # only the collector frees it
        queue = DurableEventQueue(tmp_path / f"queue{number}")
        gc.disable()
        try:
            del dropped
            interrupts = interrupts_at(number)
            interrupts.during(lambda queue=queue: (gc.collect(), queue.poll(0.001)))  # type: ignore[misc]
        finally:
            gc.enable()
        queue.close()
        if not interrupts.came:
            assert number > 0
            return


@pytest.mark.parametrize("name", ["push", "pop", "poll"])
@pytest.mark.parametrize("size", [0, 1, 2], ids=["empty", "half full", "full"])
def test_a_queue_in_memory_goes_on_wherever_it_was_interrupted(name: str, size: int) -> None:
    work: dict[str, Callable[[EventQueue[str]], object]] = {
        "push": lambda queue: queue.push("x", timeout=0.001),
        "pop": lambda queue: queue.pop(),
        "poll": lambda queue: queue.poll(0.001),
    }
    for number in itertools.count():
        queue = EventQueue[str](maxsize=2)
        for _ in range(size):
            queue.push("first")
        interrupts = interrupts_at(number)
        with suppress(BackpressureTimeout):
            interrupts.during(lambda queue=queue: work[name](queue))  # type: ignore[misc]
        while Background(queue.pop).result():
            pass
        polling = Background(queue.poll, None)
        wait_for_waiting_threads()
        queue.push("after")
        assert polling.result() == "after"
        for event in ("one", "two"):
            queue.push(event)
        pushing = Background(queue.push, "three")
        wait_for_waiting_threads()
        assert queue.pop() == "one"
        pushing.result()
        if not interrupts.came:
            assert number > 0
            return
