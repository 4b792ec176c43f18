"""Group commit: calls that come while a write is under way share the next write.

There is no writer thread: handing over to one and back costs a tenth of a disk sync. A call that comes while no write
is under way is the leader. It writes, and then makes the first call in line the leader, which writes for all calls that
are in line by then.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from penstock.core.waiting import Latch
from penstock.errors import Closed, OutcomeUnknown, StorageError


class Work:
    """The part of one call in a group; a subclass has what is to be written, and what became of it.

    A thread waits at the latch. A coroutine waits for the future, and a helper thread leads for it.
    """

    __slots__ = ("error", "future", "has_left", "is_begun", "is_over", "latch", "leads", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.error: Exception | None = None
        self.latch = Latch()
        self.future: Future[None] | None = None
        self.leads = False
        self.is_begun = False  # a leader writes it, or has written it
        self.is_over = False
        self.has_left = False

    def begin(self) -> bool:
        """Return whether it is still to be written: a coroutine may have cancelled it. Twice does no harm."""
        if self.future is None or self.future.running():  # running: the leader that began it was interrupted
            return True
        return not self.future.cancelled() and self.future.set_running_or_notify_cancel()

    def finish(self, error: Exception | None) -> None:
        """End the wait for it, with an error if there is one. To do it twice does no harm."""
        self.error = self.error or (error and _own_copy(error))
        self.is_over = True
        self.latch.open()
        if self.future is not None and not self.future.done():
            self.future.set_exception(self.error) if self.error else self.future.set_result(None)


_Item = TypeVar("_Item", bound=Work)

_INTERRUPTED = OutcomeUnknown("the thread that wrote for others was interrupted: it may have been written, or not")


class GroupCommit(Generic[_Item]):
    """Lets one thread at a time write, for all that wait.

    `write` gets the work of one or more calls, in the order in which they came: at most `max_bytes` of it, unless one
    call has more. It may set the `error` of some; if it raises, all of them have failed. `after_write` is called by the
    leader when those for whom it wrote may go on, and before the next write begins.

    An interrupt may come between any two calls of a function, also in a `finally`. So all that must happen can be done
    twice without harm, and is called from a `finally` inside a `finally`: one interrupt does not stop it.
    """

    def __init__(
        self,
        write: Callable[[Sequence[_Item]], None],
        name: str,
        *,
        max_bytes: int,
        after_write: Callable[[], object] = lambda: None,
    ) -> None:
        self._write = write
        self._after_write = after_write
        self._name = name
        self._max_bytes = max_bytes
        self._mutex = threading.Lock()
        self._line = deque[_Item]()
        self._group = deque[_Item]()  # what the leader writes
        self._leader: _Item | None = None
        self._is_closed = False
        self._when_idle: Latch | None = None
        self._helper = ThreadPoolExecutor(1, "penstock-group-commit")  # it starts its thread for the first coroutine
        self._helping = threading.Lock()  # an interrupt while its thread is started can lead to a second one

    def commit(self, work: _Item) -> None:
        """Return when it is written. Raises what went wrong with it, and `Closed` after `close`.

        An interrupt takes it back, unless a leader has begun it.
        """
        try:
            with self._mutex:
                self._check_open()
                self._line.append(work)
                if self._leader is None:
                    self._choose_leader()
            work.latch.wait()
            if work.leads:
                self._lead()
        finally:
            try:
                self._leave(work)
            finally:
                if not work.has_left:
                    self._leave(work)
        if work.error is not None:
            raise work.error

    def commit_later(self, work: _Item) -> Future[None]:
        """Return at once, with a future that ends when it is written. It can be cancelled until its write begins."""
        work.future = Future()
        try:
            with self._mutex:
                self._check_open()
                self._line.append(work)
                self._choose_leader()
        except BaseException:
            work.future.cancel()  # unless a leader has begun it
            with self._mutex:
                if self._leader is not None:
                    self._wake(self._leader)  # an interrupt may have come before it was woken
            raise
        return work.future

    def close(self) -> None:
        """Accept no more calls, and return when those in line have been written."""
        when_idle = Latch()
        with self._mutex:
            self._is_closed = True
            self._when_idle = when_idle
            if self._leader is None:
                when_idle.open()
        when_idle.wait()
        self._helper.shutdown()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self._name} is closed")

    def _choose_leader(self, gone: _Item | None = None) -> None:
        """Make the first in line the leader, unless there is a leader whose call is not `gone`. The mutex is held."""
        if gone is not None and not gone.is_over and gone in self._line:
            self._line.remove(gone)
        if self._leader is gone:
            self._leader = None
        if self._leader is not None:
            if gone is not None and gone.leads:
                self._wake(self._leader)  # an interrupt came after the choice, perhaps before the new leader was woken
            return
        while self._line:
            first = self._line[0]
            if first.is_over:
                self._line.popleft()  # an interrupt came between its entry into the group and its exit from the line
                continue
            first.leads = True
            self._leader = first
            self._wake(first)
            if not first.is_over:
                return
        self._leader = None
        if self._when_idle is not None:
            self._when_idle.open()

    def _lead(self) -> None:
        """Write the work of the calls in line, the leader's own first, and let those calls go on."""
        error: Exception | None = _INTERRUPTED
        size = 0
        try:
            with self._mutex:
                while self._line and (not self._group or size + self._line[0].size_bytes <= self._max_bytes):
                    work = self._line[0]
                    if work.begin():
                        work.is_begun = True
                        self._group.append(work)
                        size += work.size_bytes
                    self._line.popleft()
            if not self._group:
                return  # all of them were cancelled
            self._write(self._group)
            error = None
        except Exception as failure:  # noqa: BLE001  each call of the group raises it
            error = failure
        finally:
            try:
                self._finish(error)
            finally:
                if self._group:
                    self._finish(error)
        if error is None:
            self._after_write()

    def _finish(self, error: Exception | None) -> None:
        while self._group:
            self._group[0].finish(error)
            self._group.popleft()

    def _leave(self, work: _Item) -> None:
        """End a call: it is over, or was interrupted. A leader makes the next in line the leader."""
        if work.leads or not work.is_over:
            with self._mutex:
                self._choose_leader(work)
        work.has_left = True

    def _wake(self, leader: _Item) -> None:
        """Let the leader write; twice does no harm. The call of a coroutine fails if there are no more threads."""
        leader.latch.open()
        if leader.future is not None:
            try:
                self._helper.submit(self._lead_for_coroutine, leader)
            except RuntimeError:  # no more threads, or the interpreter is shutting down
                leader.finish(StorageError("no thread could be started to write with: nothing was written"))

    def _lead_for_coroutine(self, work: _Item) -> None:
        with self._helping:
            if self._leader is not work:
                return
            try:
                self._lead()
            finally:
                self._leave(work)


def _own_copy(error: Exception) -> Exception:
    """The same error for one more call, which raises it with a traceback of its own."""
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001  its constructor takes something else than its `args`
        return error
    own.__cause__ = error.__cause__
    return own
