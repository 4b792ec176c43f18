"""A program that leaves without closing its producer, in the way it is told: `python -m ... WAY PLACE`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable

from penstock import Producer, ProducerConfig
from tests.support.waiting import NEVER, Gate

_OPEN = ProducerConfig(flush_interval=NEVER)
_AT_ONCE = ProducerConfig(flush_size_bytes=1)
_METHODS = {"fork": multiprocessing.get_context("fork").Process, "spawn": multiprocessing.get_context("spawn").Process}


def at_the_end(place: str) -> None:
    """Leave where the program ends, with a batch open and others on their way."""
    Producer(place, _OPEN).produce([b"one", b"two"])
    producer = Producer(place, _AT_ONCE)
    for number in range(5):
        producer.produce(b"%d" % number)


def by_sys_exit(place: str) -> None:
    """Leave by `sys.exit`, within functions that still hold the producer."""
    producer = Producer(place, _OPEN)
    producer.produce(b"one")
    sys.exit(3)


def by_an_error(place: str) -> None:
    """Leave by an error that nobody catches."""
    Producer(place, _OPEN).produce(b"one")
    raise LookupError("nobody catches this")


def after_a_close(place: str) -> None:
    """Leave with the producer closed: there is nothing left to do."""
    producer = Producer(place, _OPEN)
    producer.produce(b"one")
    producer.close()


def from_a_child(method: str) -> Callable[[str], None]:
    """Have a child of `multiprocessing` leave without a close, and do nothing but wait for it."""

    def leave(place: str) -> None:
        _join(_METHODS[method](target=_produce_and_end, args=(place, b"child")))

    return leave


def from_a_child_and_its_parent(method: str) -> Callable[[str], None]:
    """Have both leave without a close, each with a producer of its own."""

    def leave(place: str) -> None:
        Producer(place, _OPEN).produce(b"parent")
        _join(_METHODS[method](target=_produce_and_end, args=(place, b"child")))

    return leave


def with_an_idle_child(place: str) -> None:
    """Leave as a parent whose child of `multiprocessing` never touched the producer it was forked with."""
    Producer(place, _OPEN).produce(b"parent")
    _join(_METHODS["fork"](target=_do_nothing))


def with_a_fork(place: str) -> None:
    """Fork, and leave from both: the child at the end of the program, as its parent does."""
    producer = Producer(place, _OPEN)
    producer.produce(b"parent")
    _fork_and_wait(_do_nothing)


def with_a_fork_that_produces(place: str) -> None:
    """Fork, and leave from both without a close, each with a producer of its own."""
    producer = Producer(place, _OPEN)
    producer.produce(b"parent")
    _fork_and_wait(lambda: _produce_and_end(place, b"child"))


def with_a_fork_while_locked(place: str) -> None:
    """Fork at a moment when the producer's lock is held, and leave from both."""
    gate = Gate()
    producer = Producer(place, _OPEN, clock=_clock_that_stops_at(gate))
    producing = threading.Thread(target=lambda: producer.produce(b"parent"))
    producing.start()
    gate.wait_for_somebody()  # it stands within `produce`, where the clock is read
    _fork_and_wait(_do_nothing)
    gate.open()
    producing.join()


WAYS: dict[str, Callable[[str], None]] = {
    "at the end": at_the_end,
    "by sys.exit": by_sys_exit,
    "by an error": by_an_error,
    "after a close": after_a_close,
    "from a forked child": from_a_child("fork"),
    "from a spawned child": from_a_child("spawn"),
    "from a forked child and its parent": from_a_child_and_its_parent("fork"),
    "from a spawned child and its parent": from_a_child_and_its_parent("spawn"),
    "with an idle child": with_an_idle_child,
    "with a fork": with_a_fork,
    "with a fork that produces": with_a_fork_that_produces,
    "with a fork while locked": with_a_fork_while_locked,
}


def _produce_and_end(place: str, given: bytes) -> None:
    Producer(place, _OPEN).produce(given)


def _do_nothing() -> None:
    pass


def _clock_that_stops_at(gate: Gate) -> Callable[[], float]:
    def clock() -> float:
        gate()
        return 1.0

    return clock


def _join(child: multiprocessing.process.BaseProcess) -> None:
    child.start()
    child.join()
    if child.exitcode:
        sys.exit(f"the child left with {child.exitcode}")


def _fork_and_wait(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        work()
        sys.exit(0)  # through everything that an interpreter does at its end
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"the child left with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    WAYS[sys.argv[1]](sys.argv[2])
