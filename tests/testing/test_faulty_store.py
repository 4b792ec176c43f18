"""The store that goes wrong on purpose does so as it says, and no more than that."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock import ObjectStore, open_store
from penstock.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PenstockError,
    StorageError,
)
from penstock.storage import Object
from penstock.testing import DEFAULT_RATES, Fault, FaultyStore
from penstock.testing.faulty_store import rewrite


@pytest.fixture
def inner() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4()}")


def calm(inner: ObjectStore) -> FaultyStore:
    """A faulty store in which nothing goes wrong unless asked for."""
    return FaultyStore(inner, rates={})


def test_without_faults_it_is_the_store_below(inner: ObjectStore) -> None:
    store = calm(inner)
    first = store.put_if_absent("a/b", b"one")
    second = store.put_if_match("a/b", b"two", first)
    assert store.get("a/b") == inner.get("a/b")
    assert store.head("a/b").version == second
    assert list(store.list_objects("a")) == list(inner.list_objects("a"))
    assert [result.ok for result in store.delete(["a/b", "gone"])] == [True, True]
    assert list(inner.list_objects()) == []
    assert store.url == inner.url


def test_it_is_an_object_store(inner: ObjectStore) -> None:
    assert isinstance(FaultyStore(inner), ObjectStore)


def test_an_error_before_leaves_nothing(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject(Fault.ERROR_BEFORE)
    with pytest.raises(OutcomeUnknown):
        store.put("a", b"x")
    with pytest.raises(NotFound):
        inner.get("a")


def test_an_error_after_leaves_the_write(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject(Fault.ERROR_AFTER)
    with pytest.raises(OutcomeUnknown):
        store.put_if_absent("a", b"x")
    assert inner.get("a").data == b"x"


def test_a_lost_reply_and_a_lost_request_look_the_same(inner: ObjectStore) -> None:
    store = calm(inner)
    texts = set()
    for fault in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.LATE):
        store.inject(fault)
        with pytest.raises(OutcomeUnknown) as caught:
            store.put("a", b"x")
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_ones_own_success_is_reported_as_a_lost_race(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject(Fault.APPLIED_THEN_CONFLICT, times=2)
    with pytest.raises(AlreadyExists):
        store.put_if_absent("a", b"one")
    version = inner.get("a").version
    with pytest.raises(Conflict):
        store.put_if_match("a", b"two", version)
    assert inner.get("a").data == b"two"


def test_already_exists_while_nothing_is_there(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject(Fault.EXISTS_WHILE_ABSENT)
    with pytest.raises(AlreadyExists):
        store.put_if_absent("a", b"x")
    with pytest.raises(NotFound):
        store.get("a")
    store.put_if_absent("a", b"x")


def test_a_third_party_comes_first_and_the_compare_and_set_is_lost(inner: ObjectStore) -> None:
    store = FaultyStore(inner, rates={}, third_party=lambda below, path: below.put(path, b"theirs"))
    version = store.put("a", b"mine")
    store.inject(Fault.THIRD_PARTY_BEFORE)
    with pytest.raises(Conflict):
        store.put_if_match("a", b"mine again", version)
    assert inner.get("a").data == b"theirs"


def test_a_third_party_comes_between_a_failed_write_and_the_re_read(inner: ObjectStore) -> None:
    store = FaultyStore(inner, rates={}, third_party=lambda below, path: below.put(path, b"theirs"))
    version = store.put("a", b"old")
    store.inject(Fault.THIRD_PARTY_AFTER)
    second = store.put_if_match("a", b"mine", version)
    assert store.planned, "it waits for a write that fails"
    store.inject(Fault.ERROR_AFTER)
    with pytest.raises(OutcomeUnknown):
        store.put_if_match("a", b"mine again", second)
    assert store.get("a").data == b"theirs"
    assert not store.planned


def test_the_default_third_party_only_moves_the_version(inner: ObjectStore) -> None:
    store = calm(inner)
    version = store.put("a", b"x")
    store.inject(Fault.THIRD_PARTY_BEFORE, times=2)
    with pytest.raises(Conflict):
        store.put_if_match("a", b"y", version)
    assert inner.get("a").data == b"x"
    store.put_if_absent("b", b"no other")
    assert inner.get("b").data == b"no other"


def test_no_write_is_lost_to_the_default_third_party(inner: ObjectStore) -> None:
    # The third party has read, and then the caller writes: what the third party writes after that must not win.
    class Slow:
        url = inner.url

        def get(self, path: str) -> Object:
            found = inner.get(path)
            inner.put(path, b"newer")
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

    inner.put("a", b"old")
    with pytest.raises(Conflict):
        rewrite(Slow(), "a")  # type: ignore[arg-type]
    assert inner.get("a").data == b"newer"


def test_what_goes_wrong_for_a_third_party_does_not_reach_the_caller(inner: ObjectStore) -> None:
    def fails(below: ObjectStore, path: str) -> None:
        raise StorageError("theirs")

    store = FaultyStore(inner, rates={}, third_party=fails)
    store.inject(Fault.THIRD_PARTY_BEFORE)
    store.put_if_absent("a", b"mine")


def test_a_fault_that_had_no_occasion_is_not_counted_and_waits_for_one(inner: ObjectStore) -> None:
    store = calm(inner)
    version = store.put("a", b"old")
    store.inject(Fault.ERROR_AFTER, operation="put_if_match")
    store.inject(Fault.EXISTS_WHILE_ABSENT)
    with pytest.raises(Conflict):
        store.put_if_match("a", b"x", "invented")
    with pytest.raises(AlreadyExists, match="already"):
        store.put_if_absent("a", b"x")
    assert not store.met
    with pytest.raises(OutcomeUnknown):
        store.put_if_match("a", b"new", version)
    with pytest.raises(AlreadyExists, match="injected"):
        store.put_if_absent("b", b"x")
    assert store.met == {Fault.ERROR_AFTER: 1, Fault.EXISTS_WHILE_ABSENT: 1}
    assert not store.planned


def test_a_listing_that_is_not_read_has_not_failed(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject(Fault.READ_ERROR)
    store.list_objects()
    assert not store.met


@pytest.mark.parametrize(
    ("fault", "operation"),
    [("nonsense", None), (Fault.LATE, "get"), (Fault.LATE, "delete"), (Fault.READ_ERROR, "put"), (Fault.LATE, "putt")],
)
def test_asking_for_what_cannot_come_is_refused(inner: ObjectStore, fault: Fault, operation: str | None) -> None:
    with pytest.raises(InvalidInput):
        calm(inner).inject(fault, operation=operation)


def test_a_fault_may_be_asked_for_by_its_word(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject("error_before")  # type: ignore[arg-type]
    with pytest.raises(OutcomeUnknown):
        store.put("a", b"")


def test_what_a_late_write_would_be_refused_for_is_refused_at_once(tmp_path: Path) -> None:
    store = calm(open_store(tmp_path))
    store.inject(Fault.LATE, times=2)
    with pytest.raises(InvalidInput):
        store.put(".penstock/a", b"")
    with pytest.raises(InvalidInput):
        store.put_if_match("a", b"", None)  # type: ignore[arg-type]
    assert store.settle() == 0


def test_a_date_belongs_to_a_version_and_not_to_a_path(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject(Fault.TIME_JUMP)
    store.put("a", b"mine")
    jumped = store.head("a").last_modified
    inner.put("a", b"theirs")
    assert store.head("a").last_modified == inner.head("a").last_modified != jumped


def test_jumps_and_lateness_can_be_bounded(inner: ObjectStore) -> None:
    store = FaultyStore(inner, rates={}, clock=lambda: 1_000.0, max_jump=5.0, max_late=1)
    store.inject(Fault.TIME_JUMP)
    store.put("a", b"")
    assert 995.0 <= store.clock() <= 1_005.0
    assert store.clock() != 1_000.0
    store.inject(Fault.LATE)
    with pytest.raises(OutcomeUnknown):
        store.put("late", b"x")
    assert store.get("late").data == b"x"
    with pytest.raises(InvalidInput):
        FaultyStore(inner, max_late=0)


def test_one_path_given_twice_is_deleted_once(inner: ObjectStore) -> None:
    store = calm(inner)
    inner.put("a", b"")
    store.inject(Fault.ERROR_BEFORE)
    assert [result.ok for result in store.delete(["a", "a"])] == [False, False]
    assert [meta.path for meta in inner.list_objects()] == ["a"]


def test_a_late_write_takes_effect_some_calls_later(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject(Fault.LATE)
    with pytest.raises(OutcomeUnknown):
        store.put("late", b"x")
    calls = 0
    while True:
        calls += 1
        try:
            assert store.get("late").data == b"x"
            break
        except NotFound:
            assert calls < 10
    assert store.settle() == 0


def test_a_late_write_whose_condition_fails_by_then_never_happens(inner: ObjectStore) -> None:
    store = calm(inner)
    version = store.put("a", b"one")
    store.inject(Fault.LATE)
    with pytest.raises(OutcomeUnknown):
        store.put_if_match("a", b"late", version)
    inner.put("a", b"two")
    assert store.settle() == 0
    assert inner.get("a").data == b"two"


def test_a_late_write_does_not_change_with_its_callers_buffer(inner: ObjectStore) -> None:
    store = calm(inner)
    buffer = bytearray(b"before")
    store.inject(Fault.LATE)
    with pytest.raises(OutcomeUnknown):
        store.put("a", buffer)
    buffer[:] = b"after!"
    store.settle()
    assert inner.get("a").data == b"before"


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("a"),
        lambda store: store.head("a"),
        lambda store: list(store.list_objects()),
    ],
)
def test_reads_fail_once_and_work_again(inner: ObjectStore, read: Callable[[ObjectStore], object]) -> None:
    store = calm(inner)
    store.put("a", b"x")
    store.inject(Fault.READ_ERROR)
    with pytest.raises(StorageError, match="injected"):
        read(store)
    assert read(store)


def test_a_listing_breaks_off_in_the_middle_for_some_seed(inner: ObjectStore) -> None:
    for number in range(10):
        inner.put(f"a/{number}", b"")
    lengths = set()
    for seed in range(20):
        store = FaultyStore(inner, seed, rates={})
        store.inject(Fault.READ_ERROR)
        seen: list[str] = []
        with pytest.raises(StorageError):
            seen.extend(meta.path for meta in store.list_objects("a"))
        lengths.add(len(seen))
    assert any(0 < length < 10 for length in lengths)


def test_deletes_fail_one_by_one_before_or_after(inner: ObjectStore) -> None:
    store = calm(inner)
    for path in ("a", "b", "c"):
        inner.put(path, b"")
    store.inject(Fault.ERROR_BEFORE, path="a")
    store.inject(Fault.ERROR_AFTER, path="b")
    assert [result.ok for result in store.delete(["a", "b", "c"])] == [False, False, True]
    assert [meta.path for meta in inner.list_objects()] == ["a"]


def test_after_a_time_jump_what_is_written_is_dated_elsewhere_and_the_rest_is_not(inner: ObjectStore) -> None:
    store = FaultyStore(inner, seed=3, rates={})
    store.put("before", b"")
    store.inject(Fault.TIME_JUMP)
    store.put("after", b"")
    now = datetime.now(UTC)
    assert abs(store.head("before").last_modified - now) < timedelta(minutes=1)
    jump = store.head("after").last_modified - now
    assert timedelta(minutes=1) < abs(jump) < timedelta(days=2)
    assert store.get("after").last_modified == store.head("after").last_modified
    assert {m.path: m.last_modified for m in store.list_objects()}["after"] == store.head("after").last_modified
    assert abs(store.clock() - now.timestamp() - jump.total_seconds()) < 60


def test_a_delay_calls_the_sleep_it_was_given(inner: ObjectStore) -> None:
    slept: list[float] = []
    store = FaultyStore(inner, rates={}, sleep=slept.append, max_delay=5.0)
    store.inject(Fault.DELAY)
    store.put("a", b"")
    assert len(slept) == 1
    assert 0 <= slept[0] <= 5.0


def test_the_same_seed_gives_the_same_faults() -> None:
    def run(seed: int) -> list[str]:
        store = FaultyStore(open_store(f"memory://{uuid.uuid4()}"), seed, sleep=lambda _: None)
        outcomes = []
        for number in range(300):
            try:
                store.put_if_absent(f"a/{number}", b"")
                outcomes.append("ok")
            except StorageError as error:
                outcomes.append(type(error).__name__)
        return outcomes

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_by_default_every_fault_comes_sooner_or_later(inner: ObjectStore) -> None:
    store = FaultyStore(inner, seed=11, sleep=lambda _: None)
    for number in range(500):
        for call in (
            lambda: store.put_if_absent(f"a/{number}", b""),  # noqa: B023
            lambda: store.put_if_match("a/0", b"", inner.get("a/0").version),
            lambda: store.get("a/0"),
        ):
            try:
                call()
            except StorageError:
                continue
    assert set(store.met) == set(Fault) == set(DEFAULT_RATES)
    assert all(store.met.values())


def test_in_quiet_nothing_goes_wrong_and_late_writes_have_arrived(inner: ObjectStore) -> None:
    store = FaultyStore(inner, rates=dict.fromkeys(Fault, 1.0), sleep=lambda _: None)
    with store.quiet():
        store.put("a", b"x")
        assert store.get("a").data == b"x"
    with pytest.raises(StorageError):
        store.get("a")


def test_an_injected_fault_waits_for_its_operation_and_path(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject(Fault.ERROR_BEFORE, operation="put", path="b")
    store.put("a", b"")
    store.put_if_absent("b", b"")
    with pytest.raises(OutcomeUnknown):
        store.put("b", b"")
    assert store.met == {Fault.ERROR_BEFORE: 1}


def test_bad_paths_and_rates_are_refused_at_once(inner: ObjectStore) -> None:
    store = calm(inner)
    store.inject(Fault.LATE)
    with pytest.raises(InvalidInput):
        store.put("../x", b"")
    with pytest.raises(InvalidInput):
        FaultyStore(inner, rates={Fault.LATE: 1.5})


def test_it_travels_to_another_process_with_the_store_below(tmp_path: Path) -> None:
    store = FaultyStore(open_store(tmp_path), seed=5, rates={})
    store.put("a", b"x")
    again = pickle.loads(pickle.dumps(store))
    assert again.get("a").data == b"x"
    store.inject(Fault.LATE)
    with pytest.raises(PenstockError):
        store.put("a", b"y")
    with pytest.raises(InvalidInput, match="settle"):
        pickle.dumps(store)
