"""Publishes, adds, removes and polls that meet each other: every record comes once, in order, and to one taker."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable
from itertools import combinations_with_replacement, count
from types import FrameType
from typing import Any

import pytest

from penstock.errors import StorageError
from penstock.metalog import InProcessMetadataLog, MetadataLog, MetadataRecord, PartitionStart, Subscription
from penstock.metalog import subscription as under_test
from tests.metalog.conftest import Backend
from tests.metalog.feeds import MeddledFeed
from tests.metalog.reading import expected, fill, of, soon, take
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background, Bell, Gate


def all_there(records: Subscription) -> list[MetadataRecord]:
    """What a log in this process has at once."""
    found = []
    while (record := records.poll(0)) is not None:
        found.append(record)
    return found


# An add that races with a publish


@pytest.mark.usefixtures("hasty")
def test_an_add_that_races_with_publishes_delivers_the_backlog_and_then_them(backend: Backend) -> None:
    rounds = backend.share(3000)
    log = backend.open(2)
    fill(log, 0, range(3))
    records = log.subscribe([PartitionStart(1)])
    together = threading.Barrier(3, timeout=PATIENCE)

    def publish() -> None:
        for each in range(rounds):
            together.wait()
            fill(log, 0, range(3 + 3 * each, 6 + 3 * each))

    def add() -> None:
        for each in range(rounds):
            together.wait()
            records.add(PartitionStart(0, 3 * each))

    with records:
        others = [Background(publish), Background(add)]
        for each in range(rounds):
            together.wait()
            assert take(records, 6) == expected(0, range(3 * each, 3 * each + 6))
            records.remove(0)
        for other in others:
            other.result()


class AtLines:
    """Does something before some of the lines of `subscription.py` that this thread comes to; they are counted."""

    def __init__(self, lines: tuple[int, ...], do: Callable[[], object]) -> None:
        self._lines = lines
        self._do = do
        self.passed = 0

    def __enter__(self) -> AtLines:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != under_test.__file__:
            return None
        if event == "line":
            for _ in range(self._lines.count(self.passed)):
                self._do()
            self.passed += 1
        return self._trace


def test_two_publishes_before_any_two_lines_of_an_add_and_the_polls_after_it() -> None:
    def passed_with(*lines: int) -> int:
        log = InProcessMetadataLog(2)
        fill(log, 0, range(2))
        records = log.subscribe([PartitionStart(1)])
        with AtLines(lines, lambda: fill(log, 0, log.high_water_marks()[:1])) as at:
            records.add(PartitionStart(0))
            first = [records.poll(0), records.poll(0)]
        assert [*first, *all_there(records)] == expected(0, range(2 + len(lines))), lines
        return at.passed

    longest = passed_with()
    assert longest > 40
    for lines in combinations_with_replacement(range(longest), 2):
        passed_with(*lines)


def test_publishes_between_all_steps_of_the_feed() -> None:
    for seed in range(2000):
        dice = random.Random(seed)
        log = InProcessMetadataLog(3)
        feed = MeddledFeed(log)

        def publish_some(dice: random.Random = dice, log: InProcessMetadataLog = log) -> None:
            for _ in range(dice.randrange(3)):
                partition = dice.randrange(2)
                fill(log, partition, [log.high_water_marks()[partition]])

        publish_some()
        start = dice.randrange(3)
        with feed.subscribe(PartitionStart(1)) as records:
            feed.before_fetch = feed.after_fetch = feed.before_wake = publish_some
            seen = [records.poll(0)]
            records.add(PartitionStart(0, start))
            seen += [records.poll(0) for _ in range(5)]
            feed.before_fetch = feed.after_fetch = feed.before_wake = lambda: None
            found = [record for record in (*seen, *all_there(records)) if record is not None]
        marks = log.high_water_marks()
        assert of(0, found) == expected(0, range(start, marks[0])), seed
        assert of(1, found) == expected(1, range(marks[1])), seed


# A subscriber that is slow


def sleeps_through(log: MetadataLog, publishes: int) -> None:
    with log.subscribe([PartitionStart(0), PartitionStart(1)]) as records:
        fill(log, 0, range(2))
        assert take(records, 1) == expected(0, [0])
        fill(log, 0, range(2, publishes))
        fill(log, 1, range(10))
        seen = take(records, publishes + 9)
        assert of(0, seen) == expected(0, range(1, publishes))
        assert of(1, seen) == expected(1, range(10))
        assert records.poll(A_WHILE) is None


def test_a_subscriber_that_sleeps_through_100_000_publishes_gets_each_once(backend: Backend) -> None:
    sleeps_through(backend.open(2), backend.share(100_000))


@pytest.mark.chaos
def test_a_subscriber_of_a_stored_log_that_sleeps_through_many_more(stored: Backend) -> None:
    sleeps_through(stored.open(2), stored.share(2_500_000))


# Many takers


@pytest.mark.usefixtures("hasty")
def test_threads_that_poll_one_subscription_take_each_record_once(log: MetadataLog, backend: Backend) -> None:
    each = backend.share(3000)
    records = log.subscribe([PartitionStart(0), PartitionStart(1)])
    bell = Bell()

    def read() -> list[MetadataRecord]:
        seen = []
        for record in records:
            seen.append(record)
            bell()
        return seen

    async def read_async() -> list[MetadataRecord]:
        seen = []
        async for record in records:
            seen.append(record)
            bell()
        return seen

    takers = [Background(read) for _ in range(4)] + [Background(lambda: asyncio.run(read_async())) for _ in range(2)]
    publishers = [Background(lambda at=at: fill(log, at, range(each))) for at in (0, 1)]  # type: ignore[misc]
    bell.wait(2 * each)
    for publisher in publishers:
        publisher.result()
    records.close()
    found = [taker.result() for taker in takers]
    for one in found:
        for partition in (0, 1):
            offsets = [record.offset for record in of(partition, one)]
            assert offsets == sorted(offsets)
    union = sorted((record for one in found for record in one), key=lambda record: (record.partition, record.offset))
    assert union == expected(0, range(each)) + expected(1, range(each))


# Generations


class HeldFeed(MeddledFeed):
    """Its first answer is held up on the way, until the gate is opened."""

    def __init__(self, log: InProcessMetadataLog) -> None:
        super().__init__(log)
        self.gate = Gate()
        self.after_fetch = self.gate


@pytest.mark.parametrize("again", [0, 3, 5, 8, 10, 12])
def test_what_was_fetched_for_an_earlier_assignment_is_discarded(again: int) -> None:
    log = InProcessMetadataLog(3)
    fill(log, 0, range(10))
    fill(log, 1, range(2))
    feed = HeldFeed(log)
    with feed.subscribe(PartitionStart(0, 5), PartitionStart(1)) as records:
        taking = Background(lambda: take(records, 2))
        feed.gate.wait_for_arrival()
        records.remove(0)
        records.add(PartitionStart(0, again))
        fill(log, 0, range(10, 13))
        feed.gate.open()
        seen = taking.result() + all_there(records)
        assert of(0, seen) == expected(0, range(again, 13))
        assert of(1, seen) == expected(1, range(2))


def test_what_was_fetched_for_what_is_removed_then_is_not_delivered() -> None:
    log = InProcessMetadataLog(3)
    fill(log, 0, range(10))
    feed = HeldFeed(log)
    with feed.subscribe(PartitionStart(0), PartitionStart(1)) as records:
        taking = Background(lambda: take(records, 1))
        feed.gate.wait_for_arrival()
        records.remove(0)
        feed.gate.open()
        assert not taking.has_ended_within(A_WHILE)
        fill(log, 1, range(1))
        assert taking.result() == expected(1, [0])
        assert all_there(records) == []


@pytest.mark.usefixtures("hasty")
def test_a_partition_that_is_removed_and_added_during_publishes_starts_at_its_new_start(backend: Backend) -> None:
    log = backend.open(2)
    fill(log, 0, range(5))
    rounds = backend.share(2000)
    over = threading.Event()
    dice = random.Random(7)

    def publish() -> None:
        for offset in count(5):
            if over.is_set() or offset >= 5 + 5 * rounds:
                return
            fill(log, 0, [offset])

    with log.subscribe([PartitionStart(0), PartitionStart(1)]) as records:
        publishing = Background(publish)
        for _ in range(rounds):
            start = dice.randrange(5)
            records.remove(0)
            records.add(PartitionStart(0, start))
            assert take(records, 3) == expected(0, range(start, start + 3))
        over.set()
        publishing.result()


# A fetch that fails


def test_a_fetch_that_fails_loses_nothing_and_the_next_poll_goes_on() -> None:
    log = InProcessMetadataLog(3)
    feed = MeddledFeed(log)
    failures = 0
    dice = random.Random(9)

    def fail_often() -> None:
        nonlocal failures
        if dice.random() < 0.5:
            failures += 1
            raise StorageError("now and then")

    feed.before_fetch = feed.after_fetch = fail_often
    seen: list[MetadataRecord] = []
    with feed.subscribe(PartitionStart(0)) as records:
        for offset in range(0, 600, 3):
            fill(log, 0, range(offset, offset + 3))
            while len(seen) < offset + 2:
                try:
                    record = records.poll(PATIENCE)
                except StorageError:
                    continue
                assert record is not None
                seen.append(record)
    assert seen == expected(0, range(599))
    assert failures > 200


def test_a_fetch_that_fails_ends_an_iteration_with_its_error_and_another_goes_on() -> None:
    log = InProcessMetadataLog(3)
    fill(log, 0, range(2))
    feed = MeddledFeed(log)

    def fail() -> None:
        raise StorageError("once")

    async def read() -> MetadataRecord:
        return await soon(anext(records))

    with feed.subscribe(PartitionStart(0)) as records:
        feed.after_fetch = fail
        with pytest.raises(StorageError, match="once"):
            next(records)
        with pytest.raises(StorageError, match="once"):
            asyncio.run(read())
        feed.after_fetch = lambda: None
        assert [asyncio.run(read()), next(records)] == expected(0, range(2))


def test_a_fetch_that_fails_fails_one_poll_and_the_others_go_on() -> None:
    log = InProcessMetadataLog(3)
    feed = MeddledFeed(log)
    gate = Gate()

    def fail_later() -> None:
        feed.before_fetch = lambda: None
        gate()
        raise StorageError("once")

    feed.before_fetch = fail_later
    with feed.subscribe(PartitionStart(0)) as records:
        failing = Background(lambda: records.poll(None))
        gate.wait_for_arrival()
        waiting = Background(lambda: records.poll(None))
        assert not waiting.has_ended_within(A_WHILE / 4)
        gate.open()
        with pytest.raises(StorageError, match="once"):
            failing.result()
        fill(log, 0, range(1))
        assert [waiting.result()] == expected(0, [0])
