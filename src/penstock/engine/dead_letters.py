"""What cannot be processed, and where it goes."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from penstock.engine.delivery import Delivery
from penstock.errors import InvalidInput
from penstock.records import Record


@dataclass(frozen=True, slots=True)
class LetterId:
    """Which letter it is: the `index` of its record in the block `sequence` of the run `origin`, found at `stage`."""

    origin: str
    sequence: int
    index: int
    stage: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch is in a run: the block, and the index of its first record in that. Pieces share `dropped`.

    That of a batch that is no block of a run has no origin.
    """

    origin: str = ""
    sequence: int = 0
    first: int = 0
    routed: set[LetterId] = field(default_factory=set)
    dropped: set[LetterId] = field(default_factory=set)

    def identity(self, index: int, stage: str) -> LetterId:
        """That of a letter of the batch."""
        return LetterId(self.origin, self.sequence, self.first + index, stage)

    def behind(self, count: int) -> Place:
        """The place of what lies so many records behind."""
        return replace(self, first=self.first + count)

    def of_own_parser(self) -> Place:
        """That of letters which the user's own parser finds in the batch: other ones than those of the engine's."""
        return replace(self, origin=uuid.uuid4().hex)

    def drop(self, letter: object) -> bool:
        """Note that a letter is not to be routed; False if it was, with this block or with an earlier one."""
        identity: object = getattr(letter, "identity", None)
        if not isinstance(identity, LetterId):
            what = "letter that is new" if type(letter) is DeadLetter else type(letter).__name__
            raise InvalidInput(f"drop_letter takes a dead letter of the block, not a {what}: leave it out instead")
        if not self.origin:
            raise InvalidInput("this batch is no block of a run: call drop_letter of the one that process was given")
        is_of_another_block = identity.origin == self.origin and identity.sequence != self.sequence
        if is_of_another_block or identity in self.routed:
            return False
        self.dropped.add(identity)
        return True

    def to_route(self, known: Sequence[DeadLetter], returned: Sequence[DeadLetter]) -> list[DeadLetter]:
        """The letters to route, each once: the engine's own, as `process` returned them, and its new ones.

        `known` are those of the block that the engine has found. What `process` returned of one of these, changed, is
        routed instead of it; the last of several. A letter without an identity is new, and the same object is one
        letter. One with the identity of an earlier piece or block of this run was routed there, or dropped.
        """
        chosen: dict[LetterId | int, DeadLetter] = {letter.identity or id(letter): letter for letter in known}
        originals = dict(chosen)
        for letter in returned:
            key = letter.identity or id(letter)
            if letter.identity is not None and letter.identity.origin == self.origin and key not in originals:
                continue
            if key not in originals or letter != originals[key]:
                chosen[key] = letter
        gone = self.routed | self.dropped
        return [letter for key, letter in chosen.items() if key not in gone]

    def note_routed(self, letters: Sequence[DeadLetter]) -> None:
        """Note that these are with their route."""
        self.routed.update(letter.identity for letter in letters if letter.identity is not None)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that cannot be processed, and why. `stage` is where that was found: recv, parse or process.

    `identity` is the engine's, by which each letter is routed once. It survives `copy`, `pickle` and
    `dataclasses.replace`, and is no part of a letter's equality. A letter that `process` creates has none.

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
    _: KW_ONLY
    identity: LetterId | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        checked = Record(self.payload, self.key, self.headers, self.timestamp_ms)
        object.__setattr__(self, "payload", checked.value)
        object.__setattr__(self, "key", checked.key)
        object.__setattr__(self, "headers", checked.headers)
        for name in ("reason", "stage"):
            if not isinstance(getattr(self, name), str):
                kind = type(getattr(self, name)).__name__
                raise InvalidInput(f"a dead letter's {name} must be a str, not {kind}")
            # A lone surrogate has no UTF-8, and would fail the table that the letter goes to, each time anew.
            text = getattr(self, name).encode("utf-8", "backslashreplace").decode()
            object.__setattr__(self, name, text)

        if self.identity is not None and not isinstance(self.identity, LetterId):
            raise InvalidInput(f"a dead letter's identity is the engine's to give, not {self.identity!r:.100}")

    @classmethod
    def of(cls, record: Record, reason: str, stage: str = "process", *, identity: LetterId | None = None) -> DeadLetter:
        """A dead letter with the value, key, headers and timestamp of a record."""
        return cls(record.value, reason, record.key, record.headers, stage, record.timestamp_ms, identity=identity)


Route = Callable[[list[DeadLetter]], Delivery | Awaitable[Any]]


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
        """Dead letters go to `fn(letters)`, plain or async, which returns when they are durable, or what a sink may.

        If it raises, or a write that it returned fails, nothing is committed.
        """
        if not callable(fn):
            raise InvalidInput(f"a route for dead letters is a function of a list of them, not {type(fn).__name__}")
        return cls("route", fn)

    @classmethod
    def discard(cls) -> DlqPolicy:
        """Dead letters are dropped, and counted."""
        return cls("discard")
