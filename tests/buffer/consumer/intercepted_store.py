"""A store that records every call, and lets a test act before or after some of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from penstock.storage import DeleteResult, Object, ObjectMeta, ObjectStore
from penstock.storage.object_store import Data

Answer = TypeVar("Answer")


@dataclass
class _Interception:
    when: str
    operation: str
    path: str | None
    action: Callable[[], object]
    times: int


class InterceptedStore:
    """Any store, with its calls recorded as `(operation, path)`."""

    def __init__(self, store: ObjectStore) -> None:
        self.inner = store
        self.calls: list[tuple[str, str]] = []
        self._interceptions: list[_Interception] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self.inner.url

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

    def get(self, path: str) -> Object:
        return self._call("get", path, lambda: self.inner.get(path))

    def head(self, path: str) -> ObjectMeta:
        return self._call("head", path, lambda: self.inner.head(path))

    def put(self, path: str, data: Data) -> str:
        return self._call("put", path, lambda: self.inner.put(path, data))

    def put_if_absent(self, path: str, data: Data) -> str:
        return self._call("put_if_absent", path, lambda: self.inner.put_if_absent(path, data))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        return self._call("put_if_match", path, lambda: self.inner.put_if_match(path, data, version))

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return self._call("list_objects", prefix, lambda: self.inner.list_objects(prefix))

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        given = list(paths)
        return self._call("delete", ",".join(given), lambda: self.inner.delete(given))

    def _call(self, operation: str, path: str, call: Callable[[], Answer]) -> Answer:
        with self._lock:
            self.calls.append((operation, path))
        self._run_actions("before", operation, path)
        answer = call()
        self._run_actions("after", operation, path)
        return answer

    def _run_actions(self, when: str, operation: str, path: str) -> None:
        with self._lock:
            due = [
                step
                for step in self._interceptions
                if step.when == when and step.operation == operation and step.path in {None, path}
            ]
            for step in due:
                step.times -= 1
            self._interceptions = [step for step in self._interceptions if step.times > 0]
        for step in due:
            step.action()
