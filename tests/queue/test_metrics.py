"""What a durable queue counts, under its path."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest

from penstock import DurableEventQueue
from penstock.errors import InvalidInput, OutcomeUnknown
from tests.queue.rocksdb_calls import replace_calls
from tests.queue.samples import sample, samples
from tests.queue.writes import Writes
from tests.support.codecs import StrictCodec
from tests.support.queue_folder import Place, key
from tests.support.waiting import Background, wait_for_waiting_threads

NOON = 1_800_000_000.0


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def gauges(queue: DurableEventQueue[Any]) -> tuple[float, float]:
    return sample("penstock_queue_ready", queue), sample("penstock_queue_in_flight", queue)


def oldest_age(queue: DurableEventQueue[Any]) -> float:
    return sample("penstock_queue_oldest_age_seconds", queue)


# Counters


def test_pushes_are_counted_event_by_event_and_over_openings(place: Place) -> None:
    with place.open(codec=StrictCodec()) as queue:
        queue.push(b"a")
        queue.push_many([b"b", b"c"])
        queue.push_many([])
        with pytest.raises(InvalidInput):
            queue.push_many([b"good", b"bad"])
        assert sample("penstock_queue_pushes_total", queue) == 3
    queue = place.open()
    queue.push(b"d")
    assert sample("penstock_queue_pushes_total", queue) == 4


def test_acks_are_counted_once_for_each_event_that_was_deleted(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b", b"c"])
    queue.pop()
    queue.ack(0)
    queue.ack(0)
    queue.ack_many([0, 1, 1, 99])
    assert sample("penstock_queue_acks_total", queue) == 2


def test_an_event_that_two_threads_ack_at_once_is_counted_once(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    queue.push(b"x")
    held = writes.hold()
    first = Background(queue.ack, 0)
    held.wait_for_arrival()
    second = Background(queue.ack, 0)
    wait_for_waiting_threads()
    held.open()
    first.result()
    second.result()
    assert sample("penstock_queue_acks_total", queue) == 1


def test_nacks_are_counted_once_for_each_event_that_came_back(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b"])
    queue.pop()
    queue.nack(0)
    queue.nack(0)
    queue.nack(1)
    queue.pop()
    queue.nack(0)
    assert sample("penstock_queue_nacks_total", queue) == 2


# Gauges


def test_gauges_follow_an_event_on_its_way(queue: DurableEventQueue[bytes]) -> None:
    seen = [gauges(queue)]
    for step in (
        lambda: queue.push_many([b"a", b"b"]),
        queue.pop,
        lambda: queue.nack(0),
        queue.pop,
        lambda: queue.ack_many([0]),
        lambda: queue.ack_many([1]),
    ):
        step()
        seen.append(gauges(queue))
    assert seen == [(0, 0), (2, 0), (1, 1), (2, 0), (1, 1), (1, 0), (0, 0)]


def test_after_a_reopen_nothing_is_in_flight(place: Place) -> None:
    with place.open() as queue:
        queue.push_many([b"a", b"b"])
        queue.pop()
    assert gauges(place.open()) == (2, 0)


@pytest.mark.parametrize("gauge", ["ready", "in_flight", "oldest_age_seconds"])
def test_a_closed_queue_has_no_gauges(queue: DurableEventQueue[bytes], gauge: str) -> None:
    queue.push(b"x")
    queue.close()
    assert samples(f"penstock_queue_{gauge}", queue) == []


def test_a_second_close_keeps_the_gauges_of_the_queue_that_was_opened_since(place: Place) -> None:
    first = place.open()
    first.close()
    second = place.open()
    first.close()
    assert gauges(second) == (0, 0)


def test_a_gauge_keeps_no_queue_alive(place: Place) -> None:
    queue: DurableEventQueue[bytes] = DurableEventQueue(place.path)
    del queue
    gc.collect()
    assert place.open().is_empty  # it could not be opened if the first one were still there


# The age of the oldest event


def test_an_empty_queue_has_no_age(queue: DurableEventQueue[bytes]) -> None:
    assert oldest_age(queue) == 0
    assert queue.oldest_age() is None


@pytest.mark.parametrize("state", ["ready", "in flight", "given back"])
def test_an_event_ages_in_every_state(place: Place, clock: Clock, state: str) -> None:
    queue = place.open(clock=clock)
    queue.push(b"x")
    if state != "ready":
        queue.pop()
    if state == "given back":
        queue.nack(0)
    clock.now += 7
    assert queue.oldest_age() == oldest_age(queue) == 7


@pytest.mark.parametrize("is_in_flight", [True, False], ids=["in flight", "ready"])
def test_the_age_is_that_of_the_oldest_event_that_is_not_acked(place: Place, clock: Clock, is_in_flight: bool) -> None:
    queue = place.open(clock=clock)
    queue.push(b"old")
    clock.now += 60
    queue.push(b"young")
    clock.now += 5
    assert oldest_age(queue) == 65
    if is_in_flight:
        queue.pop()
    queue.ack(0)
    assert oldest_age(queue) == 5
    queue.ack(1)
    assert oldest_age(queue) == 0


def test_the_age_is_right_to_a_second_for_pushes_that_follow_each_other(place: Place, clock: Clock) -> None:
    queue = place.open(clock=clock)
    for _ in range(20):
        queue.push(b"x")
        clock.now += 0.25
    for number in range(19):
        queue.ack(number)
        age = clock.now - (NOON + 0.25 * (number + 1))
        assert age <= oldest_age(queue) < age + 1


def test_the_age_goes_on_after_a_reopen(place: Place, clock: Clock) -> None:
    with place.open(clock=clock) as queue:
        queue.push(b"old")
        clock.now += 60
        queue.push(b"young")
    clock.now += 3600
    queue = place.open(clock=clock)
    assert oldest_age(queue) == 3660
    queue.ack(0)
    assert oldest_age(queue) == 3600


def test_an_event_that_is_pushed_right_after_a_reopen_is_new(place: Place, clock: Clock) -> None:
    with place.open(clock=clock) as queue:
        queue.push(b"x")
        queue.ack(0)
    clock.now += 0.5
    queue = place.open(clock=clock)
    queue.push(b"y")
    assert oldest_age(queue) == 0


def test_a_clock_that_was_set_back_gives_no_age_below_0(place: Place, clock: Clock) -> None:
    queue = place.open(clock=clock)
    queue.push(b"x")
    clock.now -= 3600
    assert oldest_age(queue) == 0
    queue.push(b"y")
    queue.ack(0)
    clock.now += 2
    assert oldest_age(queue) == 2


def test_a_push_after_one_that_failed_has_its_own_age(place: Place, clock: Clock, writes: Writes) -> None:
    queue = place.open(clock=clock)
    queue.push(b"old")
    clock.now += 3600
    writes.fail(error=OSError("the disk failed"))
    with pytest.raises(OutcomeUnknown):
        queue.push(b"fails")
    clock.now += 0.5
    queue.push(b"young")
    queue.ack(0)
    assert oldest_age(queue) < 1


def test_an_event_without_a_stored_time_has_no_age(place: Place) -> None:
    place.holding(b"x")
    with place.raw("times") as times:
        del times[key(0)]
    assert place.open().oldest_age() is None


def test_one_time_a_second_is_written_down_at_most(place: Place, clock: Clock) -> None:
    with place.open(clock=clock) as queue:
        for _ in range(10):
            queue.push(b"x")
            clock.now += 0.25
    assert place.keys("times") == [key(0), key(4), key(8)]


def test_times_that_no_event_needs_are_deleted_also_after_a_reopen(place: Place, clock: Clock) -> None:
    with place.open(clock=clock) as queue:
        for number in range(10):
            queue.push(b"x")
            clock.now += 2
            if number != 5:
                queue.ack(number)
        queue.push(b"last")
    assert place.keys("times") == [key(number) for number in range(5, 11)]
    with place.open(clock=clock) as queue:
        queue.ack_many(range(11))
    with place.open(clock=clock) as queue:
        queue.push(b"next")
    assert place.keys("times") == [key(11)]


def test_the_time_of_an_event_between_two_marks_is_kept(place: Place, clock: Clock) -> None:
    queue = place.open(clock=clock)
    queue.push_many([b"a", b"b"])
    clock.now += 30
    queue.ack(0)
    queue.push(b"c")
    assert oldest_age(queue) == 30


def test_a_queue_that_cannot_be_read_has_no_age_and_does_not_break_the_metrics_of_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object, **__: object) -> None:
        raise OSError("Corruption: a block of a table is damaged")

    queue = place.open()
    queue.push(b"x")
    replace_calls(monkeypatch, ["items"], unreadable)
    assert math.isnan(oldest_age(queue))
