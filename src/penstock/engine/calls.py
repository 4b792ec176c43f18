"""Awaiting, from the thread of the block loop, what an async function returned."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeGuard

from penstock.buffer import WriteHandle
from penstock.core import Latch
from penstock.errors import EngineError

_LOOK_EVERY_SECONDS = 0.02  # at a shutdown, which tells nothing by itself
_MAX_SECONDS_TO_FINISH = 5.0  # of a commit, after a cancellation

Looks = Callable[[], bool]


class RunCancelled(BaseException):
    """`run_async` was cancelled. Not an `Exception`: no function of the user's is to catch it."""


class Stopped(BaseException):
    """A shutdown ended the wait for a receive."""


class Calls:
    """Runs coroutines on an event loop, for a thread that is not the loop's and waits for them.

    With `loop`, on that one: the caller's of `run_async`. Without, on a loop of its own, in a thread that is started
    for the first coroutine. Coroutines see the context variables of where this object was created.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._context: Context = copy_context()
        self._own_thread: threading.Thread | None = None
        self._calls = set[_Call]()
        self._latch: Latch | None = None
        self.is_cancelled = False

    def check(self) -> None:
        """Raise `RunCancelled` after `cancel`."""
        if self.is_cancelled:
            raise RunCancelled

    def settle(self, returned: Any, should_stop: Looks | None = None, *, finishes: bool = False) -> Any:
        """What was returned, or, of an awaitable, its result. Raises what that raises.

        With `should_stop` the wait ends when that says so: the coroutine is cancelled, and `Stopped` raised unless it
        ends with a result all the same. One that `finishes` gets some seconds to do so after `cancel`.
        """
        if not can_be_awaited(returned):
            return returned
        call = self._start_call(returned, finishes=finishes)
        try:
            if should_stop is not None:
                self.wait(call.future, should_stop)
                if not call.future.done():
                    call.stop()
            return call.future.result()
        except BaseException:
            if not call.future.done():  # an interrupt of this thread
                call.stop()
            self.check()
            raise

    def start(self, awaitable: Awaitable[Any]) -> Future[Any]:
        """Have it run on the loop, and return a future of it."""
        return self._start_call(awaitable).future

    def wait(self, future: Future[Any], should_stop: Looks) -> None:
        """Return when it is done, or when `should_stop` says so, or after `cancel`."""
        self._latch = latch = Latch()
        future.add_done_callback(lambda _: latch.open())
        while not (future.done() or self.is_cancelled or should_stop()):
            latch.wait(_LOOK_EVERY_SECONDS)

    def cancel(self) -> None:
        """Cancel what runs, and all that follows."""
        self.is_cancelled = True
        for call in tuple(self._calls):
            call.stop()
        if self._latch is not None:
            self._latch.open()

    def close(self) -> None:
        """End the loop that it started, if any, with the tasks that are still on it."""
        if self._own_thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._own_thread.join()

    def _loop_for(self, awaitable: Awaitable[Any]) -> asyncio.AbstractEventLoop:
        if isinstance(awaitable, asyncio.Future) and not awaitable.done():
            return awaitable.get_loop()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._own_thread = threading.Thread(
                target=_run_to_the_end, args=(self._loop,), name="penstock-engine-loop", daemon=True
            )
            self._own_thread.start()
        return self._loop

    def _start_call(self, awaitable: Awaitable[Any], *, finishes: bool = False) -> _Call:
        call = _Call(self._loop_for(awaitable), finishes=finishes)
        coroutine = awaitable if inspect.iscoroutine(awaitable) else _awaiting(awaitable)
        try:
            call.loop.call_soon_threadsafe(self._create_task, call, coroutine, context=self._context)
        except BaseException:
            coroutine.close()  # the loop is closed
            raise
        return call

    def _create_task(self, call: _Call, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = call.task = call.loop.create_task(coroutine, context=self._context)
        self._calls.add(call)
        if self.is_cancelled or call.is_stopped:
            call.cancel_task()
        task.add_done_callback(partial(self._end, call))

    def _end(self, call: _Call, task: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        call.end()
        if not task.cancelled():
            error = task.exception()
        elif self.is_cancelled or call.is_stopped:
            error = RunCancelled() if self.is_cancelled else Stopped()
        else:
            error = EngineError("the coroutine was cancelled, and not by the engine")
        if error is None:
            call.future.set_result(task.result())
        else:
            call.future.set_exception(error)


class _Call:
    """A coroutine on its way. One that `finishes` is not cancelled at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, finishes: bool) -> None:
        self.loop = loop
        self.future = Future[Any]()
        self.task: asyncio.Task[Any] | None = None
        self.is_stopped = False
        self._finishes = finishes
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Cancel it, from any thread."""
        self.is_stopped = True
        self.loop.call_soon_threadsafe(self.cancel_task)

    def cancel_task(self) -> None:
        """Cancel it, or begin to count its time. Called in the loop's thread."""
        if self.task is None:
            return
        if not self._finishes:
            self.task.cancel()
        elif self._timer is None:
            self._timer = self.loop.call_later(_MAX_SECONDS_TO_FINISH, self.task.cancel)

    def end(self) -> None:
        """Note that it has ended."""
        if self._timer is not None:
            self._timer.cancel()


def can_be_awaited(returned: object) -> TypeGuard[Awaitable[Any]]:
    """Whether it can be awaited from this thread. A `WriteHandle` is waited for without a loop.

    A future that is not done cannot where its loop does not go on meanwhile: it does not run, or it runs in this very
    thread.
    """
    if returned is None or isinstance(returned, WriteHandle) or not inspect.isawaitable(returned):
        return False
    if not isinstance(returned, asyncio.Future) or returned.done():
        return True
    loop = returned.get_loop()
    return loop.is_running() and loop is not asyncio._get_running_loop()


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _run_to_the_end(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
