"""What can go wrong between a caller and its store, by name; and which of it goes wrong next."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from penstock.errors import InvalidInput


class Fault(StrEnum):
    """A way in which a store fails its caller. The reads and writes each applies to are in `FaultyStore`."""

    READ_ERROR = "read_error"
    """A read, a look or a listing fails; a listing perhaps in the middle."""
    ERROR_BEFORE = "error_before"
    """A write fails before it took effect."""
    ERROR_AFTER = "error_after"
    """A write takes effect, and its reply is lost."""
    APPLIED_THEN_CONFLICT = "applied_then_conflict"
    """A conditional write takes effect, is tried again on the way, and reports its own success as a conflict."""
    EXISTS_WHILE_ABSENT = "exists_while_absent"
    """`put_if_absent` reports `AlreadyExists` although nothing is there."""
    THIRD_PARTY = "third_party"
    """Somebody else's write comes before a conditional write, or after a failed one and before the re-read."""
    LATE = "late"
    """A write fails as unknown, and takes effect some calls later, if its condition still holds then."""
    DELAY = "delay"
    """A call takes its time."""
    TIME_JUMP = "time_jump"
    """The store's clock jumps, for what is written from then on."""


DEFAULT_RATES: Mapping[Fault, float] = MappingProxyType(dict.fromkeys(Fault, 0.05))
"""How often each fault comes where it can come, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault that was asked for: it comes at the next call that fits."""

    fault: Fault
    operation: str | None
    path: str | None


class Dice:
    """Decides, from a seed and from what was asked for, which faults a call meets."""

    def __init__(self, seed: int, rates: Mapping[Fault, float]) -> None:
        for fault, rate in rates.items():
            if fault not in set(Fault) or not 0 <= rate <= 1:
                raise InvalidInput(f"rates[{fault!r}] must be a fault's chance from 0 to 1, not {rate!r}")
        self.random = random.Random(seed)
        self.met: Counter[Fault] = Counter()
        self.planned: list[Planned] = []
        self._rates = {Fault(fault): rate for fault, rate in rates.items()}

    def meets(self, fault: Fault, operation: str, path: str) -> bool:
        """Say whether a call meets a fault, and count it."""
        met = self._was_planned(fault, operation, path) or self.random.random() < self._rates.get(fault, 0.0)
        self.met[fault] += met
        return met

    def first_met(self, faults: tuple[Fault, ...], operation: str, path: str) -> Fault | None:
        """Say which of several faults that exclude each other a call meets, none preferred."""
        for fault in faults:
            if self._was_planned(fault, operation, path):
                self.met[fault] += 1
                return fault
        shuffled = self.random.sample(faults, len(faults))
        return next((fault for fault in shuffled if self.meets(fault, operation, path)), None)

    def _was_planned(self, fault: Fault, operation: str, path: str) -> bool:
        for planned in self.planned:
            if planned.fault is fault and planned.operation in {None, operation} and planned.path in {None, path}:
                self.planned.remove(planned)
                return True
        return False
