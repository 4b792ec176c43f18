"""Calls a method, or its awaitable twin on an event loop: one contract suite for both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

NAMES = ("blocking", "asyncio", "uvloop")


class Twins:
    """Calls methods themselves."""

    def __call__(self, method: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Call a bound method."""
        return method(*args, **keywords)

    def iterate(self, of: Any, method: str | None = None, *args: Any) -> Iterator[Any]:
        """Iterate over an object, or over what its method returns."""
        found: Iterator[Any] = iter(of) if method is None else getattr(of, method)(*args)
        return found

    def within(self, opened: Any) -> AbstractContextManager[Any]:
        """The object as a context manager."""
        manager: AbstractContextManager[Any] = opened
        return manager

    def close(self) -> None:
        """End the loop; a task that is left behind fails the test."""


class AwaitedTwins(Twins):
    """Calls the twins, each on a loop that runs in a thread of its own."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def __call__(self, method: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        twin = getattr(method.__self__, f"{method.__name__}_async")  # type: ignore[attr-defined]
        return self.run(twin(*args, **keywords))

    def iterate(self, of: Any, method: str | None = None, *args: Any) -> Iterator[Any]:
        async def begin() -> AsyncIterator[Any]:
            found: AsyncIterator[Any] = aiter(of) if method is None else getattr(of, f"{method}_async")(*args)
            return found

        iterator = self.run(begin())
        while True:
            try:
                yield self.run(_awaited(anext(iterator)))
            except StopAsyncIteration:
                return

    @contextmanager
    def within(self, opened: Any) -> Iterator[Any]:
        inside = self.run(opened.__aenter__())
        try:
            yield inside
        except BaseException as error:
            self.run(opened.__aexit__(type(error), error, error.__traceback__))
            raise
        else:
            self.run(opened.__aexit__(None, None, None))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop, and wait for it in this thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self) -> None:
        left = self.run(_other_tasks())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert not left, f"tasks are left behind: {left}"


def twins_of(name: str) -> Twins:
    """The twins of a name of `NAMES`."""
    if name == "blocking":
        return Twins()
    if name == "asyncio":
        return AwaitedTwins(asyncio.new_event_loop)
    import uvloop

    return AwaitedTwins(uvloop.new_event_loop)


async def _awaited(one: Any) -> Any:
    return await one


async def _other_tasks() -> list[str]:
    return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
