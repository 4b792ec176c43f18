"""The writes of durable queues, at the calls of RocksDB: counted, held up, or failed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.queue.rocksdb_calls import SYNCS, WRITES, Real, replace_calls
from tests.support.waiting import Gate


class HeldWrite(Gate):
    """A gate before one write, or after its sync; and what the write raises before it begins, or after its sync."""

    def __init__(self, before: BaseException | None, after: BaseException | None, *, is_after_sync: bool) -> None:
        super().__init__()
        self.before = before
        self.after = after
        self.is_after_sync = is_after_sync


class Writes:
    """Every write of a queue from now on. Each is one call of RocksDB to write and one to sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._held: dict[int, HeldWrite] = {}
        self._current: HeldWrite | None = None
        replace_calls(monkeypatch, WRITES, self._write)
        replace_calls(monkeypatch, SYNCS, self._sync)

    def hold(
        self,
        number: int = 0,
        *,
        before: BaseException | None = None,
        after: BaseException | None = None,
        is_after_sync: bool = False,
    ) -> HeldWrite:
        """Hold up the write of this number, counted from now, until its gate is opened."""
        held = self._held[self.count + number] = HeldWrite(before, after, is_after_sync=is_after_sync)
        return held

    def fail(self, number: int = 0, *, error: BaseException, is_written: bool = False) -> None:
        """Let the write of this number raise an error, before it begins or when it is synced."""
        (self.hold(number, after=error) if is_written else self.hold(number, before=error)).open()

    def release_all(self) -> None:
        """Hold up nothing any more."""
        for held in self._held.values():
            held.open()

    def _write(self, real: Real, *args: Any, **kwargs: Any) -> Any:
        held = self._current = self._held.get(self.count)
        self.count += 1
        if held is not None and not held.is_after_sync:
            held()
        if held is not None and held.before is not None:
            raise held.before
        return real(*args, **kwargs)

    def _sync(self, real: Real, *args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        held = self._current
        if held is not None and held.is_after_sync:
            held()
        if held is not None and held.after is not None:
            raise held.after
