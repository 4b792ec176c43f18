"""Self-regulation: how a user configures it, and the pressure and budget that come of that."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum

from penstock.core import as_word
from penstock.engine.regulation.budget import ByteBudget, ByteBudgetConfig
from penstock.engine.regulation.guard import MemoryGuard
from penstock.engine.regulation.pressure import Hysteresis, PressureSource, UnifiedPressure
from penstock.errors import InvalidInput

_KIB, _MIB = 1 << 10, 1 << 20
_MAX_OVER_FLOOR = 16  # the budget's range: a hold must be able to make blocks smaller
# The memory limit over the largest budget. A block is in memory several times: fetched, decoded, joined, processed,
# encoded, while the next is fetched. Leases count it once or twice, and several blocks must fit.
_LIMIT_OVER_BUDGET = 32
_LIMIT_OVER_BUDGET_BY_LEASES = 8
_MEMORY_BYTES_PER_RECORD = 4096  # a Python object takes hundreds, and a process function may make several of it


class Profile(StrEnum):
    """What blocks are tuned for: many bytes a second, or few seconds each."""

    THROUGHPUT = "throughput"
    BALANCED = "balanced"
    LOW_LATENCY = "low_latency"


_PROFILES = {  # bytes to start with, at most, at least and to add; factor, seconds, weight of the last block, records
    Profile.THROUGHPUT: ByteBudgetConfig(),
    Profile.BALANCED: ByteBudgetConfig(8 * _MIB, 64 * _MIB, 512 * _KIB, 2 * _MIB, 0.5, 1.0, 0.3, 500_000),
    Profile.LOW_LATENCY: ByteBudgetConfig(1 * _MIB, 16 * _MIB, 64 * _KIB, 512 * _KIB, 0.5, 0.2, 0.3, 100_000),
}


@dataclass(frozen=True)
class SelfRegulation:
    """How an engine regulates itself. It has no state of its own, and engines may share it.

    `profile` is `throughput`, `balanced` or `low_latency`. `guard` is the memory guard to use instead of the engine's
    own; `sources` are further sources of pressure; `budget` replaces the profile's numbers.

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
        """The budget's numbers: `budget` as given, or the profile's, lowered to fit into the guard's limit."""
        if self.budget is not None:
            return self.budget
        config = _PROFILES[Profile(self.profile)]
        share = _LIMIT_OVER_BUDGET_BY_LEASES if guard.counts_leases_only else _LIMIT_OVER_BUDGET
        most = max(1, min(config.max_bytes, guard.limit_bytes // share))
        records = config.record_cap if guard.counts_leases_only else guard.limit_bytes // _MEMORY_BYTES_PER_RECORD
        return replace(
            config,
            max_bytes=most,
            start_bytes=min(config.start_bytes, most),
            floor_bytes=max(1, min(config.floor_bytes, most // _MAX_OVER_FLOOR)),
            record_cap=max(1, min(config.record_cap, records)),
        )


class Governor:
    """The pressure and the budget of one engine or query. They outlive a run: the next begins where it ended."""

    def __init__(self, regulation: SelfRegulation, guard: MemoryGuard) -> None:
        self.pressure = UnifiedPressure((guard, *regulation.sources), regulation.hysteresis)
        self.budget = ByteBudget(regulation.config_for(guard), self.pressure)


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
