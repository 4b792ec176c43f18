"""What the engine asks of a receiver, and the filters that receivers take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from penstock.core import check_seconds, check_whole
from penstock.engine.dead_letters import DeadLetter
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput
from penstock.records import Record

MOST_BYTES = 1 << 30  # in one block that is put into columns: a column holds 2 GiB


class Receiver(Protocol):
    """Where blocks come from.

    One that is to be run again after a failure needs a `rewind()` too, or it would go on behind the failed block.
    Some have more, and the engine uses it: `rewind()` makes everything received and not committed come again;
    `pause()` and `resume()` stop and allow work ahead of `recv`; `in_hand` says whether `recv` has something in memory
    to hand out; `use_guard(guard)` tells where to lease what is held, `let_go()` that the last block is worked off.
    """

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Receive some records, with the tokens that ack them; nothing at all when the timeout has passed.

        With `max_bytes` it stops before passing so many bytes of payload, but hands out at least one record.
        """
        ...

    def commit(self, tokens: Sequence[Any]) -> None:
        """Ack the input that these tokens stand for."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether it is open, and worked when it was used last."""
        ...


class Sender(Protocol):
    """Where records go."""

    def send(self, records: WorkBatch | Iterable[Record]) -> None:
        """Send records, or those of a batch, and return when they are safe."""
        ...


@dataclass(frozen=True, slots=True)
class Keep:
    """What a filter says of a record that goes on."""


@dataclass(frozen=True, slots=True)
class Drop:
    """What a filter says of a record that is not wanted: it is counted, and acked with its block."""


Verdict: TypeAlias = Keep | Drop | DeadLetter | type[Keep] | type[Drop]
Filter: TypeAlias = Callable[[Record], Verdict]


class Filters:
    """The filters of a receiver, in their order. The first that does not say Keep decides."""

    def __init__(self, filters: Iterable[Filter]) -> None:
        if not isinstance(filters, Iterable):
            raise InvalidInput(f"filters must be a list of functions, not {type(filters).__name__}")
        self._filters = tuple(filters)
        for one in self._filters:
            if not callable(one):
                raise InvalidInput(f"a filter is a function of a record, not {type(one).__name__}")

    def apply(self, batch: WorkBatch) -> WorkBatch:
        """Take out what is dropped or dead, and keep the tokens. Without filters no record is looked at."""
        if not self._filters:
            return batch
        kept, letters, dropped = list[Record](), list(batch.dead_letters), 0
        for record in batch.records:
            verdict = self._judge(record)
            if isinstance(verdict, DeadLetter):
                letters.append(verdict)
            elif verdict is Drop:
                dropped += 1
            else:
                kept.append(record)
        if len(kept) == len(batch) and not letters:
            return batch
        return WorkBatch(kept, batch.commit_tokens, letters, filtered=batch.filtered + dropped)

    def _judge(self, record: Record) -> DeadLetter | type[Keep] | type[Drop]:
        for one in self._filters:
            verdict = one(record)
            if isinstance(verdict, DeadLetter):
                return verdict
            if verdict is Drop or isinstance(verdict, Drop):
                return Drop
            if verdict is not Keep and not isinstance(verdict, Keep):
                raise InvalidInput(f"a filter must return Keep, Drop or a DeadLetter, not {verdict!r:.100}")
        return Keep


def check_limits(max_records: int, max_bytes: int | None, timeout: float) -> None:
    """Refuse what cannot limit a receive."""
    check_whole("max_records", max_records)
    if max_bytes is not None:
        check_whole("max_bytes", max_bytes, 0)
    check_seconds("timeout", timeout, zero=True)


def call_if_there(receiver: Receiver, name: str, *args: object) -> None:
    """Call one of the methods that only some receivers have."""
    method = getattr(receiver, name, None)
    if callable(method):
        method(*args)
