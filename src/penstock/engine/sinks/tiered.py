"""`TieredSink`: a second sink takes what the first refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock import metrics
from penstock.core import get_logger
from penstock.engine.sinks.combined import (
    CombinedSink,
    error_of_awaited,
    error_of_call,
    error_of_delivery,
    is_work_to_await,
)
from penstock.engine.work_batch import WorkBatch
from penstock.errors import EngineError, InvalidInput

_log = get_logger("penstock.engine")


class TieredSink(CombinedSink):
    """Sends a batch to `first`; if that fails, the whole batch to `fallback`. If both fail, the block does.

    The first refuses where it raises an `Exception`, or where a write that it returned fails. Each refusal is logged as
    a warning under `penstock.engine`, and counted: `refused`, and the metric `penstock_engine_fallbacks_total`. What
    the first had written before it failed stays where it is, so a record may be in both.

    The commit tokens are in both batches. A sink may be plain or `async def`.

    >>> kept = []
    >>> def down(batch):
    ...     raise OSError("the disk is full")
    >>> sink = TieredSink(down, kept.append)
    >>> sink(WorkBatch([]))
    >>> len(kept), sink.refused
    (1, 1)
    """

    def __init__(self, first: Callable[[WorkBatch], Any], fallback: Callable[[WorkBatch], Any]) -> None:
        for name, sink in (("first", first), ("fallback", fallback)):
            if not callable(sink):
                raise InvalidInput(f"{name} must be a function of a batch, not {type(sink).__name__}")
        self._first = first
        self._fallback = fallback
        self.refused = 0
        """How many batches the first has refused."""

    def __repr__(self) -> str:
        return f"TieredSink({self._first!r}, {self._fallback!r})"

    def __call__(self, batch: WorkBatch) -> Any:
        """Send a batch. Raises `EngineError` naming both causes where both have failed."""
        returned, refusal = error_of_call(lambda: self._first(batch))
        if is_work_to_await(returned):
            return self._awaited(batch, returned)
        refusal = refusal or error_of_delivery(returned)
        if refusal is None:
            return None
        self._note(batch, refusal)
        returned, error = error_of_call(lambda: self._fallback(batch))
        if is_work_to_await(returned):
            return self._awaited_fallback(returned, refusal)
        _raise(refusal, error or error_of_delivery(returned))
        return None

    def _all(self) -> list[object]:
        return [self._first, self._fallback]

    async def _awaited(self, batch: WorkBatch, first: object) -> None:
        refusal = await error_of_awaited(first)
        if refusal is None:
            return
        self._note(batch, refusal)
        # A plain fallback may block, and must not hold up the loop.
        returned, error = await asyncio.to_thread(error_of_call, lambda: self._fallback(batch))
        _raise(refusal, error or await error_of_awaited(returned))

    async def _awaited_fallback(self, returned: object, refusal: Exception) -> None:
        _raise(refusal, await error_of_awaited(returned))

    def _note(self, batch: WorkBatch, refusal: Exception) -> None:
        self.refused += 1
        metrics.engine_fallbacks.inc()
        _log.warning("%r refused %r, which goes to the fallback: %s", self._first, batch, _text(refusal))


def _raise(refusal: Exception, error: Exception | None) -> None:
    if error is not None:
        raise EngineError(
            f"the first sink failed: {_text(refusal)}; and the fallback failed too: {_text(error)}"
        ) from error


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
