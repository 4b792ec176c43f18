"""A run in a thread, awaited on an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context

from penstock.engine.calls import Calls, RunCancelled


async def in_thread(run: Callable[[], None], calls: Calls) -> None:
    """Call `run` in a thread, and return when it has ended. Raises what it raises.

    When the caller is cancelled, so are `calls`; `CancelledError` is raised after the thread has ended.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    errors = list[BaseException]()

    def work() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001  it is raised to the caller of `run_async`
            errors.append(error)
        finally:
            loop.call_soon_threadsafe(_end, ended)

    # In a copy of the caller's context: plain functions see its variables, as coroutines do.
    thread = threading.Thread(target=copy_context().run, args=(work,), name="penstock-engine", daemon=True)
    thread.start()
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as error:
            cancelled = error
            calls.cancel()
    thread.join()  # it is in its last line
    if cancelled is not None:
        raise cancelled
    for failure in errors:
        if not isinstance(failure, RunCancelled):
            raise failure


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
