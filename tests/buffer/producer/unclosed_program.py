"""A program that ends without closing its producer: `python -m ... WAY URL`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable

from penstock import Producer, ProducerConfig
from tests.support.filled_buffers import each_alone
from tests.support.waiting import NEVER, Gate

_OPEN = ProducerConfig(flush_interval=NEVER)
_METHODS = {"fork": multiprocessing.get_context("fork").Process, "spawn": multiprocessing.get_context("spawn").Process}


def at_the_end(url: str) -> None:
    """End with an open batch and others under way."""
    Producer(url, _OPEN).produce([b"one", b"two"])
    producer = Producer(url, each_alone())
    for number in range(5):
        producer.produce(b"%d" % number)


def by_sys_exit(url: str) -> None:
    """End by `sys.exit`, in a function that still holds the producer."""
    producer = Producer(url, _OPEN)
    producer.produce(b"one")
    sys.exit(3)


def by_an_error(url: str) -> None:
    """End by an uncaught error."""
    Producer(url, _OPEN).produce(b"one")
    raise LookupError("not caught")


def after_a_close(url: str) -> None:
    """End with the producer closed: there is nothing to flush."""
    producer = Producer(url, _OPEN)
    producer.produce(b"one")
    producer.close()


def from_a_child(method: str) -> Callable[[str], None]:
    """Have a child of `multiprocessing` end without a close, and wait for it."""

    def end(url: str) -> None:
        _join(_METHODS[method](target=_produce_and_end, args=(url, b"child")))

    return end


def from_a_child_and_its_parent(method: str) -> Callable[[str], None]:
    """Have a child and its parent end without a close, each with its own producer."""

    def end(url: str) -> None:
        Producer(url, _OPEN).produce(b"parent")
        _join(_METHODS[method](target=_produce_and_end, args=(url, b"child")))

    return end


def with_an_idle_child(url: str) -> None:
    """End as the parent of a forked child that never used the producer."""
    Producer(url, _OPEN).produce(b"parent")
    _join(_METHODS["fork"](target=_do_nothing))


def with_a_fork(url: str) -> None:
    """Fork, and end both at the end of the program."""
    producer = Producer(url, _OPEN)
    producer.produce(b"parent")
    _fork_and_wait(_do_nothing)


def with_a_fork_that_produces(url: str) -> None:
    """Fork, and end both without a close, each with its own producer."""
    producer = Producer(url, _OPEN)
    producer.produce(b"parent")
    _fork_and_wait(lambda: _produce_and_end(url, b"child"))


def with_a_fork_while_locked(url: str) -> None:
    """Fork while the producer's lock is held, and end both."""
    gate = Gate()
    producer = Producer(url, _OPEN, clock=_clock_that_stops_at(gate))
    producing = threading.Thread(target=lambda: producer.produce(b"parent"))
    producing.start()
    gate.wait_for_arrival()  # it is within `produce`, where the clock is read
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


def _produce_and_end(url: str, given: bytes) -> None:
    Producer(url, _OPEN).produce(given)


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
        sys.exit(f"the child ended with {child.exitcode}")


def _fork_and_wait(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        work()
        sys.exit(0)  # with everything that an interpreter does at its end
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"the child ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    WAYS[sys.argv[1]](sys.argv[2])
