"""The inbound side of a run: whether the next block may come, and how large it may be."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core import get_logger
from penstock.engine.regulation.gate import Admit, InboundGate
from penstock.engine.regulation.self_regulation import Governor, give_memory_back
from penstock.engine.transports.contract import Receiver, call_if_there
from penstock.engine.work_batch import WorkBatch

LONGEST_HOLD = 30.0  # seconds until a block is admitted in spite of the pressure
_TIDY_EVERY = 1.0

_log = get_logger(__name__)


class Inbound:
    """The inbound side of a run: whether the next block may come, and how large. Without a governor, always and any."""

    def __init__(self, receiver: Receiver, governor: Governor | None, clock: Callable[[], float]) -> None:
        self._receiver = receiver
        self._governor = governor
        self._clock = clock
        self._gate: InboundGate | None = None if governor is None else governor.gate_for(self)
        self._held_since: float | None = None
        self._tidied = 0.0
        self._last_block = clock()
        self.byte_budget: int | None = None
        self.record_cap = 1 << 62

    def is_admitted(self) -> bool:
        """Whether to receive now; what the next block may have is in `byte_budget` and `record_cap` then.

        What a receiver has in memory is on the way out, and is not held.
        """
        if self._gate is None or self._governor is None:
            return True
        admitted = self._gate.evaluate()
        budget = self._governor.budget
        self.byte_budget, self.record_cap = budget.byte_budget, budget.record_cap
        now = self._clock()
        if admitted is Admit.YES:
            self._held_since = None
            return True
        if self._held_since is None:
            self._held_since = self._tidied = now
        if now - self._tidied >= _TIDY_EVERY:
            self._tidied = now
            give_memory_back()
        if getattr(self._receiver, "in_hand", False) is True:
            return True
        if now - self._held_since >= LONGEST_HOLD:
            _log.warning(
                "no relief for %.0f s at a pressure of %.2f: one block of the smallest size is admitted",
                now - self._held_since,
                self._governor.pressure.last_level,
            )
            self._held_since = now
            self.byte_budget = budget.floor_bytes
            return True
        return False

    def note(self, block: WorkBatch, seconds: float) -> None:
        """Note a block that is done, and how long it took."""
        now = self._clock()
        if self._governor is not None:
            self._governor.budget.observe(max(block.total_bytes, 1), seconds, now - self._last_block)
        self._last_block = now

    def note_idle(self, seconds: float) -> None:
        """Note a receive that brought nothing."""
        if self._governor is not None:
            self._governor.budget.observe(0, 0.0, seconds)

    def close(self) -> None:
        """Open the gate: whoever runs next begins anew."""
        if self._gate is not None:
            self._gate.release()

    def pause(self) -> None:
        """Hold: called by the gate at the edge."""
        call_if_there(self._receiver, "pause")
        if self._governor is not None:
            self._governor.budget.hold()
        give_memory_back()

    def resume(self) -> None:
        """Go on: called by the gate at the edge."""
        call_if_there(self._receiver, "resume")
