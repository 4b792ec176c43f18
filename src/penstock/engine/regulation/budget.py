"""How many bytes the next block may have: additive increase, multiplicative decrease, on the time a block takes.

And `SelfRegulation`, by which a user configures that and the pressure.
"""

from __future__ import annotations

import math
import threading
import weakref
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum

from penstock import metrics
from penstock.core import as_word, check_config, check_seconds, check_whole, open_in_child
from penstock.engine.regulation.guard import MemoryGuard
from penstock.engine.regulation.pressure import Holds, Hysteresis, PressureSource, UnifiedPressure
from penstock.errors import InvalidInput

_KIB, _MIB = 1 << 10, 1 << 20
_MAX_INT64 = 2**63 - 1  # the largest count of Arrow and RocksDB
_SLACK_BELOW = 0.7
_MAX_LOAD = 1e6  # of one block, in targets
_MAX_OVER_FLOOR = 16  # the budget's range: a hold must be able to make blocks smaller
# The memory limit over the largest budget. A block is in memory several times: fetched, decoded, joined, processed,
# encoded, while the next is fetched. Leases count it once or twice, and several blocks must fit.
_LIMIT_OVER_BUDGET = 32
_LIMIT_OVER_BUDGET_BY_LEASES = 8
_MEMORY_BYTES_PER_RECORD = 4096  # a Python object takes hundreds, and a process function may make several of it


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class ByteBudgetConfig:
    """How a budget moves. The defaults are those of the `throughput` profile.

    Raises `InvalidInput` for numbers out of range: byte counts, the step and the record cap are whole numbers from 1
    on, with `floor_bytes <= start_bytes <= max_bytes`; `md_factor` is between 0 and 1, `ema_alpha` above 0, at most 1.
    """

    start_bytes: int = 16 * _MIB
    max_bytes: int = 128 * _MIB
    floor_bytes: int = _MIB
    ai_step: int = 4 * _MIB
    md_factor: float = 0.5
    target_block_seconds: float = 2.0
    ema_alpha: float = 0.3
    record_cap: int = 1_000_000

    def __post_init__(self) -> None:
        for field in ("start_bytes", "max_bytes", "floor_bytes", "ai_step", "record_cap"):
            check_whole(field, getattr(self, field), most=_MAX_INT64)
        if not self.floor_bytes <= self.start_bytes:
            raise InvalidInput(f"floor_bytes must be at most start_bytes, {self.start_bytes}, not {self.floor_bytes}")
        if not self.start_bytes <= self.max_bytes:
            raise InvalidInput(f"start_bytes must be at most max_bytes, {self.max_bytes}, not {self.start_bytes}")
        if not _is_number(self.md_factor) or not 0 < self.md_factor < 1:
            raise InvalidInput(f"md_factor must be a number between 0 and 1, not {self.md_factor!r}")
        check_seconds("target_block_seconds", self.target_block_seconds)
        if not _is_number(self.ema_alpha) or not 0 < self.ema_alpha <= 1:
            raise InvalidInput(f"ema_alpha must be a number above 0 and at most 1, not {self.ema_alpha!r}")


class ByteBudget:
    """The budget of one engine. It is always from `floor_bytes` to `max_bytes`.

    It follows the time that a block takes, not utilisation (process time over the time between arrivals): while a
    backlog is drained that is always about 1, and the budget would fall to its floor just when throughput is needed.

    Raises `InvalidInput` for a `config` of another type. Safe to read from several threads.
    """

    def __init__(self, config: ByteBudgetConfig = ByteBudgetConfig(), pressure: Holds | None = None) -> None:  # noqa: B008 -- it is frozen
        check_config(config, ByteBudgetConfig)
        self._config = config
        self._pressure = pressure
        self._lock = open_in_child(threading.Lock())
        self._load: float | None = None  # the moving average of a block's time, in targets
        self._utilisation = 0.0
        self._is_held = False
        self._set(config.start_bytes)

    @property
    def byte_budget(self) -> int:
        """How many bytes the next block may have."""
        return self._budget

    @property
    def floor_bytes(self) -> int:
        """How many bytes it never goes below."""
        return self._config.floor_bytes

    @property
    def record_cap(self) -> int:
        """How many records the next block may have."""
        return self._config.record_cap

    @property
    def utilisation(self) -> float:
        """The process time of the last block over its interval, for information; 0 if that is not known."""
        return self._utilisation

    def observe(self, block_bytes: int, process_time: float, interval: float) -> None:
        """Count a block that took `process_time`, `interval` seconds after the one before; 0 bytes: nothing received.

        Under a hold the budget is multiplied down, whatever the times are. A negative time or NaN counts as 0.
        """
        holds = self._pressure is not None and self._pressure.should_hold()
        with self._lock:
            if block_bytes > 0:
                target, alpha, load = self._config.target_block_seconds, self._config.ema_alpha, 0.0
                # By comparison, and not by arithmetic: NaN is not above 0, and infinity must not stay in the average.
                if process_time > 0:
                    load = process_time / target if process_time < _MAX_LOAD * target else _MAX_LOAD
                self._load = load if self._load is None else alpha * load + (1 - alpha) * self._load
                utilisation = load * target / interval if interval > 0 else 0.0
                self._utilisation = utilisation if math.isfinite(utilisation) else 0.0
            self._is_held = holds
            if holds:
                self._decrease()
            elif block_bytes <= 0:
                self._increase()
            elif self._load is not None and self._load > 1:
                self._decrease()
            elif self._load is not None and self._load < _SLACK_BELOW:
                self._increase()

    def hold(self) -> None:
        """Multiply down: a hold has begun. It does nothing if an observation has done so for this hold."""
        with self._lock:
            if not self._is_held:
                self._is_held = True
                self._decrease()

    def _increase(self) -> None:
        self._set(self._budget + self._config.ai_step)

    def _decrease(self) -> None:
        self._set(int(self._budget * self._config.md_factor))

    def _set(self, budget: int) -> None:
        self._budget = max(self._config.floor_bytes, min(budget, self._config.max_bytes))
        metrics.byte_budget.set(self._budget)


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
        self._lock = open_in_child(threading.Lock())
        # Weak: an interrupt may come before the line that removes one.
        self._holds = weakref.WeakKeyDictionary[object, float]()  # when the hold of each began
        self._runs = weakref.WeakSet[object]()

    @property
    def byte_budget(self) -> int:
        """How many bytes the next block of a run may have: runs at the same time share the budget."""
        return max(self.budget.byte_budget // max(len(self._runs), 1), self.budget.floor_bytes)

    @property
    def held_since(self) -> float | None:
        """When the longest of the holds began; None if there is none."""
        with self._lock:
            return min(self._holds.values(), default=None)

    def begin_run(self, run: object) -> None:
        """Count a run."""
        with self._lock:
            self._runs.add(run)

    def end_run(self, run: object) -> None:
        """Count it no more."""
        with self._lock:
            self._runs.discard(run)

    def note_hold(self, held: object, since: float | None) -> None:
        """Note that something is held since then, or, with None, that it is not any more."""
        with self._lock:
            if since is None:
                self._holds.pop(held, None)
            else:
                self._holds[held] = since


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
