"""The runs of an engine that are on their way: what is logged of them, and whether they are healthy."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core import current, get_logger, open_in_child, refuse_in_child
from penstock.engine.block_loop import BlockLoop
from penstock.engine.regulation.snapshot import Regulation
from penstock.engine.shutdown import Shutdown
from penstock.engine.stats import Tally
from penstock.engine.transports.contract import Receiver

_MAX_HOLD_SECONDS = 30.0
_MAX_BLOCK_SECONDS = 300.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether an engine is healthy, and the reason. In a condition it is `ok`.

    >>> bool(Health(False, "a receiver is closed"))
    False
    """

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


class Runs:
    """The runs of one engine."""

    def __init__(self, regulation: Regulation, clock: Callable[[], float]) -> None:
        self._regulation = regulation
        self._clock = clock
        self._lock = open_in_child(threading.Lock())
        # Weak: an interrupt may come before the line that removes one.
        self._running: weakref.WeakValueDictionary[int, BlockLoop] = weakref.WeakValueDictionary()
        self._home = current.number  # the process of the latest run
        self._failure: str | None = None  # of the latest run that ended, until another begins

    def check_process(self, engine: object) -> None:
        """Raise `InvalidInput` in a child that was forked during a run."""
        if self._running:
            instead = "it was running there when this child was forked; make a BatchEngine here"
            refuse_in_child(self._home, engine, instead)

    def go(self, loop: BlockLoop, shutdown: Shutdown, tally: Tally, *, until_idle: bool) -> None:
        """Do a run, to its end."""
        governor, began, before = self._regulation.governor, self._clock(), tally.stats()
        try:
            with self._lock:
                self._home, self._failure = current.number, None
                self._running[id(loop)] = loop
            if governor is not None:
                governor.begin_run(loop.receiving)
            _log.info(
                "a run begins: from %r, %s", loop.receiver, "until it is empty" if until_idle else "until stopped"
            )
            loop.run(shutdown, until_idle=until_idle)
        except Exception as error:
            with self._lock:
                self._failure = f"the last run ended with {type(error).__name__}: {error}"
            _log.warning(
                "a run failed, from %r, and nothing of its last block is committed: %s: %s",
                loop.receiver,
                type(error).__name__,
                error,
            )
            raise
        finally:
            with self._lock:
                self._running.pop(id(loop), None)
            if governor is not None:
                governor.end_run(loop.receiving)
            after, seconds = tally.stats(), self._clock() - began
            _log.info(
                "a run has ended after %.1f s and %d blocks; received meanwhile: %d, processed: %d, dead-lettered: %d",
                seconds,
                loop.blocks,
                after.received - before.received,
                after.processed - before.processed,
                after.dead_lettered - before.dead_lettered,
            )

    def health(self) -> Health:
        """Whether they go on."""
        with self._lock:
            loops, failure = list(self._running.values()), self._failure
        if failure is not None:
            return Health(False, failure)
        now = self._clock()
        for loop in loops:
            if (why := _why_ill(loop.receiver)) is not None:
                return Health(False, why)
            if (since := loop.block_since) is not None and now - since > _MAX_BLOCK_SECONDS:
                return Health(False, f"a block from {loop.receiver!r} is in progress for {now - since:.0f} s")
        if (held := self._regulation.held_seconds) > _MAX_HOLD_SECONDS:
            return Health(False, f"receiving is held for {held:.0f} s: memory is short")
        return Health(True, f"{len(loops) or 'no'} {'runs' if len(loops) > 1 else 'run'} on the way")


def _why_ill(receiver: Receiver) -> str | None:
    try:
        return None if receiver.healthy else f"the receiver {receiver!r} is not healthy"
    except Exception as error:  # noqa: BLE001  a health check answers
        return f"the receiver {receiver!r} cannot say whether it is healthy: {type(error).__name__}: {error}"
