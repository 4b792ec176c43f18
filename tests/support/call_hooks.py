"""Hooks at the calls of a function in threads that start later, set as a debugger sets them: nothing is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import cast


@contextmanager
def hooks_at(
    function: Callable[..., object],
    *,
    before: Callable[[], object] | None = None,
    after: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Within this, a thread that starts and calls the function runs `before` first, and `after` when it returns."""
    code = cast("FunctionType", function).__code__
    hooks = {"call": before, "return": after}

    def profile(frame: FrameType, event: str, argument: object) -> None:
        hook = hooks.get(event) if frame.f_code is code else None
        if hook is not None:
            hook()

    previous = threading.getprofile()
    threading.setprofile(profile)
    try:
        yield
    finally:
        threading.setprofile(previous)
