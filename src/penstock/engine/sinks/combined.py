"""A sink of several sinks: what they return is waited for together, and all of them are closed."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from penstock.buffer import WriteHandle
from penstock.core import get_logger
from penstock.engine.delivery import wait_for_delivery

_log = get_logger("penstock.engine")


class CombinedSink(ABC):
    """A sink that closes the sinks that it sends to."""

    @abstractmethod
    def _all(self) -> list[object]:
        """Its sinks."""

    def close(self) -> None:
        """Close the sinks that have a `close`; of a method such as `sender.send`, the object that it is of."""
        _close_sinks(self._all())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        closing = error_of_call(self.close)[1]
        if closing is None:
            return
        if error is None:
            raise closing
        _log.error("closing %r failed too: %s", self, closing)


def is_work_to_await(returned: object) -> bool:
    """Whether a sink returned work that a running loop has to do, alone or in a list."""
    return any(map(_is_awaitable, returned if isinstance(returned, list | tuple) else [returned]))


def error_of_call(call: Callable[[], object]) -> tuple[object, Exception | None]:
    """What a sink returned, or the error that it raised."""
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001  it is raised, or answered, when all the others have ended
        return None, error


def error_of_delivery(returned: object) -> Exception | None:
    """Wait for a delivery; its error, or None."""
    return error_of_call(lambda: wait_for_delivery(returned))[1]


async def error_of_awaited(returned: object) -> Exception | None:
    """Await what a sink returned, and the delivery that it gives; its error, or None. The loop goes on meanwhile."""
    started = list[Future[Any]]()
    try:
        delivery = await _awaiting(returned) if _is_awaitable(returned) else returned
        if isinstance(delivery, list | tuple):
            delivery = [_started(one, started) if _is_awaitable(one) else one for one in delivery]
        if delivery is not None:
            await asyncio.to_thread(wait_for_delivery, delivery)
    except Exception as error:  # noqa: BLE001  as above
        return error
    finally:
        for future in started:
            future.cancel()  # they have ended, unless this coroutine is cancelled
    return None


def _started(awaitable: object, started: list[Future[Any]]) -> Future[Any]:
    started.append(asyncio.run_coroutine_threadsafe(_awaiting(awaitable), asyncio.get_running_loop()))
    return started[-1]


def _is_awaitable(returned: object) -> bool:
    """Whether it needs a running loop. A `WriteHandle` can be waited for without one."""
    return inspect.isawaitable(returned) and not isinstance(returned, WriteHandle | Future)


async def _awaiting(awaitable: Any) -> object:
    result: object = await awaitable
    return result


def _close_sinks(sinks: list[object]) -> None:
    """Close those sinks that have a `close`, each once, all of them also after an error. Raises the first error."""
    errors: list[Exception] = []
    for sink in {id(one): one for one in sinks}.values():
        # Of `sender.send` it is the sender that is closed: a bound method has no `close` of its own.
        owner = getattr(sink, "__self__", sink)
        close = getattr(owner, "close", None)
        if callable(close):
            _, error = error_of_call(close)
            errors += [] if error is None else [error]
    if errors:
        raise errors[0]
