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

    __slots__ = (
        "acked",
        "error",
        "events",
        "first_id",
        "future",
        "gate",
        "has_left",
        "is_begun",
        "is_over",
        "leads",
        "size",
    )

    def __init__(self, events: Sequence[bytes], acked: Sequence[int], size: int) -> None:
        self.events = events
        self.acked = acked
        self.size = size
        self.first_id = 0
        self.error: Exception | None = None
        self.gate: threading.Lock | None = None
        self.future: Future[None] | None = None
        self.leads = False
        self.is_begun = False  # whether somebody writes it, or has
        self.is_over = False
        self.has_left = False

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

    A Ctrl-C may come between any two calls of a function, also in a `finally`. So whatever must happen is written to
    be done twice without harm, and is called from a `finally` inside a `finally`: one interrupt does not stop it.
    """

    def __init__(self, write: Callable[[Sequence[Work]], None], name: str) -> None:
        self._write = write
        self._name = name
        self._mutex = threading.Lock()
        self._line = deque[Work]()
        self._begun = deque[Work]()  # what the leader is at
        self._leader: Work | None = None
        self._is_closed = False
        self._when_idle: threading.Lock | None = None
        self._helper: ThreadPoolExecutor | None = None

    def commit(self, work: Work) -> None:
        """Return when it is written. Raises what went wrong with it, and `Closed` after `close`.

        An interrupt takes it back, if nobody has begun it.
        """
        try:
            with self._mutex:
                self._check()
                if self._leader is None:
                    work.leads = True
                    self._leader = work
                    self._begun.append(work)
                else:
                    work.gate = threading.Lock()
                    work.gate.acquire()
                    self._line.append(work)
            if work.gate is not None:
                work.gate.acquire()
            if work.leads:
                self._lead()
        finally:
            try:
                self._leave(work)
            finally:
                self._leave(work)
        if work.error is not None:
            raise work.error

    def commit_later(self, work: Work) -> Future[None]:
        """Return at once, with a future that ends when it is written. Until that begins it can be cancelled."""
        work.future = Future()
        with self._mutex:
            self._check()
            self._line.append(work)
            if self._leader is None:
                self._choose_a_leader()
        return work.future

    def close(self) -> None:
        """Let nobody in any more, and return when all that are in line have been written."""
        with self._mutex:
            self._is_closed = True
            self._when_idle = threading.Lock()
            if self._leader is not None:
                self._when_idle.acquire()
        self._wait(self._when_idle)
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.shutdown()

    def _wait(self, when_idle: threading.Lock) -> None:
        when_idle.acquire()

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
            for work in self._begun:
                work.is_begun = True
            self._write(self._begun)
            error = None
        except Exception as failure:  # noqa: BLE001  each call raises it
            error = failure
        finally:
            self._finish(error)

    def _take(self) -> None:
        size = 0
        while self._line and (not self._begun or size + self._line[0].size <= _MOST_BYTES):
            work = self._line[0]
            if work.begin():
                work.is_begun = True
                self._begun.append(work)
                size += work.size
            self._line.popleft()

    def _finish(self, error: Exception | None) -> None:
        while self._begun:
            self._begun[0].finish(error)
            self._begun.popleft()

    def _leave(self, work: Work) -> None:
        """Let a call go: it is over, or was interrupted. The leader makes another the leader."""
        if work.has_left or (work.is_over and not work.leads):
            return
        if self._leader is work:
            self._finish(_INTERRUPTED)  # there is something left only if it was interrupted
        with self._mutex:
            if not work.is_over and work in self._line:
                self._line.remove(work)
            if self._leader is work:
                self._choose_a_leader()
            elif self._leader is not None and work.leads:
                self._wake(self._leader)  # this was interrupted when it had chosen one
            work.has_left = True

    def _choose_a_leader(self) -> None:
        """Make the first in line the leader, or nobody."""
        while self._line:
            following = self._line[0]
            if following.is_over:
                self._line.popleft()  # an interrupt came while it was taken from there
                continue
            following.leads = True
            self._leader = following
            if self._wake(following):
                return
            following.finish(StorageError("no thread could be had to write with, and nothing was written"))
        self._leader = None
        if self._when_idle is not None:
            with suppress(RuntimeError):  # it is open
                self._when_idle.release()

    def _wake(self, leader: Work) -> bool:
        """Send the leader to work; twice does no harm. False: it is a coroutine's, and no thread can be had."""
        if leader.gate is not None:
            with suppress(RuntimeError):  # it is open
                leader.gate.release()
        if leader.future is not None:
            try:
                if self._helper is None:
                    self._helper = ThreadPoolExecutor(1, "penstock-queue")
                self._helper.submit(self._lead_for_coroutines, leader)
            except RuntimeError:  # no more threads, or the interpreter is shutting down
                return False
        return True

    def _lead_for_coroutines(self, work: Work) -> None:
        if self._leader is not work:
            return
        try:
            self._lead()
        finally:
            self._leave(work)
