"""After anything but success, evidence decides and not a number: counting through a store that loses replies.

The object is a list with the tokens of those who counted. `by_evidence` follows the rule of the storage page;
`by_number` concludes from the count, `by_trying_again` takes every failure for one. All three meet the same faults
and the same check, which has to pass the first and catch the others.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable

import pytest

from penstock import ObjectStore, open_store
from penstock.errors import NotFound, OutcomeUnknown, StorageError
from penstock.testing import Fault, FaultyStore

PATH = "counter"
INCREMENTS = 10


Judge = Callable[[str, list[str], list[str]], bool]


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


def count(store: ObjectStore, token: str, judge: Judge) -> None:
    """Add a token; after anything but success read again, and let the judge say whether it was added all the same."""
    tokens, version = read(store)
    while True:
        try:
            write(store, [*tokens, token], version)
        except StorageError:
            before, (tokens, version) = tokens, read(store)
            if judge(token, before, tokens):
                return
            continue
        return


def by_evidence(token: str, before: list[str], after: list[str]) -> bool:
    return token in after


def by_number(token: str, before: list[str], after: list[str]) -> bool:
    return len(after) >= len(before) + 1


def by_trying_again(token: str, before: list[str], after: list[str]) -> bool:
    return False


def third_party(store: ObjectStore, path: str) -> None:
    """Somebody else counts too."""
    tokens, version = read(store)
    write(store, [*tokens, f"other-{uuid.uuid4()}"], version)


def wrong_with(judge: Judge, seed: int, where: str) -> str | None:
    """Count through a faulty store, then say what is wrong with the result, if anything."""
    store = FaultyStore(
        open_store(where), seed, rates=dict.fromkeys(Fault, 0.15), third_party=third_party, sleep=lambda _: None
    )
    counted = [f"mine-{number}" for number in range(INCREMENTS)]
    for token in counted:
        count(store, token, judge)
    with store.quiet():
        mine = [token for token in read(store)[0] if token.startswith("mine-")]
    if len(mine) != len(set(mine)):
        return "counted twice"
    return None if set(mine) == set(counted) else "counted what did not happen"


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
def test_each_fault_alone_is_told_by_evidence_and_not_by_trying_again(fault: Fault) -> None:
    def after(judge: Judge) -> list[str]:
        store = FaultyStore(open_store(f"memory://{uuid.uuid4()}"), rates={}, third_party=third_party)
        count(store, "mine-0", judge)
        store.inject(fault, operation="put_if_match")
        count(store, "mine-1", judge)
        with store.quiet():
            return read(store)[0]

    assert after(by_evidence) == ["mine-0", "mine-1"]
    if fault is not Fault.LATE:  # a late write loses its condition to the second try, whichever store makes it
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
