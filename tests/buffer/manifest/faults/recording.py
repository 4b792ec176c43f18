"""What really became of a manifest, and what each of its callers saw of it.

A `Ledger` lies below the faults and knows every write that took effect. A `Watch` lies above them, one for each
caller, and knows what that caller read, tried and got as answers. Where both meet, the truth decides.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from penstock.errors import NotFound, StorageError
from penstock.storage import Object, ObjectStore
from tests.support.minimal_stores import Answer, StoreCall, ThinStore


@dataclass(frozen=True, slots=True)
class State:
    """A manifest, read here from the bytes that the format promises, and not by the code under test."""

    epoch: int
    first: int
    locations: tuple[str, ...]

    @property
    def next(self) -> int:
        """The sequence to be given next."""
        return self.first + len(self.locations)

    def through(self, last: int | None) -> State:
        """What is left without the entries up to a sequence."""
        removed = 0 if last is None else min(max(last + 1 - self.first, 0), len(self.locations))
        return State(self.epoch, self.first + removed, self.locations[removed:])


NOTHING = State(0, 0, ())


@lru_cache(maxsize=1024)
def read_state(data: bytes) -> State:
    """Read the bytes of a manifest without metadata. Whatever is not as the format says fails the test."""
    if data[-4:] == b"PSTM":
        return _read_head(data)
    count, following, epoch, version = struct.unpack("<IQQH", data[-22:])
    assert version == 1
    at, locations = 0, []
    for sequence in range(following - count, following):
        length, found, size = struct.unpack_from("<IQH", data, at)
        assert (found, length) == (sequence, 8 + 2 + size + 4)
        locations.append(data[at + 14 : at + 14 + size].decode())
        at += 4 + length
    assert at == len(data) - 22
    return State(epoch, following - count, tuple(locations))


def _read_head(data: bytes) -> State:
    """Read the head of a manifest of version 2 that has no segments."""
    head = msgspec.msgpack.decode(data[:-14])
    assert not head["segments"]
    first = head["next_sequence"] - len(head["tail"])
    sequences = [entry[0] for entry in head["tail"]]
    assert sequences == list(range(first, head["next_sequence"]))
    return State(head["epoch"], first, tuple(entry[1] for entry in head["tail"]))


@dataclass(frozen=True, slots=True)
class Read:
    """A manifest was read; `version` is None where there was none."""

    version: str | None


@dataclass(frozen=True, slots=True)
class FailedRead:
    """A manifest could not be read."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A write of the manifest was tried on a version; `is_success` says whether its caller got a success."""

    base: str | None
    data: bytes
    is_success: bool

    @property
    def state(self) -> State:
        """What it would have made of the manifest."""
        return read_state(self.data)


Event = Read | FailedRead | Tried


class Ledger(ThinStore):
    """A store that keeps every write of one manifest that took effect, in order."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__(store)
        self._path = path
        self._places: dict[str | None, int] = {None: 0}
        self._effects: dict[tuple[str | None, bytes], int] = {}
        self.states: list[State] = [NOTHING]

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        answer = pass_on()
        if call.is_conditional() and call.path == self._path:
            assert isinstance(answer, str)
            self._places[answer] = self._effects[call.version, call.data] = len(self.states)
            self.states.append(read_state(call.data))
        return answer

    def place(self, version: str | None) -> int:
        """Which write made a version: 0 for no object at all."""
        return self._places[version]

    def state(self, version: str | None) -> State:
        """What the manifest was at a version."""
        return self.states[self._places[version]]

    def effect(self, tried: Tried) -> int | None:
        """Which write a try became, whatever answer its caller got; None if it had no effect."""
        return self._effects.get((tried.base, tried.data))

    def all_locations(self) -> list[str]:
        """Every location that was ever enqueued, by its sequence."""
        found: list[str] = []
        for state in self.states:
            found += state.locations[len(found) - state.first :] if state.next > len(found) else ()
        return found


class Watch(ThinStore):
    """One caller's store, which records its reads and writes. `events` are those of its call under way."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        super().__init__(store)
        self._url = url
        self.events: list[Event] = []

    @property
    def url(self) -> str:
        return self._url

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        has_succeeded = False
        try:
            answer = pass_on()
            has_succeeded = True
        except NotFound:
            self.events.append(Read(None))
            raise
        except StorageError:
            if call.operation == "get":
                self.events.append(FailedRead())
            raise
        finally:
            if call.is_conditional():
                self.events.append(Tried(call.version, call.data, has_succeeded))
        if isinstance(answer, Object):
            self.events.append(Read(answer.version))
        return answer
