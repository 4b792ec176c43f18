"""`VersionedObject.update`: the one loop that replaces an object by compare-and-set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from penstock.buffer.manifest.cas import Change, Versioned, VersionedObject
from penstock.errors import OutcomeUnknown
from penstock.storage import MemoryStore
from penstock.testing import Fault, FaultyStore

MANIFESTS = ["native"]
PATH = "number"


@dataclass(frozen=True)
class Number:
    """The simplest state: a number."""

    value: int
    evidence_lasts: bool = True

    def encode(self) -> bytes:
        return str(self.value).encode()


class Counter:
    """Adds one to a number on a store that fails as a test says, and notes what it does."""

    def __init__(self, name: str) -> None:
        self.memory = MemoryStore(name)
        self.store = FaultyStore(self.memory, rates={}, sleep=lambda _: None)
        self.steps: list[int] = []
        self.before: list[object] = []
        self.now = 0.0
        self.object: VersionedObject[Number] = VersionedObject(
            self.store,
            PATH,
            name,
            "producer",
            decode=lambda data: Number(int(data)),
            absent=Number(0),
            write_before=self.write_before,
            sleep=lambda _: None,
            uptime=lambda: self.now,
        )

    def write_before(self, objects: Sequence[object]) -> None:
        self.before += objects
        self.now += 1.0

    def add(self, until: float | None = None, before: Sequence[object] = ()) -> Versioned[Number]:
        def step(found: Versioned[Number]) -> Change[Number] | None:
            self.steps.append(found.state.value)
            if until is not None and self.now >= until:
                return None
            return Change(Number(found.state.value + 1), before, until)

        return self.object.update(step, lambda found: found.state.value == self.steps[-1] + 1, doing="adding to")

    @property
    def value(self) -> bytes:
        return self.memory.get(PATH).data


@pytest.fixture
def counter(fresh_name: str) -> Counter:
    return Counter(fresh_name)


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT])
def test_a_change_that_happened_without_a_success_reply_is_not_made_again(counter: Counter, fault: Fault) -> None:
    counter.store.inject(fault, path=PATH)
    assert counter.add().state == Number(1)
    assert (counter.value, counter.steps) == (b"1", [0])


def test_a_change_that_did_not_happen_is_made_from_what_is_there_by_then(counter: Counter) -> None:
    counter.store.inject(Fault.ERROR_BEFORE, path=PATH, times=3)
    counter.add()
    assert (counter.value, counter.steps) == (b"1", [0, 0, 0, 0])


def test_what_comes_before_a_state_is_written_before_each_try(counter: Counter) -> None:
    counter.store.inject(Fault.ERROR_BEFORE, path=PATH)
    counter.add(before=["segment"])
    assert counter.before == ["segment", "segment"]


def test_a_change_whose_time_passes_while_that_is_written_goes_back_to_its_step(counter: Counter) -> None:
    counter.add(until=0.5, before=["segment"])
    assert (counter.steps, list(counter.memory.list_objects())) == ([0, 0], [])


def test_a_change_without_a_limit_is_given_up_after_thirty_unknown_outcomes_in_a_row(counter: Counter) -> None:
    counter.store.inject(Fault.ERROR_BEFORE, path=PATH, times=30)
    with pytest.raises(OutcomeUnknown):
        counter.add()
    counter.store.inject(Fault.ERROR_BEFORE, path=PATH, times=60)
    counter.add(until=1e9)
    assert counter.value == b"1"


def test_a_state_that_was_kept_is_tried_without_a_read(counter: Counter) -> None:
    counter.add()
    kept = counter.object.kept(10.0)
    counter.store.inject(Fault.READ_ERROR, path=PATH)
    counter.object.update(lambda found: Change(Number(found.state.value + 1)), doing="adding to", start=kept)
    assert (counter.value, len(counter.store.planned)) == (b"2", 1)
    counter.now += 11.0
    assert counter.object.kept(10.0) is None
