"""`Closing`: the base of everything that is open until it is closed, in the one process that opened it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from penstock.core.fork import current, refuse_in_child
from penstock.core.logs import get_logger
from penstock.errors import Closed

_log = get_logger(__name__)


class Closing(ABC):
    """Open until `close`, in the process that made it; usable in a `with` and in an `async with` statement.

    A method of a subclass calls `_check_process` before it takes any lock, and `_check_open` where it needs to be open.
    """

    _instead_in_child: ClassVar[str]
    """What to do in a forked child instead of using the parent's: the end of the error's sentence."""

    def __init__(self) -> None:
        self._home = current.number
        self._is_closed = False

    @abstractmethod
    def close(self) -> None:
        """Close it. A second `close` does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it. An error of `close` does not hide the exception that ends the `with` block: it is logged then."""
        try:
            self.close()
        except Exception:
            if error is None:
                raise
            _log.exception("closing %r failed too", self)

    @classmethod
    async def open_async(cls, *args: Any, **keywords: Any) -> Self:
        """Do what the constructor does, with the same arguments, without blocking the loop.

        Cancelled, it leaves nothing open: what was opened meanwhile is closed.
        """
        return await opened_async(lambda: cls(*args, **keywords))

    async def close_async(self) -> None:
        """Do what `close` does, without blocking the loop. Cancelled, it is closed all the same, in its thread."""
        from penstock.core.awaiting import in_new_thread  # here and below: without coroutines asyncio is not loaded

        await in_new_thread("close", self.close)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        from penstock.core.awaiting import in_new_thread

        await in_new_thread("close", self.__exit__, kind, error, traceback)

    def _close_unused(self) -> None:
        """Close it for a task that was cancelled, which hears of no error."""
        try:
            self.close()
        except Exception as error:  # noqa: BLE001  a newer consumer may have fenced it already
            _log.warning("closing %r, whose opening was cancelled: %s", self, error)

    @property
    def _is_in_child(self) -> bool:
        """Whether this is a forked child of the process that made it."""
        return self._home != current.number

    def _check_process(self) -> None:
        """Raises `InvalidInput` in a forked child."""
        if self._home != current.number:
            refuse_in_child(self._home, self, self._instead_in_child)

    def _check_open(self) -> None:
        """Raises `Closed` after `close`."""
        if self._is_closed:
            raise Closed(f"{self!r} is closed")


_Opened = TypeVar("_Opened", bound=Closing)


async def opened_async(opens: Callable[[], _Opened]) -> _Opened:
    """Open something without blocking the loop. Cancelled, it leaves nothing open: what was opened is closed then."""
    from penstock.core.awaiting import in_new_thread

    def discard(opened: _Opened) -> None:
        threading.Thread(target=opened._close_unused, name="penstock-close", daemon=True).start()

    return await in_new_thread("open", opens, unheard=discard)
