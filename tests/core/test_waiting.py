"""Waiting for other threads: each wake reaches one thread, and an interrupt loses none."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.core import Waiters
from tests.support.waiting import Background, wait_for_waiting_threads, wait_until, waiting_threads


def test_a_wait_ends_when_its_time_is_over() -> None:
    start = time.monotonic()
    assert not Waiters(threading.Lock()).wait(lambda: False, 0.05)
    assert time.monotonic() - start >= 0.05


def test_one_that_is_woken_for_nothing_goes_on_waiting() -> None:
    lock = threading.Lock()
    waiters = Waiters(lock)
    answers: list[bool] = []

    def is_third_time() -> bool:
        answers.append(len(answers) == 2)
        return answers[-1]

    waiting = Background(lambda: waiters.wait(is_third_time, None))
    for times in (1, 2):
        wait_until(lambda times=times: len(answers) == times and waiting_threads() == 1)  # type: ignore[misc]
        with lock:
            waiters.wake()
    assert waiting.result()
    assert answers == [False, False, True]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_one_that_was_woken_and_raises_wakes_another(error: type[BaseException]) -> None:
    lock = threading.Lock()
    waiters = Waiters(lock)
    is_ready = False

    def is_so() -> bool:
        return is_ready

    def fail() -> bool:
        if is_ready:
            raise error
        return False

    failing = Background(lambda: waiters.wait(fail, None))
    wait_for_waiting_threads(1)
    waiting = Background(lambda: waiters.wait(is_so, None))
    wait_for_waiting_threads(2)
    with lock:
        is_ready = True
        waiters.wake()  # the first of them
    with pytest.raises(error):
        failing.result()
    assert waiting.result()
