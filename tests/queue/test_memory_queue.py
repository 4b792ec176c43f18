"""The queue in memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import pytest

from penstock import EventQueue
from penstock.errors import BackpressureTimeout, InvalidInput
from tests.support.forked_objects import locks_held
from tests.support.processes import PATIENCE, in_forked_child
from tests.support.waiting import Background, wait_for_waiting_threads


@pytest.fixture
def queue() -> EventQueue[object]:
    return EventQueue()


def holding(*events: object, maxsize: int | None = None) -> EventQueue[object]:
    queue = EventQueue[object](maxsize)
    for event in events:
        queue.push(event, timeout=0)
    return queue


def test_a_queue_is_empty_until_a_push_and_again_after_the_last_pop(queue: EventQueue[object]) -> None:
    seen = [queue.is_empty]
    queue.push("x")
    seen.append(queue.is_empty)
    queue.pop()
    assert [*seen, queue.is_empty] == [True, False, True]


def pop_all(queue: EventQueue[object]) -> list[object]:
    return list(iter(queue.pop, None))


# Order


def test_events_come_in_the_order_they_were_pushed() -> None:
    assert pop_all(holding("a", "b", "c")) == ["a", "b", "c"]


def test_what_is_pushed_to_the_front_comes_first() -> None:
    queue = holding("a", "b")
    queue.push_front(queue.pop())
    queue.push_front("before")
    queue.push_front("before that")
    assert pop_all(queue) == ["before that", "before", "a", "b"]


def test_pop_of_an_empty_queue_is_none(queue: EventQueue[object]) -> None:
    assert queue.pop() is None


@pytest.mark.parametrize(
    "event", [0, "", b"", False, (), [], {}, float("nan"), object()], ids=lambda event: type(event).__name__
)
def test_an_event_may_be_anything_but_none_and_comes_once_as_it_is(event: object) -> None:
    queue = holding(event, event)
    assert queue.pop() is event
    assert queue.poll(0) is event
    assert queue.pop() is None


def test_the_length_counts_what_is_there() -> None:
    queue = holding("a", "b")
    lengths = [len(queue)]
    queue.pop()
    lengths.append(len(queue))
    queue.push_front("c")
    lengths.append(len(queue))
    assert lengths == [2, 1, 2]


def test_a_queue_says_how_much_it_holds() -> None:
    assert repr(holding("a", maxsize=3)) == "EventQueue(1 events of at most 3)"
    assert repr(holding("a")) == "EventQueue(1 events)"


# Poll


@pytest.mark.parametrize("timeout", [0, 0.001, None])
def test_poll_takes_what_is_there_at_once(timeout: float | None) -> None:
    assert holding("a", "b").poll(timeout) == "a"


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_poll_of_an_empty_queue_is_none_when_the_time_is_over(queue: EventQueue[object], timeout: float) -> None:
    assert queue.poll(timeout) is None


def test_poll_waits_a_tenth_of_a_second_by_default(queue: EventQueue[object]) -> None:
    start = time.monotonic()
    assert queue.poll() is None
    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("timeout", [None, PATIENCE, 1e300])
@pytest.mark.parametrize("push", ["push", "push_front"])
def test_a_push_wakes_a_poll(queue: EventQueue[object], push: str, timeout: float | None) -> None:
    polling = Background(lambda: queue.poll(timeout))
    wait_for_waiting_threads()
    getattr(queue, push)("x")
    assert polling.result() == "x"


def test_each_push_wakes_another_poll(queue: EventQueue[object]) -> None:
    polling = [Background(lambda: queue.poll(None)) for _ in range(3)]
    wait_for_waiting_threads(3)
    for event in "abc":
        queue.push(event)
    assert sorted(str(one.result()) for one in polling) == ["a", "b", "c"]


# A bound


def test_a_full_queue_refuses_at_once_when_there_is_no_time() -> None:
    queue = holding("a", "b", maxsize=2)
    with pytest.raises(BackpressureTimeout, match=r"2 events of at most 2 .* this one was not added") as refused:
        queue.push("c", timeout=0)
    assert isinstance(refused.value, TimeoutError)
    assert pop_all(queue) == ["a", "b"]


def test_a_full_queue_refuses_when_the_time_is_over() -> None:
    start = time.monotonic()
    with pytest.raises(BackpressureTimeout, match=r"the queue was full for 0\.05 s"):
        holding("a", maxsize=1).push("b", timeout=0.05)
    assert time.monotonic() - start >= 0.05


@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize("take", ["pop", "poll"])
def test_a_push_waits_for_space(timeout: float | None, take: str) -> None:
    queue = holding("a", maxsize=1)
    pushing = Background(lambda: queue.push("b", timeout))
    wait_for_waiting_threads()
    assert len(queue) == 1
    assert getattr(queue, take)() == "a"
    pushing.result()
    assert pop_all(queue) == ["b"]


def test_each_pop_lets_one_push_go_on() -> None:
    queue = holding("a", "b", maxsize=2)
    pushing = [Background(lambda: queue.push("c")) for _ in range(2)]
    wait_for_waiting_threads(2)
    queue.pop()
    queue.pop()
    for one in pushing:
        one.result()
    assert pop_all(queue) == ["c", "c"]


def test_push_front_goes_over_the_bound_and_pushes_wait_until_the_queue_is_below_it() -> None:
    queue = holding("a", maxsize=1)
    queue.push_front("b")
    assert queue.pop() == "b"
    with pytest.raises(BackpressureTimeout):
        queue.push("c", timeout=0)
    assert queue.pop() == "a"
    queue.push("c", timeout=0)


def test_a_push_that_waits_goes_on_when_a_queue_over_its_bound_is_below_it() -> None:
    queue = holding("a", maxsize=1)
    queue.push_front("b")
    pushing = Background(lambda: queue.push("c"))
    wait_for_waiting_threads()
    queue.pop()
    wait_for_waiting_threads()  # it is still full
    queue.pop()
    pushing.result()


def test_a_queue_without_a_bound_takes_any_number(queue: EventQueue[object]) -> None:
    for number in range(10_000):
        queue.push(number, timeout=0)
    assert len(queue) == 10_000


# What cannot be right


@pytest.mark.parametrize("push", ["push", "push_front"])
def test_none_is_no_event(queue: EventQueue[object], push: str) -> None:
    with pytest.raises(InvalidInput, match="an event cannot be None"):
        getattr(queue, push)(None)
    assert len(queue) == 0


@pytest.mark.parametrize("maxsize", [0, -1, 1.5, "1", True, float("inf")])
def test_a_bound_that_cannot_be_right_is_refused(maxsize: object) -> None:
    with pytest.raises(InvalidInput, match="maxsize must be an integer, 1 or more"):
        EventQueue[object](cast("int", maxsize))


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_a_timeout_that_cannot_be_right_is_refused(timeout: object) -> None:
    queue = holding("a", maxsize=2)
    wrong = cast("float", timeout)
    with pytest.raises(InvalidInput, match="timeout must be a number of seconds, 0 or more"):
        queue.poll(wrong)
    with pytest.raises(InvalidInput, match="timeout must be a number of seconds, 0 or more"):
        queue.push("b", wrong)
    assert pop_all(queue) == ["a"]


# Many threads


@pytest.mark.parametrize("maxsize", [None, 1, 3])
def test_many_threads_hand_over_each_event_once_and_each_ones_in_order(maxsize: int | None) -> None:
    queue = EventQueue[tuple[int, int]](maxsize)
    began = threading.Barrier(8)

    def push(who: int) -> None:
        began.wait(PATIENCE)
        for number in range(500):
            queue.push((who, number), timeout=PATIENCE)

    def take() -> list[tuple[int, int]]:
        began.wait(PATIENCE)
        polled = [queue.poll(PATIENCE) for _ in range(500)]
        return [event for event in polled if event is not None]

    pushing = [Background(partial(push, who)) for who in range(4)]
    taking = [Background(take) for _ in range(4)]
    for one in pushing:
        one.result()
    polled = [one.result() for one in taking]
    assert Counter(event for events in polled for event in events) == Counter(
        (who, number) for who in range(4) for number in range(500)
    )
    assert all(
        [number for one, number in events if one == who] == sorted(number for one, number in events if one == who)
        for events in polled
        for who in range(4)
    )


# Forked children


USES: dict[str, Callable[[EventQueue[object]], object]] = {
    "push": lambda queue: queue.push(b"x"),
    "push_front": lambda queue: queue.push_front(b"x"),
    "pop": lambda queue: queue.pop(),
    "poll": lambda queue: queue.poll(),
    "poll for ever": lambda queue: queue.poll(None),
    "len": len,
}


@pytest.mark.parametrize("hold", [nullcontext, locks_held], ids=["idle", "while a thread has its lock"])
def test_a_forked_child_cannot_use_the_queue_and_its_parent_can(hold: Callable[[object], Any]) -> None:
    queue = holding("a", "b")
    with hold(queue) as held:
        assert held is queue or held == 1
        raised = {name: in_forked_child(partial(use, queue)) for name, use in USES.items()}
    assert {name: why for name, why in raised.items() if not why.startswith("InvalidInput: EventQueue(2 events)")} == {}
    assert all("this forked child" in why for why in raised.values())
    assert (queue.pop(), len(queue)) == ("a", 1)
