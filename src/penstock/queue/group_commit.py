"""Group commit: calls that come while a write is under way share the next one, and its sync.

There is no writer thread: to hand over to one and back would cost a tenth of a sync. The call that finds nobody
writing is the leader. It writes, and then makes the first of those that came meanwhile the leader, who writes for all
that wait by then.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from penstock.errors import Closed, OutcomeUnknown, StorageError


class Work:
    """What one call wants to be written: events to push, or ids to ack.

    A thread waits for it at a gate; a coroutine has a future, and a helper thread leads for it.
    """

    __slots__ = ("acked", "error", "events", "first_id", "future", "gate", "is_over", "is_withdrawn", "leads", "size")

    def __init__(self, events: Sequence[bytes], acked: Sequence[int], size: int) -> None:
        self.events = events
        self.acked = acked
        self.size = size
        self.first_id = 0
        self.error: Exception | None = None
        self.gate: threading.Lock | None = None
        self.future: Future[None] | None = None
        self.leads = False
        self.is_over = False
        self.is_withdrawn = False

    def begin(self) -> bool:
        """Say whether it is still wanted."""
        return self.future is None or self.future.set_running_or_notify_cancel()

    def finish(self, error: Exception | None) -> None:
        """Tell whoever waits that it is over. To do it twice does no harm."""
        self.is_over = True
        if error is not None and self.error is None:
            self.error = copy.copy(error)  # each call raises its own, with its own traceback
            self.error.__cause__ = error.__cause__
        if self.gate is not None:
            with suppress(RuntimeError):  # it is open
                self.gate.release()
        elif self.future is not None and not self.future.done():
            self.future.set_exception(self.error) if self.error else self.future.set_result(None)


_INTERRUPTED = OutcomeUnknown("the thread that wrote for others was interrupted: it may have been written, or not")
_MOST_BYTES = 16 << 20  # of one write, unless a single call has more: nobody waits for more than that of others


class GroupCommit:
    """Lets one thread at a time write, for all that wait.

    `write` is given the work of some calls, in the order they came. It may set the `error` of some; if it raises,
    all of them have failed.
    """

    def __init__(self, write: Callable[[Sequence[Work]], None], name: str) -> None:
        self._write = write
        self._name = name
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._line = deque[Work]()
        self._begun = deque[Work]()  # what the leader is at
        self._is_led = False
        self._is_closed = False
        self._helper: ThreadPoolExecutor | None = None

    def commit(self, work: Work) -> None:
        """Return when it is written. Raises what went wrong with it, and `Closed` after `close`.

        An interrupt takes it back, if nobody has begun it.
        """
        try:
            with self._mutex:
                self._check()
                if self._is_led:
                    work.gate = threading.Lock()
                    work.gate.acquire()
                    self._line.append(work)
                else:
                    self._begun.append(work)
                    self._is_led = work.leads = True
            if work.gate is not None:
                work.gate.acquire()
            if work.leads:
                self._lead()
        finally:
            if not work.is_over:
                self._withdraw(work)
            if work.leads:
                self._step_down()
        if work.error is not None:
            raise work.error

    def commit_later(self, work: Work) -> Future[None]:
        """Return at once, with a future that ends when it is written. Until that begins it can be cancelled."""
        work.future = Future()
        with self._mutex:
            self._check()
            self._line.append(work)
            if not self._is_led:
                self._is_led = self._let_lead(work)
        return work.future

    def close(self) -> None:
        """Let nobody in any more, and return when all that are in line have been written."""
        with self._mutex:
            self._is_closed = True
            while self._is_led:
                self._idle.wait()
            helper, self._helper = self._helper, None
        if helper is not None:
            helper.shutdown()

    def _withdraw(self, work: Work) -> None:
        """Take work back that nobody has begun: its thread was interrupted."""
        with self._mutex:
            if work in self._line:
                self._line.remove(work)
                work.is_withdrawn = True

    def _check(self) -> None:
        if self._is_closed:
            raise Closed(f"{self._name} is closed")

    def _lead(self) -> None:
        """Write: one's own work, if one came to an empty line, or that of all who wait."""
        if not self._begun:
            with self._mutex:
                self._take()
        error: Exception | None = _INTERRUPTED
        try:
            self._write(self._begun)
            error = None
        except Exception as failure:  # noqa: BLE001  each call raises it
            error = failure
        finally:
            self._finish(error)

    def _take(self) -> None:
        size = 0
        while self._line and (not self._begun or size + self._line[0].size <= _MOST_BYTES):
            work = self._line.popleft()
            if work.begin():
                self._begun.append(work)
                size += work.size

    def _finish(self, error: Exception | None) -> None:
        while self._begun:
            self._begun[0].finish(error)
            self._begun.popleft()

    def _step_down(self) -> None:
        self._finish(_INTERRUPTED)  # there is something left only if a Ctrl-C came in the middle of it
        with self._mutex:
            while self._line:
                if self._let_lead(self._line[0]):
                    return
            self._is_led = False
            if self._is_closed:
                self._idle.notify_all()

    def _let_lead(self, work: Work) -> bool:
        """Make the first in line the leader. False: it cannot be, and has left the line."""
        if work.gate is not None:
            work.leads = True
            work.gate.release()
            return True
        try:
            if self._helper is None:
                self._helper = ThreadPoolExecutor(1, "penstock-queue")
            self._helper.submit(self._lead_for_coroutines)
        except RuntimeError as error:  # no more threads, or the interpreter is shutting down
            self._line.popleft()
            work.finish(StorageError(f"no thread could be had to write with, and nothing was written: {error}"))
            return False
        return True

    def _lead_for_coroutines(self) -> None:
        try:
            self._lead()
        finally:
            self._step_down()
