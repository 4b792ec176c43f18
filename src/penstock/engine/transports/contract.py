"""The contract of receivers and senders, and the filters of receivers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from penstock.core import check_seconds, check_whole
from penstock.engine.dead_letters import DeadLetter
from penstock.engine.regulation.guard import MemoryGuard
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput
from penstock.records import Record

MAX_BLOCK_BYTES = 1 << 30  # of a block in columns: a column holds 2 GiB


class Receives(Protocol):
    """The least that `BatchEngine.run` takes for a receiver: `as_receiver` makes a `Receiver` of it."""

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """As in `Receiver`."""
        ...

    def commit(self, tokens: Sequence[Any]) -> None:
        """As in `Receiver`."""
        ...


class Receiver(ABC):
    """Where blocks come from. A subclass implements `recv` and `commit`; the other methods do nothing by default.

    One that is run again after a failure needs `rewind` too: without it, it would go on behind the failed block. A
    class that does not inherit from this one is accepted as well; the engine calls those of the methods that it has.
    """

    @abstractmethod
    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Receive some records, with the tokens that ack them; nothing at all when the timeout has passed.

        With `max_bytes` it stops before passing so many bytes of payload, but hands out at least one record.
        """

    @abstractmethod
    def commit(self, tokens: Sequence[Any]) -> None:
        """Ack the input that these tokens stand for."""

    @property
    def healthy(self) -> bool:
        """Whether it is open, and its last call succeeded."""
        return True

    @property
    def in_hand(self) -> bool:
        """Whether `recv` has records in memory to hand out. The engine receives these while it holds, too."""
        return False

    @property
    def exhausted(self) -> bool | None:
        """Whether the input has ended, which ends a run.

        None where it has no end, as here: then a run `until_idle` ends when nothing is received.
        """
        return None

    def use_guard(self, guard: MemoryGuard) -> None:  # noqa: B027  this and the next ones: not every receiver needs it
        """Lease the bytes that it holds in this guard, the engine's."""

    def release_block(self) -> None:  # noqa: B027
        """End the leases of the block received last: it is sunk and committed."""

    def end_run(self) -> None:  # noqa: B027
        """Release what was fetched ahead: the run that would receive it has ended."""

    def rewind(self) -> None:  # noqa: B027
        """Let everything that was received and not committed come again."""

    def pause(self) -> None:  # noqa: B027
        """Do no work ahead of `recv`: memory is short."""

    def resume(self) -> None:  # noqa: B027
        """Work ahead of `recv` again."""

    def close(self) -> None:  # noqa: B027
        """Release everything that it holds."""


def as_receiver(given: object) -> Receiver:
    """A `Receiver` as it is, and anything else that has `recv` and `commit` behind an adapter.

    Raises `InvalidInput` where one of the two is missing, and for a class.
    """
    if isinstance(given, Receiver):
        return given
    if isinstance(given, type):
        raise InvalidInput(f"a receiver must be an object, and {given.__name__} is a class: create one of it")
    for name in ("recv", "commit"):
        if not callable(getattr(given, name, None)):
            raise InvalidInput(f"a receiver has recv and commit, and {type(given).__name__} has no {name}")
    return _Adapter(given)


class _Adapter(Receiver):
    """A receiver that does not inherit from `Receiver`. A method that it does not have does nothing."""

    def __init__(self, given: Any) -> None:
        self._given = given
        for name in ("use_guard", "release_block", "end_run", "rewind", "pause", "resume"):
            if callable(method := getattr(given, name, None)):
                setattr(self, name, method)

    def __repr__(self) -> str:
        return repr(self._given)

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        batch: WorkBatch = self._given.recv(max_records, max_bytes=max_bytes, timeout=timeout)
        return batch

    def commit(self, tokens: Sequence[Any]) -> None:
        returned: None = self._given.commit(tokens)
        return returned  # of an async one, what the engine awaits

    @property
    def healthy(self) -> bool:
        return bool(getattr(self._given, "healthy", True))

    @property
    def in_hand(self) -> bool:
        return getattr(self._given, "in_hand", False) is True

    @property
    def exhausted(self) -> bool | None:
        given = getattr(self._given, "exhausted", None)
        return given if isinstance(given, bool) else None


class Sender(Protocol):
    """Where records go."""

    def send(self, records: WorkBatch | Iterable[Record]) -> None:
        """Send records, or those of a batch, and return when they are durable."""
        ...


@dataclass(frozen=True, slots=True)
class Keep:
    """A filter's verdict: the record is processed."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A filter's verdict: the record is dropped; it is counted, and acked with its block."""


Verdict: TypeAlias = Keep | Drop | DeadLetter | type[Keep] | type[Drop]
Filter: TypeAlias = Callable[[Record], Verdict]


def checked_filters(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    """The filters of a receiver, in their order. Raises `InvalidInput` for what are none."""
    if not isinstance(filters, Iterable):
        raise InvalidInput(f"filters must be a list of functions, not {type(filters).__name__}")
    checked = tuple(filters)
    for one in checked:
        if not callable(one):
            raise InvalidInput(f"a filter is a function of a record, not {type(one).__name__}")
    return checked


def filtered(batch: WorkBatch, filters: tuple[Filter, ...]) -> WorkBatch:
    """The batch without the records that filters drop or turn into dead letters; the tokens stay.

    The first verdict that is not Keep counts. An object is created for each record: call it only if there are filters.
    """
    kept, letters, dropped = list[Record](), list(batch.dead_letters), 0
    for record in batch.records:
        verdict = _verdict(record, filters)
        if isinstance(verdict, DeadLetter):
            letters.append(verdict)
        elif verdict is Drop:
            dropped += 1
        else:
            kept.append(record)
    if len(kept) == len(batch) and not letters:
        return batch
    return WorkBatch(kept, batch.commit_tokens, letters, filtered=batch.filtered + dropped)


def _verdict(record: Record, filters: tuple[Filter, ...]) -> DeadLetter | type[Keep] | type[Drop]:
    for one in filters:
        verdict = one(record)
        if isinstance(verdict, DeadLetter):
            return verdict
        if verdict is Drop or isinstance(verdict, Drop):
            return Drop
        if verdict is not Keep and not isinstance(verdict, Keep):
            raise InvalidInput(f"a filter must return Keep, Drop or a DeadLetter, not {verdict!r:.100}")
    return Keep


def check_limits(max_records: int, max_bytes: int | None, timeout: float) -> None:
    """Raise `InvalidInput` for limits of a receive that are none."""
    check_whole("max_records", max_records)
    if max_bytes is not None:
        check_whole("max_bytes", max_bytes, 0)
    check_seconds("timeout", timeout, zero=True)
