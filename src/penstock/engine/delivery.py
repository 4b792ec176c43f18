"""What a sink or a dead letters' route returns: nothing, or writes that are waited for before the commit.

Anything else is refused. Much of it is work that has not begun (a generator, `map`, a coroutine, a Spark DataFrame),
and the rest cannot be told from that.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeAlias

from penstock.buffer import WriteHandle
from penstock.core import get_logger
from penstock.errors import EngineError, InvalidInput

Write: TypeAlias = WriteHandle | Future[Any] | None
Delivery: TypeAlias = Write | Sequence[Write]
AsyncDelivery: TypeAlias = Delivery | Awaitable[Any] | Sequence[Write | Awaitable[Any]]
Starts: TypeAlias = Callable[[Any], "Future[Any] | None"]

_ALLOWED = "None, a WriteHandle, a concurrent.futures.Future, or a list or tuple of these, which are waited for"

_WRITES: Any = WriteHandle | Future | None

_log = get_logger(__name__)


def wait_for_delivery(returned: object, start: Starts | None = None) -> None:
    """Return when everything that a sink returned is delivered. All writes are waited for, also after an error.

    `start` makes a future of an awaitable, or returns None for what it cannot await; without it awaitables are refused.

    Writes that are the result of a future are waited for too: `executor.submit(producer.produce, record)`. Raises the
    first error, in the order of the list; `InvalidInput` for what is no delivery, before any wait; and `InvalidInput`
    for a future whose result is work that has not begun. An interrupt ends the wait.

    >>> wait_for_delivery(map(print, ["never printed"]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    penstock.errors.InvalidInput: it returned a map, which does its work when it is iterated over: make a list of it...
    """
    if returned is None:
        return
    writes = list(returned) if isinstance(returned, list | tuple) else [returned]
    if start is not None:
        writes = [one if isinstance(one, _WRITES) else start(one) or one for one in writes]
    _check_kinds(writes, is_list=isinstance(returned, list | tuple))
    # All of them, also after an error: the block is delivered again, and must not overtake its own earlier writes.
    errors = [error for error in map(_error_of, writes) if error is not None]
    if len(errors) > 1:
        _log.error("%d of %d writes that a sink returned have failed; raising the first", len(errors), len(writes))
    for error in errors:
        if isinstance(error, Exception):
            raise error
        raise EngineError(f"a future ended with {type(error).__name__}: {error}") from error


def close_if_coroutine(returned: object) -> None:
    """Close a coroutine that is refused, so that Python does not warn that it was never awaited."""
    if inspect.iscoroutine(returned):
        returned.close()


def _check_kinds(writes: list[Any], *, is_list: bool) -> None:
    wrong = [one for one in writes if not isinstance(one, _WRITES)]
    if not wrong:
        return
    for one in wrong:
        close_if_coroutine(one)
    what = f"a {type(wrong[0]).__name__}"
    raise InvalidInput(
        f"it returned {f'a list with {what} in it' if is_list else what}{_hint(wrong[0])}. What may be returned is "
        f"{_ALLOWED}"
    )


def _hint(wrong: object) -> str:
    if inspect.isasyncgen(wrong):
        return ", which nothing awaits or iterates over: an async function must not have a `yield`"
    if inspect.isawaitable(wrong):
        return ", which nothing awaits: use asyncio.run, or return the future of asyncio.run_coroutine_threadsafe"
    if isinstance(wrong, Iterator):
        return ", which does its work when it is iterated over: make a list of it"
    return ", which does not say whether the block is delivered"


def _error_of(write: Any) -> BaseException | None:
    """Wait for a write, and return its error. An interrupt of this thread is raised; that of a future is returned."""
    if write is None:
        return None
    if isinstance(write, Future):
        try:
            error = write.exception()
        except CancelledError as cancelled:
            return cancelled
        return _error_of_result(write.result()) if error is None else error
    try:
        write.result()
    except Exception as error:  # noqa: BLE001  it is raised after all the others have ended
        return error
    return None


def _error_of_result(result: object) -> BaseException | None:
    """The first error of the writes that are the result of a future. Other results are fine: the work was done.

    Except a result that is itself work: a function that returns `map` or a coroutine has done nothing in its thread.
    """
    parts: list[Any] = list(result) if isinstance(result, list | tuple) else [result]
    undone = [one for one in parts if is_work_not_begun(one)]
    if undone:
        for one in undone:
            close_if_coroutine(one)
        return InvalidInput(f"the result of a future is a {type(undone[0]).__name__}{_hint(undone[0])}")
    errors = [_error_of(one) for one in parts if isinstance(one, WriteHandle | Future)]
    return next((error for error in errors if error is not None), None)


def is_work_not_begun(result: object) -> bool:
    """Whether its work begins when it is awaited or iterated over. A database's cursor, an iterator too, has begun."""
    if isinstance(result, WriteHandle):
        return False
    if inspect.isawaitable(result) or inspect.isasyncgen(result) or inspect.isgenerator(result):
        return True
    return isinstance(result, Iterator) and type(result).__module__ in {"builtins", "itertools"}
