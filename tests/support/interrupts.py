"""A Ctrl-C at a chosen place: the first time that a thread reaches it, the second time, and so on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """Raises `KeyboardInterrupt` in some work, after `number` places where it could have.

    `is_ours` says whether a source file is looked at, `is_place` whether it could come now. `also` is what the work may
    raise besides, once it was interrupted.
    """

    def __init__(
        self,
        number: int,
        is_ours: Callable[[str], bool],
        is_place: Callable[[FrameType, str], bool],
        also: tuple[type[Exception], ...] = (),
    ) -> None:
        self._remaining = number
        self._is_ours = is_ours
        self._is_place = is_place
        self._expected: tuple[type[BaseException], ...] = (KeyboardInterrupt, *also)
        self.came = False
        self.place: str | None = None  # where it came: the file and the function

    def during(self, work: Callable[[], object]) -> BaseException | None:
        """Do the work, up to the interrupt; return what it raised."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            work()
        except self._expected as error:
            assert self.came
            return error
        finally:
            sys.settrace(before)
        return None

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not self._is_ours(frame.f_code.co_filename):
            return None
        if self._is_place(frame, event):
            if self._remaining == 0:
                sys.settrace(None)
                self.came = True
                self.place = f"{frame.f_code.co_filename}: {frame.f_code.co_qualname}"
                raise KeyboardInterrupt
            self._remaining -= 1
        return self._trace
