"""Coroutines that wait for threads: no wake is lost, and thousands that are woken do not hold up a loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest
import uvloop

from penstock.core import LoopEvent, LoopLatch, LoopShare, Threads, Waiters, in_new_thread, wait_for
from penstock.errors import StorageError
from tests.support.processes import PATIENCE
from tests.support.waiting import Background

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    found: NewLoop = request.param
    return found


async def begun(waiting: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
    """A task that waits."""
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    return task


# A loop that is closed while its coroutines wait


@pytest.fixture
def closed_loop(new_loop: NewLoop) -> asyncio.AbstractEventLoop:
    """To run something until it waits, and then close."""
    return new_loop()


def leave_waiting(loop: asyncio.AbstractEventLoop, *waiting: Coroutine[Any, Any, object]) -> list[asyncio.Task[object]]:
    """Close the loop while these wait. Their tasks are not told."""

    async def begin() -> list[asyncio.Task[object]]:
        return [await begun(one) for one in waiting]

    tasks = loop.run_until_complete(begin())
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    return tasks


def test_a_wake_is_not_spent_on_a_coroutine_whose_loop_is_closed(closed_loop: asyncio.AbstractEventLoop) -> None:
    lock, is_so = threading.Lock(), list[bool]()
    waiters = Waiters(lock)
    before = leave_waiting(closed_loop, *(waiters.wait_async(lambda: bool(is_so), None) for _ in range(3)))
    looked = threading.Semaphore(0)

    def asked() -> bool:
        looked.release()
        return bool(is_so)

    thread = Background(waiters.wait, asked, PATIENCE)
    assert looked.acquire(timeout=PATIENCE)
    with lock:  # the thread is in line now, behind the three
        is_so.append(True)
        waiters.wake()
    assert thread.result()
    assert len(before) == 3


def test_a_coroutine_that_is_collected_while_its_lock_is_held_does_not_wait_for_it(new_loop: NewLoop) -> None:
    lock, loop = threading.Lock(), new_loop()
    waiters = Waiters(lock)
    tasks = leave_waiting(loop, waiters.wait_async(lambda: False, None))
    del loop

    def collect() -> None:
        with lock:
            waiters.wake_all()
            tasks.clear()
            gc.collect()

    Background(collect).result()
    Background(lambda: lock.acquire(timeout=PATIENCE)).result()


def test_what_wakes_a_loop_does_not_keep_it_in_memory(new_loop: NewLoop) -> None:
    async def latch_of_loop() -> LoopLatch:
        return LoopLatch()

    loop = new_loop()
    latch = loop.run_until_complete(latch_of_loop())
    assert latch.open()
    loop.close()  # before the latch has heard of it
    assert latch.is_lost
    assert not latch.open()
    gone = weakref.ref(loop)
    del loop, latch
    gc.collect()
    assert gone() is None


# Thousands at once


@pytest.mark.parametrize("kind", ["latches", "event", "futures"])
def test_thousands_that_are_woken_at_once_go_on_some_in_each_iteration(new_loop: NewLoop, kind: str) -> None:
    count = 5000
    woken = Counter[int]()

    async def main() -> None:
        event, future = LoopEvent(), Future[None]()
        latches = [LoopLatch() for _ in range(count)]
        iteration, ended = 0, False

        def iterate() -> None:
            nonlocal iteration
            iteration += 1
            if not ended:
                asyncio.get_running_loop().call_soon(iterate)

        async def wait(number: int) -> None:
            if kind == "latches":
                await latches[number].wait()
            elif kind == "event":
                await event.wait()
            else:
                await wait_for(future)
            woken[iteration] += 1

        tasks = [asyncio.ensure_future(wait(number)) for number in range(count)]
        await asyncio.sleep(0)
        iterate()
        if kind == "latches":
            for latch in latches:
                latch.open()
        elif kind == "event":
            event.happen()
        else:
            future.set_result(None)
        await asyncio.gather(*tasks)
        ended = True

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert woken.total() == count
    assert max(woken.values()) <= 512


def test_those_that_are_woken_go_on_in_their_order(new_loop: NewLoop) -> None:
    async def main() -> list[int]:
        order = list[int]()

        async def wait(latch: LoopLatch, number: int) -> None:
            await latch.wait()
            order.append(number)

        latches = [LoopLatch() for _ in range(1000)]
        tasks = [asyncio.ensure_future(wait(*one)) for one in zip(latches, range(1000), strict=True)]
        await asyncio.sleep(0)
        for latch in latches:
            latch.open()
        await asyncio.gather(*tasks)
        return order

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == list(range(1000))


def test_a_share_that_two_loops_took_the_last_call_of_is_still_shared() -> None:
    share = LoopShare(2)
    share.left -= 3  # two loops found that there was one, and a third took one

    async def main() -> list[int]:
        iteration, at = 0, list[int]()

        async def count() -> None:
            nonlocal iteration
            while True:
                iteration += 1
                await asyncio.sleep(0)

        async def call() -> None:
            await share.take()
            at.append(iteration)

        counting = asyncio.ensure_future(count())
        await asyncio.gather(*(call() for _ in range(10)))
        counting.cancel()
        return at

    at = asyncio.run(main())
    assert max(Counter(at).values()) <= 2


# Threads that cannot be started, and futures


class NoThreads:
    """`Thread.start` fails so many times, as where a limit of the system is reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if thread.name.startswith("penstock-") and self.times:
                self.times -= 1
                raise RuntimeError("can't start new thread")
            real(thread)

        self.times = times
        monkeypatch.setattr(threading.Thread, "start", start)


def test_calls_go_on_after_a_thread_could_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, made = Threads("test", 2), list[int]()
    both = threading.Barrier(2, timeout=PATIENCE)
    NoThreads(monkeypatch, times=3)

    async def main() -> None:
        for number in range(3):
            with pytest.raises(StorageError, match="nothing was done"):
                await threads.run(made.append, number)
        await threads.run(made.append, 3)
        await asyncio.gather(threads.run(both.wait), threads.run(both.wait))  # two threads

    asyncio.run(main())
    assert made == [3]


def test_a_call_in_a_thread_of_its_own_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    NoThreads(monkeypatch, times=1)
    with pytest.raises(StorageError, match="nothing was done"):
        asyncio.run(in_new_thread("test", int))


def test_a_task_hears_that_it_was_cancelled_also_when_undoing_its_call_fails(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise StorageError("no thread could be started")

    async def main() -> None:
        calls = Threads("test")
        over = threading.Event()

        def call(hand_over: Callable[[int], object]) -> None:
            hand_over(1)
            over.set()

        async def calling() -> None:
            await calls.call(call, fail)

        task = asyncio.ensure_future(calling())
        await asyncio.sleep(0)
        assert over.wait(PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert "undoing a call" in caplog.text


@pytest.mark.parametrize("cancel", [True, False])
def test_a_task_that_is_cancelled_cancels_the_future_it_waits_for_if_it_may(new_loop: NewLoop, cancel: bool) -> None:
    async def main() -> None:
        future = Future[object]()
        task = await begun(wait_for(future, cancel=cancel))
        task.cancel()
        await asyncio.wait([task])
        assert (task.cancelled(), future.cancelled()) == (True, cancel)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
