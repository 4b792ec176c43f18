"""A store in front of another one, with hooks at the steps of a producer: to hold one up, to fail it, to do more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.storage import ObjectStore
from tests.support.minimal_stores import Answer, StoreCall, ThinStore

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


class HookedStore(ThinStore):
    """Calls hooks before and after steps, in the thread that takes the step. What a hook raises, the step raises.

    `skip` lets that many calls pass first, and `times` is the number of calls after that: all by default.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._before: list[_Hooked] = []
        self._after: list[_Hooked] = []
        self._lock = threading.Lock()
        self.steps: list[Step] = []

    def before(self, step: Step, do: Hook, *, skip: int = 0, times: int = 1 << 62) -> None:
        self._before.append(_Hooked(step, do, skip, times))

    def after(self, step: Step, do: Hook, *, skip: int = 0, times: int = 1 << 62) -> None:
        """Call a hook when the step is over, with success or not, and before its call returns."""
        self._after.append(_Hooked(step, do, skip, times))

    def count(self, step: Step) -> int:
        """How often a step was begun."""
        return self.steps.count(step)

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        step = _step_of(call)
        with self._lock:
            self.steps.append(step)
        self._call(self._before, step)
        try:
            return pass_on()
        finally:
            self._call(self._after, step)

    def _call(self, hooks: list[_Hooked], step: Step) -> None:
        with self._lock:
            due = [hook for hook in hooks if hook.is_due(step)]
        for hook in due:
            hook.do()


def _step_of(call: StoreCall) -> Step:
    if call.operation in {"list_objects", "delete"}:
        return "delete" if call.operation == "delete" else "list"
    is_read = call.operation in {"get", "head"}
    if call.path.endswith(".batch"):
        return "read data" if is_read else "write data"
    if call.path.endswith("/.owner"):
        return "read owner" if is_read else "write owner"
    if call.path.endswith(".id"):
        return "read id" if is_read else "write id"
    if call.operation == "put_if_absent":
        return "create manifest"  # the manifest that a buffer begins with: it is there before anything is enqueued
    return "read manifest" if is_read else "write manifest"
