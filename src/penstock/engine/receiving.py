"""Receiving so that a shutdown or a cancellation ends the wait, also of a receiver that ignores its timeout."""

from __future__ import annotations

import inspect
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

from penstock.core import current, get_logger, open_in_child
from penstock.engine.calls import Calls, Stopped
from penstock.engine.transports.contract import Receiver
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput

_GRACE_SECONDS = 0.2  # for a receive that is about to end, so that the usual one leaves no thread behind
_LOOK_EVERY_SECONDS = 0.02

_log = get_logger(__name__)

_lock = open_in_child(threading.Lock())
_uses: weakref.WeakValueDictionary[int, Use] = weakref.WeakValueDictionary()


class Use:
    """The use of a receiver: by one run at a time, which holds `lock`, so that there are never two calls of `recv`."""

    def __init__(self, given: object) -> None:
        self.given = given  # kept, so that its id is not given to another object
        self.home = current.number
        self.lock = threading.Lock()
        self.is_late = False  # held by a receive that the run before did not wait for

    @classmethod
    def of(cls, given: object) -> Use:
        """That of a receiver, by this process."""
        with _lock:
            use = _uses.get(id(given))
            if use is None or use.home != current.number:
                use = _uses[id(given)] = cls(given)
            return use

    def wait_for_late(self, should_stop: Callable[[], bool]) -> None:
        """Return when the late receive of the run before has ended, if there is one, or when it is to stop.

        Raises `InvalidInput` where another run uses the receiver.
        """
        while self.lock.locked() and not should_stop():
            if not self.is_late:
                self.refuse()
            time.sleep(_LOOK_EVERY_SECONDS)

    def refuse(self) -> None:
        """Raise `InvalidInput`: another run uses the receiver."""
        raise InvalidInput(f"{self.given!r} is received from by another run: a run needs a receiver of its own")


class AsyncReceives(Protocol):
    """A receiver whose calls are awaited: `recv` and `commit` are coroutine functions, or one of them is."""

    def recv(
        self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1
    ) -> WorkBatch | Awaitable[WorkBatch]:
        """As in `Receiver`."""
        ...

    def commit(self, tokens: Sequence[Any]) -> Awaitable[None] | None:
        """As in `Receiver`."""
        ...


class Receiving:
    """Calls `recv` for a run. With `in_thread`, in a thread that can be left behind; an async one on the loop."""

    def __init__(self, receiver: Receiver, use: Use, calls: Calls, *, in_thread: bool) -> None:
        self._receiver = receiver
        self._use = use
        self._calls = calls
        self._in_thread = in_thread and not inspect.iscoroutinefunction(getattr(use.given, "recv", None))
        self._can_stop = in_thread
        self._work = SimpleQueue[Any]()
        self._thread: threading.Thread | None = None
        self.is_behind = False  # a receive is on its way that the run does not wait for any more

    def __call__(self, call: Callable[[], Any], should_stop: Callable[[], bool]) -> Any:
        """What `call` returns, or its result where it is awaitable. Raises `Stopped` when it is to stop."""
        if not self._in_thread:
            return self._calls.settle(call(), should_stop if self._can_stop else None)
        if self._thread is None:
            self._thread = threading.Thread(target=self._receive, name="penstock-engine-recv", daemon=True)
            self._thread.start()
        answer = Future[Any]()
        self._work.put((call, answer))
        try:
            self._calls.wait(answer, should_stop)
            if not answer.done():
                answer.exception(_GRACE_SECONDS)
            if not self._calls.is_cancelled:
                return self._calls.settle(answer.result(), should_stop)
        except TimeoutError:
            if answer.done():
                raise
        finally:
            if not answer.done():
                self._leave_behind(answer)
        self._calls.check()
        raise Stopped

    def close(self) -> None:
        """End the thread; where a receive does not end, when that does."""
        if self._thread is not None:
            self._work.put(None)
            if not self.is_behind:
                self._thread.join()

    def _receive(self) -> None:
        while (work := self._work.get()) is not None:
            call, answer = work
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001  it is raised in the thread of the run
                answer.set_exception(error)
            del call, answer, work

    def _leave_behind(self, answer: Future[Any]) -> None:
        """Let what it brings come again: only after it has ended, for a receiver is not used by two threads."""
        self._use.is_late = self.is_behind = True

        def give_back(ended: Future[Any]) -> None:
            try:
                if inspect.iscoroutine(returned := None if ended.exception() else ended.result()):
                    returned.close()
                self._receiver.rewind()
            except Exception as error:  # noqa: BLE001  the run has ended; a receiver may be closed by now
                _log.info("%r could not be rewound after a receive that ended late: %r", self._receiver, error)
            finally:
                self._use.is_late = False
                self._use.lock.release()

        answer.add_done_callback(give_back)
