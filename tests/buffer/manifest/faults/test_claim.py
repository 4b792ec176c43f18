"""Taking an epoch and each single fault: only a success reply grants one, and a burnt one is harmless."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import InvalidInput, OutcomeUnknown, StorageError
from penstock.testing import Fault
from tests.buffer.manifest.faults.recording import NOTHING, State
from tests.buffer.manifest.faults.scene import Scene, Seen


def claim(scene: Scene, last_acked: int | None = None) -> Callable[[], object]:
    return lambda: scene.claim(last_acked).epoch


def take_over(scene: Scene) -> None:
    scene.others_claim()


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        Fault.READ_ERROR: Seen(1, 1, 0, State(1, 0, ())),
        Fault.ERROR_BEFORE: Seen(1, 2, 0, State(1, 0, ())),
        Fault.ERROR_AFTER: Seen(2, 2, 0, State(2, 0, ())),
        Fault.APPLIED_THEN_CONFLICT: Seen(2, 2, 1, State(2, 0, ())),
        Fault.EXISTS_WHILE_ABSENT: Seen(1, 2, 1, State(1, 0, ())),
        Fault.THIRD_PARTY_BEFORE: Seen(2, 2, 1, State(2, 0, ())),
        Fault.LATE: Seen(2, 2, 0, State(2, 0, ())),
        Fault.DELAY: Seen(1, 1, 0, State(1, 0, ())),
        Fault.TIME_JUMP: Seen(1, 1, 0, State(1, 0, ())),
    }.items(),
)
def test_the_first_write_of_all_meets_a_fault(scene: Scene, fault: Fault, expected: Seen) -> None:
    scene.third_party = lambda: take_over(scene)

    assert scene.see(claim(scene), fault) == expected


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        Fault.READ_ERROR: Seen(1, 1, 0, State(1, 1, ("b", "c"))),
        Fault.ERROR_BEFORE: Seen(1, 2, 0, State(1, 1, ("b", "c"))),
        Fault.ERROR_AFTER: Seen(2, 2, 0, State(2, 1, ("b", "c"))),
        Fault.APPLIED_THEN_CONFLICT: Seen(2, 2, 1, State(2, 1, ("b", "c"))),
        Fault.THIRD_PARTY_BEFORE: Seen(2, 2, 1, State(2, 1, ("b", "c"))),
        Fault.LATE: Seen(2, 2, 0, State(2, 1, ("b", "c"))),
        Fault.DELAY: Seen(1, 1, 0, State(1, 1, ("b", "c"))),
        Fault.TIME_JUMP: Seen(1, 1, 0, State(1, 1, ("b", "c"))),
    }.items(),
)
def test_a_later_write_that_also_dequeues_meets_a_fault(scene: Scene, fault: Fault, expected: Seen) -> None:
    scene.others_enqueue("a", "b", "c")
    scene.third_party = lambda: take_over(scene)

    assert scene.see(claim(scene, last_acked=0), fault) == expected


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        # The other one has epoch 1, the very number that was tried.
        Fault.ERROR_BEFORE: Seen(2, 2, 0, State(2, 0, ("a",))),
        Fault.LATE: Seen(2, 2, 0, State(2, 0, ("a",))),
        # Epoch 1 is burnt, and the other one has 2.
        Fault.ERROR_AFTER: Seen(3, 2, 0, State(3, 0, ("a",))),
        Fault.APPLIED_THEN_CONFLICT: Seen(3, 2, 1, State(3, 0, ("a",))),
    }.items(),
)
def test_another_consumer_takes_over_before_the_manifest_is_read_again(
    scene: Scene, fault: Fault, expected: Seen
) -> None:
    scene.others_enqueue("a")
    scene.third_party = lambda: take_over(scene)

    assert scene.see(claim(scene), fault, Fault.THIRD_PARTY_AFTER) == expected


def test_an_entry_that_comes_in_between_is_kept(scene: Scene) -> None:
    scene.others_enqueue("a", "b")
    scene.third_party = lambda: scene.others_enqueue("c")

    assert scene.see(claim(scene, last_acked=1), Fault.THIRD_PARTY_BEFORE) == Seen(1, 2, 1, State(1, 2, ("c",)))


def test_a_late_claim_never_lends_its_number_to_anybody(fresh_name: str) -> None:
    seen = set()
    for seed in range(40):
        scene = Scene(fresh_name, seed, max_late=4)
        scene.others_enqueue("a")
        one = scene.see(claim(scene), Fault.LATE)
        arrived = scene.store.settle()
        assert (scene.state(), arrived) == (State(int(str(one.answer)), 0, ("a",)), 0), seed
        seen.add((one.answer, one.tried, one.lost))

    # It burns the number before the re-read; after it, so that the next try loses; or never, for that one was first.
    assert seen == {(2, 2, 0), (2, 3, 1), (1, 2, 0)}


def test_a_claim_whose_acks_another_consumer_has_passed_meanwhile_is_refused(scene: Scene) -> None:
    scene.others_enqueue("a", "b", "c")
    scene.third_party = scene.others_consume
    scene.store.inject(Fault.THIRD_PARTY_BEFORE)
    with pytest.raises(InvalidInput, match=r"last_acked_sequence 0 .* is 3;"):
        scene.claim(0)

    assert scene.state() == State(1, 3, ())


def test_a_store_that_fails_four_reads_delays_a_claim(scene: Scene) -> None:
    assert scene.see(claim(scene), *[Fault.READ_ERROR] * 4) == Seen(1, 1, 0, State(1, 0, ()))


def test_a_store_that_fails_five_reads_fails_a_claim_which_fenced_nobody(scene: Scene) -> None:
    scene.store.inject(Fault.READ_ERROR, times=5)
    with pytest.raises(StorageError):
        scene.claim()

    assert scene.state() == NOTHING


def test_a_claim_that_hears_nothing_twenty_nine_times_goes_on(scene: Scene) -> None:
    assert scene.see(claim(scene), *[Fault.ERROR_AFTER] * 29) == Seen(30, 30, 0, State(30, 0, ()))


def test_a_claim_that_hears_nothing_thirty_times_says_so_and_has_no_epoch(scene: Scene) -> None:
    scene.store.inject(Fault.ERROR_AFTER, times=30)
    with pytest.raises(OutcomeUnknown):
        scene.claim()

    assert scene.state() == State(30, 0, ())


def test_a_claim_that_loses_to_others_goes_on_for_as_long_as_it_takes(scene: Scene) -> None:
    scene.third_party = lambda: take_over(scene)

    assert scene.see(claim(scene), *[Fault.THIRD_PARTY_BEFORE] * 50) == Seen(51, 51, 50, State(51, 0, ()))
