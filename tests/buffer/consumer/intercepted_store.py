"""A store that records every call, and lets a test act before or after some of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from penstock.storage import ObjectStore
from tests.support.minimal_stores import Answer, StoreCall, ThinStore


@dataclass
class _Interception:
    when: str
    operation: str
    path: str | None
    action: Callable[[], object]
    times: int


class InterceptedStore(ThinStore):
    """Any store, with its calls recorded as `(operation, path)`."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.calls: list[tuple[str, str]] = []
        self._interceptions: list[_Interception] = []
        self._lock = threading.Lock()

    @property
    def is_done(self) -> bool:
        """Whether all requested actions were run."""
        return not self._interceptions

    def before(self, operation: str, action: Callable[[], object], path: str | None = None, times: int = 1) -> None:
        """Run an action right before the next calls that match."""
        self._interceptions.append(_Interception("before", operation, path, action, times))

    def after(self, operation: str, action: Callable[[], object], path: str | None = None, times: int = 1) -> None:
        """Run an action right after the next calls that match and succeed."""
        self._interceptions.append(_Interception("after", operation, path, action, times))

    def fail(self, operation: str, error: BaseException, path: str | None = None, times: int = 1) -> None:
        """Let the next calls that match raise, and do nothing."""

        def refuse() -> NoReturn:
            raise error.with_traceback(None)

        self.before(operation, refuse, path, times)

    def count(self, *operations: str) -> int:
        """How many calls there were of some operations."""
        return sum(operation in operations for operation, _ in self.calls)

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        with self._lock:
            self.calls.append((call.operation, call.path))
        self._run_actions("before", call)
        answer = pass_on()
        self._run_actions("after", call)
        return answer

    def _run_actions(self, when: str, call: StoreCall) -> None:
        with self._lock:
            due = [
                step
                for step in self._interceptions
                if step.when == when and step.operation == call.operation and step.path in {None, call.path}
            ]
            for step in due:
                step.times -= 1
            self._interceptions = [step for step in self._interceptions if step.times > 0]
        for step in due:
            step.action()
