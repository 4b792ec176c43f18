"""How a call gives its result to its caller: a blocking one returns it, one for a coroutine hands it over.

The part of `awaiting` that blocking calls need: it does not load asyncio.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

_Given = TypeVar("_Given", contravariant=True)


class Abandoned(BaseException):
    """The coroutine that waited for this call was cancelled. Raised in the call's thread, by `hand_over`."""


class HandOver(Protocol[_Given]):
    """Gives a result to the caller. To be called once, as the last step of a call, inside its lock."""

    def __call__(self, result: _Given, /) -> object:
        """Raises `Abandoned` where no coroutine waits for it any more: the caller then undoes its step."""
        ...


class _Call(threading.local):
    """The call that a thread makes for a coroutine."""

    is_abandoned: Callable[[], bool] | None = None


call_of_thread = _Call()


def raise_if_abandoned() -> None:
    """Raise `Abandoned` in a thread that calls for a coroutine, where that was cancelled.

    To be called before a write that a later call of the same task must not meet, between the read it depends on and it.
    """
    if call_of_thread.is_abandoned is not None and call_of_thread.is_abandoned():
        raise Abandoned


def to_caller(_result: object) -> None:
    """The `HandOver` of a blocking call: its caller gets what it returns."""
