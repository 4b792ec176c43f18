"""Signals that arrive while the main thread waits for a record."""

from __future__ import annotations

import linecache
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from penstock.errors import Closed
from penstock.metalog import InProcessMetadataLog, MetadataLog, PartitionStart
from penstock.metalog import subscription as under_test
from penstock.metalog.subscription import Wanted
from tests.metalog.feeds import MeddledFeed
from tests.metalog.reading import expected, fill, take
from tests.support.processes import PATIENCE
from tests.support.waiting import Background, Bell


@contextmanager
def on_signal(do: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Do something when the main thread gets a signal; yields what sends it one, and returns when it has arrived."""
    arrived = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if not arrived.is_set():
            arrived.set()
            do()

    def send() -> None:
        arrived.clear()
        while not arrived.is_set():  # one that comes just before a wait begins does not end it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            arrived.wait(0.01)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield send
    finally:
        signal.signal(signal.SIGUSR1, before)


# The lines on which a thread stands that waits: for a condition, and for Kafka's client.
_WAITS = ("waiter.acquire(", "return call(*args)")


def once_it_waits(do: Callable[[], object]) -> Background[None]:
    """Do something in another thread when the main thread stands still."""
    main = threading.main_thread().ident or 0

    def follow() -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            frame = sys._current_frames()[main]
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if any(wait in line for wait in _WAITS) and _is_in_a_subscription(frame):
                do()
                return
        raise AssertionError("it does not wait")

    return Background(follow)


def _is_in_a_subscription(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != under_test.__file__:
        frame = frame.f_back
    return frame is not None


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_handler_closes_the_subscription_that_its_own_thread_waits_for(log: MetadataLog) -> None:
    records = log.subscribe([PartitionStart(0), PartitionStart(1)])
    with on_signal(records.close) as send:
        sender = once_it_waits(send)
        with pytest.raises(Closed):
            records.poll(PATIENCE)
        sender.result()
    assert list(records) == []


def test_a_handler_that_closes_gives_the_feed_back_when_the_fetch_is_over() -> None:
    feed = MeddledFeed(InProcessMetadataLog(3))
    states: list[int] = []
    feed.after_fetch = lambda: states.append(feed.closed)
    records = feed.subscribe(PartitionStart(0))
    with on_signal(records.close) as send:
        sender = once_it_waits(send)
        assert list(records) == []
        sender.result()
    assert states == [0]
    assert feed.closed == 1


def test_a_handler_closes_what_its_own_thread_waits_for_another_to_fetch() -> None:
    feed = MeddledFeed(InProcessMetadataLog(3))
    fetching = Bell()
    feed.before_fetch = fetching
    records = feed.subscribe(PartitionStart(0))
    other = Background(lambda: list(records))
    fetching.wait()
    with on_signal(records.close) as send:
        sender = once_it_waits(send)
        assert list(records) == []
        sender.result()
    assert other.result() == []
    assert feed.closed == 1


def test_a_poll_that_is_interrupted_loses_nothing(log: MetadataLog) -> None:
    with on_signal(interrupt) as send, log.subscribe([PartitionStart(0)]) as records:
        for offset in range(10):
            sender = once_it_waits(send)
            with pytest.raises(KeyboardInterrupt):
                records.poll(PATIENCE)
            sender.result()
            fill(log, 0, [offset])
            assert Background(lambda: take(records, 1)).result() == expected(0, [offset])


def test_an_interrupt_that_meets_the_answer_of_a_fetch_loses_nothing() -> None:
    log = InProcessMetadataLog(3)
    fill(log, 0, range(5))
    feed = MeddledFeed(log)
    with feed.subscribe(PartitionStart(0)) as records:
        feed.after_fetch = interrupt
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                records.poll(PATIENCE)
        feed.after_fetch = lambda: None
        assert Background(lambda: take(records, 5)).result() == expected(0, range(5))


def test_an_interrupt_before_a_fetch_has_begun_leaves_the_turn_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    log = InProcessMetadataLog(3)
    fill(log, 0, range(2))

    def interrupted(*args: int) -> Wanted:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with log.subscribe([PartitionStart(0)]) as records:
        monkeypatch.setattr(under_test, "Wanted", interrupted)
        with pytest.raises(KeyboardInterrupt):
            records.poll(PATIENCE)
        assert records.poll(0) == expected(0, [0])[0]
        assert Background(lambda: records.poll(0)).result() == expected(0, [1])[0]
