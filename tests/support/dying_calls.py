"""A process that kills itself by SIGKILL at one of its calls of the system."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

_CALLS = ("link", "rename", "replace", "mkdir", "fsync", "open", "unlink", "rmdir", "ftruncate")


def die_at(number: int) -> None:
    """Have this process die before one of its calls that change files, counted from 0."""
    calls = iter(range(number))

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **more)

        return call

    for name in _CALLS:
        setattr(os, name, dying(getattr(os, name)))
