"""After anything but success, evidence decides and not a number: counting through a store that loses replies.

The object is a counter with the tokens of those who counted. `by_evidence` follows the rule of the storage page;
`by_number` concludes from the count, `by_trying_again` takes every failure for one. All three are run
through the same faults and judged by the same check, which has to pass the first and catch the others.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from penstock import ObjectStore, open_store
from penstock.errors import NotFound, OutcomeUnknown, StorageError
from penstock.testing import Fault, FaultyStore

PATH = "counter"
INCREMENTS = 10


@dataclass
class Tally:
    """What a caller believes it has counted."""

    counted: list[str] = field(default_factory=list)


def read(store: ObjectStore) -> tuple[list[str], str | None]:
    """The tokens counted so far, and the version they were read at; None while there is no object."""
    while True:
        try:
            found = store.get(PATH)
        except NotFound:
            return [], None
        except StorageError:
            continue
        return json.loads(found.data), found.version


def write(store: ObjectStore, tokens: list[str], version: str | None) -> None:
    data = json.dumps(tokens).encode()
    if version is None:
        store.put_if_absent(PATH, data)
    else:
        store.put_if_match(PATH, data, version)


def by_evidence(store: ObjectStore, token: str, tally: Tally) -> None:
    while True:
        tokens, version = read(store)
        if token in tokens:
            break
        try:
            write(store, [*tokens, token], version)
        except StorageError:
            continue
        break
    tally.counted.append(token)


def by_number(store: ObjectStore, token: str, tally: Tally) -> None:
    while True:
        tokens, version = read(store)
        try:
            write(store, [*tokens, token], version)
        except StorageError:
            if len(read(store)[0]) < len(tokens) + 1:
                continue
        break
    tally.counted.append(token)


def by_trying_again(store: ObjectStore, token: str, tally: Tally) -> None:
    while True:
        tokens, version = read(store)
        try:
            write(store, [*tokens, token], version)
        except StorageError:
            continue
        break
    tally.counted.append(token)


def third_party(store: ObjectStore, path: str) -> None:
    """Somebody else counts too."""
    tokens, version = read(store)
    write(store, [*tokens, f"other-{uuid.uuid4()}"], version)


Caller = Callable[[ObjectStore, str, Tally], None]


def wrong_with(caller: Caller, seed: int, where: str) -> str | None:
    """Count through a faulty store, then say what is wrong with the result, if anything."""
    store = FaultyStore(
        open_store(where), seed, rates=dict.fromkeys(Fault, 0.15), third_party=third_party, sleep=lambda _: None
    )
    tally = Tally()
    for number in range(INCREMENTS):
        caller(store, f"mine-{number}", tally)
    with store.quiet():
        mine = [token for token in read(store)[0] if token.startswith("mine-")]
    if len(mine) != len(set(mine)):
        return "counted twice"
    if set(tally.counted) != set(mine):
        return "counted what did not happen" if set(tally.counted) - set(mine) else "did not count what happened"
    return None


@pytest.mark.parametrize("seeds", [500, pytest.param(20_000, marks=pytest.mark.chaos)])
def test_evidence_never_counts_twice_nor_what_did_not_happen(seeds: int) -> None:
    wrong = {seed: wrong_with(by_evidence, seed, f"memory://evidence-{uuid.uuid4()}") for seed in range(seeds)}
    assert set(wrong.values()) == {None}


def test_a_caller_that_trusts_the_number_is_caught_counting_what_did_not_happen() -> None:
    wrong = [wrong_with(by_number, seed, f"memory://number-{uuid.uuid4()}") for seed in range(100)]
    assert "counted what did not happen" in wrong


def test_a_caller_that_takes_its_own_success_for_a_conflict_is_caught_counting_twice() -> None:
    wrong = [wrong_with(by_trying_again, seed, f"memory://conflict-{uuid.uuid4()}") for seed in range(100)]
    assert "counted twice" in wrong


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.LATE, Fault.APPLIED_THEN_CONFLICT])
def test_each_fault_alone_followed_by_a_third_party_is_told_by_evidence_and_not_by_the_number(fault: Fault) -> None:
    def after(caller: Caller) -> list[str]:
        store = FaultyStore(open_store(f"memory://{uuid.uuid4()}"), rates={}, third_party=third_party)
        caller(store, "mine-0", Tally())
        store.inject(fault, operation="put_if_match")
        caller(store, "mine-1", Tally())
        with store.quiet():
            return read(store)[0]

    assert after(by_evidence) == ["mine-0", "mine-1"]
    if fault is not Fault.LATE:  # a late write loses its condition to the second try, whoever makes it
        assert after(by_trying_again) == ["mine-0", "mine-1", "mine-1"]


@pytest.mark.parametrize("seed", range(10))
def test_evidence_holds_on_local_disk_too(seed: int, tmp_path: object) -> None:
    store_at = f"file://{tmp_path}"
    assert wrong_with(by_evidence, random.Random(seed).getrandbits(32), store_at) is None


def test_a_write_whose_outcome_is_unknown_may_have_happened_or_not_or_happen_late() -> None:
    inner = open_store(f"memory://{uuid.uuid4()}")
    store = FaultyStore(inner, rates={})
    seen = {}
    for fault in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.LATE):
        path = f"{PATH}-{fault}"
        store.inject(fault, operation="put_if_absent")
        with pytest.raises(OutcomeUnknown):
            store.put_if_absent(path, b"x")
        seen[fault] = [meta.path for meta in inner.list_objects()].count(path)
    assert seen == {Fault.ERROR_BEFORE: 0, Fault.ERROR_AFTER: 1, Fault.LATE: 0}
    assert store.settle() == 1
    assert inner.get(f"{PATH}-{Fault.LATE}").data == b"x"
