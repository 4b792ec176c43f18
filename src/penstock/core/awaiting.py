"""Awaiting what blocks: a call runs in a thread, and its result reaches the coroutine that awaits it, or is undone.

A twin such as `next_batch_async` is its blocking method in a thread of `Threads`. Between the end of the call and the
moment at which the coroutine goes on, its task may be cancelled. `docs/design/async.md` has the two ways out:

- Cancelled before the hand-over: `hand_over` raises `Abandoned` in the thread, inside the lock of the call, and the
  call undoes its step as it does after any error.
- Cancelled after it: `unheard` is called with the result, in the thread of the loop, before `CancelledError` reaches
  the caller. It must not wait.

So exactly one of three happens: the caller has the result, the call undid its step, or `unheard` was called.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, TypeVar

from penstock.core.fork import begin_anew_in_child
from penstock.core.hand_over import Abandoned, HandOver, call_of_thread
from penstock.core.logs import get_logger
from penstock.core.loop_wakes import LoopWakes
from penstock.errors import StorageError

_T = TypeVar("_T")

_IDLE_SECONDS = 5.0  # after which a thread without work ends
_WAKES_PER_ITERATION = 256  # of a loop, which then runs its other tasks

_log = get_logger(__name__)


class LoopLatch:
    """A `Latch` for a coroutine: any thread opens it."""

    __slots__ = ("__weakref__", "_is_open", "_loop", "_waiting", "_wakes")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wakes = LoopWakes.of(self._loop)
        self._waiting: asyncio.Future[None] | None = None
        self._is_open = False

    async def wait(self, seconds: float | None = None) -> bool:
        """Return whether it was opened since the last wait, at the latest after so many seconds."""
        if not self._is_open:
            self._waiting = self._loop.create_future()
            timer = None if seconds is None else self._loop.call_later(seconds, self._go_on)
            try:
                await self._waiting
            finally:
                self._waiting = None
                if timer is not None:
                    timer.cancel()
        was_open, self._is_open = self._is_open, False
        return was_open

    @property
    def is_lost(self) -> bool:
        """Whether its loop is closed: its coroutine never goes on."""
        return self._loop.is_closed()

    def open(self) -> bool:
        """Let the coroutine go on; False if its loop is closed. To open it twice does no harm."""
        return self._wakes.add(self._loop, self)

    def wake(self) -> None:
        """Let the coroutine go on, in the loop's thread."""
        self._is_open = True
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


async def wait_for(future: Future[_T], *, cancel: bool = True) -> _T:
    """Wait for what a thread does, and return its result. Cancelled, it cancels the future too, if `cancel` is set."""
    latch = LoopLatch()
    future.add_done_callback(lambda _: latch.open())
    try:
        await latch.wait()
    except BaseException:
        if cancel:
            future.cancel()
        raise
    return future.result()


class LoopEvent:
    """Something that happens once, for any number of coroutines of one loop: one message to the loop wakes them all."""

    __slots__ = ("_has_happened", "_loop", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[None], None] = {}  # in their order; each leaves it where it ends
        self._has_happened = False

    async def wait(self) -> None:
        """Return when it has happened."""
        if not self._has_happened:
            waiting = self._loop.create_future()
            self._waiting[waiting] = None
            try:
                await waiting
            finally:
                self._waiting.pop(waiting, None)

    def happen(self) -> None:
        """Let all of them go on. From any thread; a loop that is closed does no harm."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        self._has_happened = True
        for waiting in tuple(islice(self._waiting, _WAKES_PER_ITERATION)):
            del self._waiting[waiting]
            if not waiting.done():  # its task may have been cancelled
                waiting.set_result(None)
        if self._waiting:
            self._loop.call_soon(self._go_on)


class _Call(Generic[_T]):
    """One call in a thread, and the coroutine that waits for it."""

    def __init__(self, call: Callable[[HandOver[_T]], object], unheard: Callable[[_T], object] | None) -> None:
        self._call = call
        self._unheard = unheard
        self._latch = LoopLatch()
        self._lock = threading.Lock()  # never held for longer than an assignment takes
        self._is_abandoned = False
        self._is_over = False
        self._results: list[_T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call, in this thread. Not at all if it was cancelled while it waited for a thread."""
        if self._is_abandoned:
            return
        call_of_thread.is_abandoned = lambda: self._is_abandoned
        try:
            self._call(self._hand_over)
        except Abandoned:
            return
        except BaseException as error:  # noqa: BLE001  the coroutine raises it
            with self._lock:
                was_late = self._is_over or self._is_abandoned
                self._is_over, self._error = True, self._error if was_late else error
            if was_late:
                _log.warning("a call failed after the task that awaited it was cancelled: %s", error)
            else:
                self._latch.open()
        finally:
            call_of_thread.is_abandoned = None

    def abandon(self) -> None:
        """Wait for it no more. If it was not handed over yet, it undoes its step."""
        with self._lock:
            self._is_abandoned = True

    async def result(self) -> _T:
        """Wait for the result, or raise what went wrong."""
        try:
            await self._latch.wait()
        except BaseException:  # cancelled, or the loop ends
            self.abandon()
            if self._results and self._unheard is not None:
                try:
                    self._unheard(self._results[0])
                except Exception:  # noqa: BLE001  it must not hide that the task was cancelled
                    _log.exception("undoing a call whose task was cancelled failed")
            raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback holds this frame
        return self._results[0]

    def _hand_over(self, result: _T, /) -> None:
        with self._lock:
            if self._is_abandoned:
                raise Abandoned
            self._is_over = True
            self._results.append(result)
        self._latch.open()


