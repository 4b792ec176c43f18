"""A store in front of another one, with hooks at the steps of a producer: to hold one up, to fail it, to do more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from penstock.storage import ObjectStore
from penstock.storage.object_store import Data, DeleteResult, Object, ObjectMeta

Step: TypeAlias = Literal[
    "read manifest",
    "create manifest",
    "write manifest",
    "read id",
    "write id",
    "read owner",
    "write owner",
    "read data",
    "write data",
    "list",
    "delete",
]
Hook: TypeAlias = Callable[[], object]
Answer = TypeVar("Answer")


@dataclass
class _Hooked:
    step: Step
    do: Hook
    skip: int
    times: int

    def is_due(self, step: Step) -> bool:
        """Count a call of this step; return whether the hook is due."""
        if step != self.step:
            return False
        self.skip, skipped = max(self.skip - 1, 0), self.skip > 0
        if skipped or not self.times:
            return False
        self.times -= 1
        return True


class HookedStore:
    """Calls hooks before and after steps, in the thread that takes the step. What a hook raises, the step raises.

    `skip` lets that many calls pass first, and `times` is the number of calls after that: all by default.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._before: list[_Hooked] = []
        self._after: list[_Hooked] = []
        self._lock = threading.Lock()
        self.steps: list[Step] = []

    @property
    def url(self) -> str:
        return self._store.url

    def before(self, step: Step, do: Hook, *, skip: int = 0, times: int = 1 << 62) -> None:
        self._before.append(_Hooked(step, do, skip, times))

    def after(self, step: Step, do: Hook, *, skip: int = 0, times: int = 1 << 62) -> None:
        """Call a hook when the step is over, with success or not, and before its call returns."""
        self._after.append(_Hooked(step, do, skip, times))

    def count(self, step: Step) -> int:
        """How often a step was begun."""
        return self.steps.count(step)

    def get(self, path: str) -> Object:
        return self._take(_step("read", path), lambda: self._store.get(path))

    def head(self, path: str) -> ObjectMeta:
        return self._take(_step("read", path), lambda: self._store.head(path))

    def put(self, path: str, data: Data) -> str:
        return self._take(_step("write", path), lambda: self._store.put(path, data))

    def put_if_absent(self, path: str, data: Data) -> str:
        step = _step("write", path)
        # The manifest that a buffer begins with is empty: it is there before anything is enqueued.
        step = "create manifest" if step == "write manifest" else step
        return self._take(step, lambda: self._store.put_if_absent(path, data))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        return self._take(_step("write", path), lambda: self._store.put_if_match(path, data, version))

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return self._take("list", lambda: self._store.list_objects(prefix))

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        return self._take("delete", lambda: self._store.delete(paths))

    def _take(self, step: Step, work: Callable[[], Answer]) -> Answer:
        with self._lock:
            self.steps.append(step)
        self._call(self._before, step)
        try:
            return work()
        finally:
            self._call(self._after, step)

    def _call(self, hooks: list[_Hooked], step: Step) -> None:
        with self._lock:
            due = [hook for hook in hooks if hook.is_due(step)]
        for hook in due:
            hook.do()


def _step(verb: Literal["read", "write"], path: str) -> Step:
    if path.endswith(".batch"):
        return "read data" if verb == "read" else "write data"
    if path.endswith("/.owner"):
        return "read owner" if verb == "read" else "write owner"
    if path.endswith(".id"):
        return "read id" if verb == "read" else "write id"
    return "read manifest" if verb == "read" else "write manifest"
