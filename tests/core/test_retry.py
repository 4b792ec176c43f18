"""Waits that double, and calls that are tried again."""

from __future__ import annotations

import pytest

from penstock.core import Backoff, call_with_retries
from penstock.errors import NotFound, StorageError


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits = list[float]()

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def backoff(self, give_up_after: float | None = None, jitter: float = 1.0) -> Backoff:
        return Backoff(
            1, 5, give_up_after=give_up_after, sleep=self.sleep, jitter=lambda: jitter, clock=lambda: self.now
        )


class Failing:
    """A call that fails so many times, and then returns how often it was called."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times = times
        self.error = error
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.calls


def test_waits_double_up_to_the_longest_and_begin_again_after_a_reset() -> None:
    clock = Clock()
    backoff = clock.backoff()
    assert all(backoff.wait() for _ in range(4))
    backoff.reset()
    assert backoff.wait()
    assert clock.waits == [1, 2, 4, 5, 1]


def test_a_wait_is_a_random_part_of_its_longest() -> None:
    clock = Clock()
    backoff = clock.backoff(jitter=0.25)
    assert [backoff.seconds() for _ in range(3)] == [0.25, 0.5, 1.0]


def test_a_backoff_gives_up_when_its_time_is_over_and_not_before() -> None:
    clock = Clock()
    backoff = clock.backoff(give_up_after=3)
    assert [backoff.wait() for _ in range(3)] == [True, True, False]
    assert clock.now == 3
    backoff.reset()
    assert backoff.wait()


def test_a_call_is_tried_again_until_it_succeeds_and_each_failure_is_reported() -> None:
    clock, failures = Clock(), list[Exception]()
    call = Failing(2, StorageError("down"))
    assert call_with_retries(call, clock.backoff(), warn=failures.append) == 3
    assert (len(failures), clock.waits) == (2, [1, 2])


@pytest.mark.parametrize(
    ("error", "calls"), [(StorageError("down"), 3), (NotFound("gone"), 1), (ValueError("a defect"), 1)]
)
def test_the_last_error_is_raised_after_so_many_tries_and_others_at_once(error: Exception, calls: int) -> None:
    clock = Clock()
    call = Failing(9, error)
    with pytest.raises(type(error)):
        call_with_retries(call, clock.backoff(), tries=3, unless=NotFound)
    assert call.calls == calls
    assert len(clock.waits) == calls - 1


def test_the_error_is_raised_when_the_backoff_gives_up() -> None:
    clock = Clock()
    call = Failing(9, StorageError("down"))
    with pytest.raises(StorageError, match="down"):
        call_with_retries(call, clock.backoff(give_up_after=3))
    assert clock.now == 3