class Threads:
    """Threads for the calls of coroutines: at most so many, started when they are needed, and ended when idle."""

    def __init__(self, name: str, most: int = 1) -> None:
        self._name = name
        self._most = most
        self._started = 0
        self.begin_anew()
        begin_anew_in_child(self)

    def begin_anew(self) -> None:
        """Begin without threads, as in a forked child, which has none of its parent's."""
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running = 0
        self._busy = 0  # calls in a thread, or in line for one

    def call(
        self, call: Callable[[HandOver[_T]], object], unheard: Callable[[_T], object] | None = None
    ) -> Awaitable[_T]:
        """Make a call that ends with `hand_over(result)`, and await the result. Raises what the call raises."""
        one = _Call(call, unheard)
        error = self._begin(one.run)
        if error is not None:
            one.abandon()
            raise StorageError(f"no thread could be started: {error}; nothing was done") from error
        return one.result()

    def start(self, work: Callable[[], None]) -> None:
        """Have a thread do something that no coroutine waits for, and that raises nothing.

        Where no thread can be started, the next one that can does it.
        """
        self._begin(work)

    def _begin(self, work: Callable[[], None]) -> RuntimeError | None:
        """Put work in line, and start a thread for it if need be; return why none could be started."""
        with self._lock:
            self._busy += 1
            self._work.put(work)
            starts = self._running < min(self._busy, self._most)
            self._running += starts
            self._started += starts
            number = self._started
        if starts:
            try:
                threading.Thread(target=self._run, name=f"penstock-{self._name}-{number}", daemon=True).start()
            except RuntimeError as error:  # no more threads, or the interpreter is shutting down
                with self._lock:
                    self._running -= 1  # it stays busy: the work is in line for the next thread
                return error
        return None

    def run(self, fn: Callable[..., _T], *args: Any, unheard: Callable[[_T], object] | None = None) -> Awaitable[_T]:
        """Call a function, and await what it returns; `unheard` gets its result if the task was cancelled."""
        return self.call(_handing_over(fn, args, unheard), unheard)

    def _run(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if not self._work.empty():
                        continue
                    self._running -= 1
                    return
            work()
            del work  # while this thread is idle, it must not keep alive what the call was about
            with self._lock:
                self._busy -= 1


async def in_new_thread(
    name: str, fn: Callable[..., _T], *args: Any, unheard: Callable[[_T], object] | None = None
) -> _T:
    """Call a function in a thread of its own, and await what it returns. Once begun it ends, also when cancelled.

    `unheard` gets its result if the task was cancelled: in that thread, or in the loop's.
    """
    one = _Call(_handing_over(fn, args, unheard), unheard)
    try:
        threading.Thread(target=one.run, name=f"penstock-{name}", daemon=True).start()
    except RuntimeError as error:
        raise StorageError(f"no thread could be started: {error}; nothing was done") from error
    return await one.result()


def _handing_over(
    fn: Callable[..., _T], args: tuple[Any, ...], unheard: Callable[[_T], object] | None
) -> Callable[[HandOver[_T]], None]:
    def call(hand_over: HandOver[_T]) -> None:
        result = fn(*args)
        try:
            hand_over(result)
        except Abandoned:
            if unheard is not None:
                unheard(result)
            raise

    return call
