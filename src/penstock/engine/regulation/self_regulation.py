"""Self-regulation: what an engine is told about it, and what it has of it while it runs."""

from __future__ import annotations

import ctypes
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum

import pyarrow as pa

from penstock.core import as_word
from penstock.engine.regulation.budget import ByteBudget, ByteBudgetConfig
from penstock.engine.regulation.gate import Actuator, InboundGate
from penstock.engine.regulation.guard import MemoryGuard
from penstock.engine.regulation.pressure import Hysteresis, PressureSource, UnifiedPressure
from penstock.errors import InvalidInput

_KIB, _MIB = 1 << 10, 1 << 20
_RANGE = 16  # between the least and the most: a hold must be able to make blocks smaller
_COPIES = 32  # a block is held several times over: fetched, decoded, joined, processed, encoded; the next is fetched
_LEASED_COPIES = 8  # where leases alone count, they count once or twice; but there must be room for more than one
_RECORD_BYTES = 4096  # of memory for each record of a block: an object takes hundreds, and some make several of it


class Profile(StrEnum):
    """What a block is made for: many bytes a second, or few seconds."""

    THROUGHPUT = "throughput"
    BALANCED = "balanced"
    LOW_LATENCY = "low_latency"


_PROFILES = {
    Profile.THROUGHPUT: ByteBudgetConfig(
        start_bytes=16 * _MIB,
        max_bytes=128 * _MIB,
        ai_step=4 * _MIB,
        floor_bytes=1 * _MIB,
        target_block_seconds=2.0,
        record_cap=1_000_000,
    ),
    Profile.BALANCED: ByteBudgetConfig(
        start_bytes=8 * _MIB,
        max_bytes=64 * _MIB,
        ai_step=2 * _MIB,
        floor_bytes=512 * _KIB,
        target_block_seconds=1.0,
        record_cap=500_000,
    ),
    Profile.LOW_LATENCY: ByteBudgetConfig(
        start_bytes=1 * _MIB,
        max_bytes=16 * _MIB,
        ai_step=512 * _KIB,
        floor_bytes=64 * _KIB,
        target_block_seconds=0.2,
        record_cap=100_000,
    ),
}


@dataclass(frozen=True)
class SelfRegulation:
    """How an engine regulates itself. It has no state of its own, and engines may share it.

    `profile` is `throughput`, `balanced` or `low_latency`. `guard` is the memory guard to use, where it is not to be
    the engine's own; `sources` are pressures beside it; `budget` stands in for the profile's numbers.

    Raises `InvalidInput` for a profile that there is not, and for what is no guard, hysteresis or budget.
    """

    profile: str = Profile.THROUGHPUT.value
    _: KW_ONLY
    guard: MemoryGuard | None = None
    sources: tuple[PressureSource, ...] = ()
    hysteresis: Hysteresis = Hysteresis()  # noqa: RUF009 -- it is frozen
    budget: ByteBudgetConfig | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "profile", as_word("profile", Profile, self.profile).value)
        object.__setattr__(self, "sources", _checked_sources(self.sources))
        _check("guard", self.guard, MemoryGuard, optional=True)
        _check("hysteresis", self.hysteresis, Hysteresis)
        _check("budget", self.budget, ByteBudgetConfig, optional=True)

    def config_for(self, guard: MemoryGuard) -> ByteBudgetConfig:
        """The budget's numbers: `budget` as given, or the profile's, as far as the guard's limit has room for them."""
        if self.budget is not None:
            return self.budget
        config = _PROFILES[Profile(self.profile)]
        copies = _LEASED_COPIES if guard.counts_leases_only else _COPIES
        most = max(1, min(config.max_bytes, guard.limit_bytes // copies))
        records = config.record_cap if guard.counts_leases_only else guard.limit_bytes // _RECORD_BYTES
        return replace(
            config,
            max_bytes=most,
            start_bytes=min(config.start_bytes, most),
            floor_bytes=max(1, min(config.floor_bytes, most // _RANGE)),
            record_cap=max(1, min(config.record_cap, records)),
        )


class Governor:
    """What one engine has of a `SelfRegulation` while it runs: the pressure, the budget, and gates on them."""

    def __init__(self, regulation: SelfRegulation, guard: MemoryGuard) -> None:
        self.guard = guard
        self.pressure = UnifiedPressure((guard, *regulation.sources), regulation.hysteresis)
        self.budget = ByteBudget(regulation.config_for(guard), self.pressure)

    def gate_for(self, actuator: Actuator | None) -> InboundGate:
        """A gate that tells this actuator, if any."""
        return InboundGate(self.pressure, actuator)


def give_memory_back() -> None:
    """Make the allocators return what they hold unused: freed memory that they keep looks like pressure."""
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # only glibc has it


def _checked_sources(sources: object) -> tuple[PressureSource, ...]:
    if not isinstance(sources, list | tuple):
        raise InvalidInput(f"sources must be a list of pressure sources, not {type(sources).__name__}")
    for source in sources:
        missing = [name for name in ("name", "weight", "hard", "read") if not hasattr(source, name)]
        if missing:
            raise InvalidInput(f"a pressure source has name, weight, hard and read(); {source!r} has no {missing[0]}")
    return tuple(sources)


def _check(field: str, value: object, kind: type, *, optional: bool = False) -> None:
    if not isinstance(value, kind) and not (optional and value is None):
        raise InvalidInput(f"{field} must be a {kind.__name__}, not {value!r}")
