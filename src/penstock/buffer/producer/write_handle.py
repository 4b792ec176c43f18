"""`WriteHandle`: what `produce` returns, and how the outcome of a batch reaches all its handles."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core import current, get_logger
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from penstock.core import LoopEvent

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """Where a batch is: its place in the queue, and its data object."""

    sequence: int
    location: str


class Outcome:
    """What became of one batch. All handles of the batch share it, so that a batch is done in one step."""

    __slots__ = ("_arrived", "_arrives", "_home", "_listeners", "_lock", "_written", "error", "unheard")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.unheard = 0
        """How many handles have not raised the error yet. Set before there is an outcome."""
        self._arrived = threading.Event()
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._arrives: dict[AbstractEventLoop, LoopEvent] = {}  # what the coroutines of each loop wait for
        self._written: Written | None = None
        self._home = current.number

    @property
    def is_done(self) -> bool:
        """Whether there is an outcome."""
        return self._arrived.is_set()

    def hear(self) -> None:
        """Count a handle that has raised the error."""
        with self._lock:
            self.unheard -= 1

    def succeed(self, written: Written) -> None:
        """The batch is durable and enqueued."""
        self._written = written
        self._finish()

    def fail(self, error: BaseException) -> None:
        """The batch is not known to be enqueued."""
        _drop_locals(error)
        self.error = error
        self._finish()

    def check_process(self) -> None:
        """Raise `InvalidInput` in a forked child: the threads that would finish it are in the parent."""
        if self._home != current.number:
            raise InvalidInput(
                "this handle belongs to a producer of the parent process, and is never done in a forked child"
            )

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is one, and return whether there is. Raises `InvalidInput` in a forked child."""
        self.check_process()
        return self._arrived.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))

    async def wait_async(self) -> None:
        """Wait until there is one. Raises `InvalidInput` in a forked child."""
        self.check_process()
        import asyncio  # here, for those who do not wait this way need not load it

        from penstock.core import LoopEvent

        loop = asyncio.get_running_loop()
        with self._lock:
            if self.is_done:
                return
            arrives = self._arrives.get(loop)
            if arrives is None:
                arrives = self._arrives[loop] = LoopEvent()
                self._listeners.append(arrives.happen)
        await arrives.wait()

    def get(self) -> Written:
        """Return what was written, or raise what went wrong."""
        if self.error is not None:
            raise self.error
        assert self._written is not None  # noqa: S101  done, and no error
        return self._written

    def _finish(self) -> None:
        with self._lock:
            self._arrived.set()
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


def _drop_locals(error: BaseException | None) -> None:
    """Clear the frames of an error's traceback: they hold the whole batch, among others."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class WriteHandle(msgspec.Struct, eq=False, gc=False):
    """One call of `produce`, on its way: done once its entries are durable and enqueued. It can be awaited."""

    # A struct, for there is one for each event of a producer that gets them one by one; without the cycle collector,
    # for nothing that it holds refers to it.
    _outcome: Outcome
    ingestion_time_ms: int
    _is_asked: bool = False

    def __repr__(self) -> str:
        state = "done" if self._outcome.is_done else "under way"
        return f"WriteHandle(ingestion_time_ms={self.ingestion_time_ms}, {state})"

    def done(self) -> bool:
        """Whether it has an outcome, good or bad. Raises `InvalidInput` in a forked child, where it never gets one."""
        self._outcome.check_process()
        return self._outcome.is_done

    def result(self, timeout: float | None = None) -> Written:
        """Wait for the outcome: where the entries are.

        Raises what went wrong (then the entries are *not known* to be enqueued), or `TimeoutError` past the timeout, in
        seconds, which leaves everything on its way.
        """
        if not self._outcome.wait(timeout):
            raise TimeoutError(f"not enqueued within {timeout} s; it is still on its way")
        return self._get()

    def __await__(self) -> Generator[Any, None, Written]:
        yield from self._outcome.wait_async().__await__()
        return self._get()

    def _get(self) -> Written:
        if self._outcome.error is not None and not self._is_asked:
            self._is_asked = True
            self._outcome.hear()
        return self._outcome.get()
