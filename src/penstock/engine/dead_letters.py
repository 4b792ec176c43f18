"""What cannot be processed, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.engine.delivery import Delivery
from penstock.errors import InvalidInput
from penstock.records import Record


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that cannot be processed, and why. `stage` is where that was found: recv, parse or process.

    Raises `InvalidInput` for a field of another type.

    >>> DeadLetter(b"{", "parse error: it ends too early").stage
    'process'
    """

    payload: bytes
    reason: str
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] | None = None
    stage: str = "process"
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        checked = Record(self.payload, self.key, self.headers, self.timestamp_ms)
        object.__setattr__(self, "payload", checked.value)
        object.__setattr__(self, "key", checked.key)
        object.__setattr__(self, "headers", checked.headers)
        for field in ("reason", "stage"):
            if not isinstance(getattr(self, field), str):
                kind = type(getattr(self, field)).__name__
                raise InvalidInput(f"a dead letter's {field} must be a str, not {kind}")
            # A lone surrogate has no UTF-8, and would fail the table that the letter goes to, each time anew.
            text = getattr(self, field).encode("utf-8", "backslashreplace").decode()
            object.__setattr__(self, field, text)

    @classmethod
    def of(cls, record: Record, reason: str, stage: str = "process") -> DeadLetter:
        """A dead letter with the value, key, headers and timestamp of a record."""
        return cls(record.value, reason, record.key, record.headers, stage, record.timestamp_ms)


Route = Callable[[list[DeadLetter]], Delivery]


@dataclass(frozen=True, slots=True)
class DlqPolicy:
    """What the engine does with dead letters: `reject()`, `route(fn)` or `discard()`."""

    name: str
    send: Route | None = None

    def __post_init__(self) -> None:
        if self.name not in ("reject", "route", "discard") or (self.name == "route") != callable(self.send):
            raise InvalidInput("a policy is one of DlqPolicy.reject(), .route(fn) or .discard()")

    @classmethod
    def reject(cls) -> DlqPolicy:
        """Any dead letter is a `DeadLettersUnrouted` error, and nothing of its block is committed."""
        return cls("reject")

    @classmethod
    def route(cls, fn: Route) -> DlqPolicy:
        """Dead letters go to `fn(letters)`, which returns when they are durable, or returns what a sink may return.

        If it raises, or a write that it returned fails, nothing is committed.
        """
        if not callable(fn):
            raise InvalidInput(f"a route for dead letters is a function of a list of them, not {type(fn).__name__}")
        return cls("route", fn)

    @classmethod
    def discard(cls) -> DlqPolicy:
        """Dead letters are dropped, and counted."""
        return cls("discard")
