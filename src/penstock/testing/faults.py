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
    """A way in which a store fails its caller."""

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
    THIRD_PARTY_BEFORE = "third_party_before"
    """Another write comes right before a conditional write, which loses by it."""
    THIRD_PARTY_AFTER = "third_party_after"
    """Another write comes after a conditional write that failed, and before the caller's re-read."""
    LATE = "late"
    """A write fails as unknown, and takes effect some calls later, if its condition still holds then."""
    DELAY = "delay"
    """A call takes its time."""
    TIME_JUMP = "time_jump"
    """The store's clock jumps, for what is written from then on."""


_READS = frozenset({"get", "head", "list_objects"})
_CONDITIONAL = frozenset({"put_if_absent", "put_if_match"})
_PUTS = _CONDITIONAL | {"put"}
_ALL = _READS | _PUTS | {"delete"}

MEETS: Mapping[Fault, frozenset[str]] = MappingProxyType(
    {
        Fault.READ_ERROR: _READS,
        Fault.ERROR_BEFORE: _PUTS | {"delete"},
        Fault.ERROR_AFTER: _PUTS | {"delete"},
        Fault.APPLIED_THEN_CONFLICT: _CONDITIONAL,
        Fault.EXISTS_WHILE_ABSENT: frozenset({"put_if_absent"}),
        Fault.THIRD_PARTY_BEFORE: _CONDITIONAL,
        Fault.THIRD_PARTY_AFTER: _CONDITIONAL,
        Fault.LATE: _PUTS,
        Fault.DELAY: _ALL,
        Fault.TIME_JUMP: _ALL,
    }
)
"""Which operations can meet which fault."""

DEFAULT_RATES: Mapping[Fault, float] = MappingProxyType(dict.fromkeys(Fault, 0.05))
"""How often each fault comes where it can come, by default."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault that was asked for: it comes at the next call that fits."""

    fault: Fault
    operation: str | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        can = MEETS[self.fault]
        if self.operation is not None and self.operation not in can:
            raise InvalidInput(f"operation {self.operation!r} cannot meet {self.fault}; these can: {sorted(can)}")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fault that a call is to meet: by chance, or because it was asked for."""

    fault: Fault
    planned: Planned | None


def _is_chance(rate: object) -> bool:
    return isinstance(rate, int | float) and 0 <= rate <= 1


class Dice:
    """Decides, from a seed and from what was asked for, which faults a call meets; and counts those that came."""

    def __init__(self, seed: int, rates: Mapping[Fault, float]) -> None:
        for name, rate in rates.items():
            if name not in set(Fault) or not _is_chance(rate):
                raise InvalidInput(f"rates[{name!r}] must be a fault's chance from 0 to 1, not {rate!r}")
        self.random = random.Random(seed)
        self.met: Counter[Fault] = Counter()
        self.planned: list[Planned] = []
        self._rates = {Fault(name): rate for name, rate in rates.items()}

    def draw(self, operation: str, path: str, *faults: Fault) -> Drawn | None:
        """Say which of some faults, that exclude each other, a call is to meet: one asked for, or one by chance."""
        can = [fault for fault in faults if operation in MEETS[fault]]
        for planned in self.planned:
            fits = planned.operation in {None, operation} and planned.path in {None, path}
            if planned.fault in can and fits:
                self.planned.remove(planned)
                return Drawn(planned.fault, planned)
        for fault in self.random.sample(can, len(can)):
            if self.random.random() < self._rates.get(fault, 0.0):
                return Drawn(fault, None)
        return None

    def came(self, drawn: Drawn) -> None:
        """Count a fault that came."""
        self.met[drawn.fault] += 1

    def did_not_come(self, drawn: Drawn) -> None:
        """Keep a fault that was asked for and had no occasion after all, for the next call that fits."""
        if drawn.planned:
            self.planned.insert(0, drawn.planned)
