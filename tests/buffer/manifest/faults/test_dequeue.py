"""A dequeue and each single fault: the entries are gone once, and never under another's epoch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import Fenced, OutcomeUnknown, StorageError
from penstock.testing import Fault
from tests.buffer.manifest.faults.recording import State
from tests.buffer.manifest.faults.scene import Scene, Seen

REMAINS = State(1, 2, ("c",))


def holding(scene: Scene) -> Callable[[], object]:
    """Three entries, an epoch, and a dequeue of the first two that answers with the first sequence that is left."""
    scene.others_enqueue("a", "b", "c")
    epoch = scene.claim().epoch
    return lambda: scene.mine.dequeue(epoch, 1).first_sequence


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        Fault.ERROR_BEFORE: Seen(2, 2, 0, REMAINS),
        Fault.ERROR_AFTER: Seen(2, 1, 0, REMAINS),
        Fault.APPLIED_THEN_CONFLICT: Seen(2, 1, 1, REMAINS),
        Fault.THIRD_PARTY_BEFORE: Seen(2, 2, 1, State(1, 2, ("c", "other"))),
        Fault.LATE: Seen(2, 1, 0, REMAINS),
        Fault.DELAY: Seen(2, 1, 0, REMAINS),
        Fault.TIME_JUMP: Seen(2, 1, 0, REMAINS),
    }.items(),
)
def test_a_dequeue_meets_a_fault(scene: Scene, fault: Fault, expected: Seen) -> None:
    dequeue = holding(scene)
    scene.third_party = lambda: scene.others_enqueue("other")

    assert scene.see(dequeue, fault) == expected


def test_a_read_that_fails_is_raised_and_nothing_is_dequeued(scene: Scene) -> None:
    dequeue = holding(scene)
    scene.store.inject(Fault.READ_ERROR)
    with pytest.raises(StorageError):
        dequeue()

    assert scene.state() == State(1, 0, ("a", "b", "c"))


def test_the_same_dequeue_can_be_tried_again_after_an_error(scene: Scene) -> None:
    dequeue = holding(scene)
    scene.store.inject(Fault.READ_ERROR)
    with pytest.raises(StorageError):
        dequeue()

    assert scene.see(dequeue) == Seen(2, 1, 0, REMAINS)


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        Fault.ERROR_BEFORE: Seen(2, 2, 0, State(1, 2, ("c", "other"))),
        Fault.ERROR_AFTER: Seen(2, 1, 0, State(1, 2, ("c", "other"))),
        Fault.APPLIED_THEN_CONFLICT: Seen(2, 1, 1, State(1, 2, ("c", "other"))),
        Fault.LATE: Seen(2, 2, 0, State(1, 2, ("c", "other"))),
    }.items(),
)
def test_an_entry_that_comes_before_the_manifest_is_read_again_is_kept(
    scene: Scene, fault: Fault, expected: Seen
) -> None:
    dequeue = holding(scene)
    scene.third_party = lambda: scene.others_enqueue("other")

    assert scene.see(dequeue, fault, Fault.THIRD_PARTY_AFTER) == expected


@pytest.mark.parametrize(
    ("fault", "there"),
    {
        Fault.THIRD_PARTY_BEFORE: State(2, 0, ("a", "b", "c")),
        Fault.ERROR_BEFORE: State(2, 0, ("a", "b", "c")),
        Fault.LATE: State(2, 0, ("a", "b", "c")),
        Fault.ERROR_AFTER: State(2, 2, ("c",)),
        Fault.APPLIED_THEN_CONFLICT: State(2, 2, ("c",)),
    }.items(),
)
def test_a_consumer_that_is_fenced_in_the_middle_of_a_dequeue_changes_nothing_after_that(
    scene: Scene, fault: Fault, there: State
) -> None:
    dequeue = holding(scene)
    scene.third_party = scene.others_claim
    scene.store.inject(fault)
    if fault is not Fault.THIRD_PARTY_BEFORE:
        scene.store.inject(Fault.THIRD_PARTY_AFTER)
    with pytest.raises(Fenced, match="its epoch is 2, and this one's 1"):
        dequeue()

    assert (scene.store.settle(), scene.state()) == (0, there)


def test_a_late_dequeue_takes_nothing_more_whenever_it_arrives(fresh_name: str) -> None:
    seen = set()
    for seed in range(40):
        scene = Scene(fresh_name, seed, max_late=4)
        dequeue = holding(scene)
        one = scene.see(dequeue, Fault.LATE)
        arrived = scene.store.settle()
        assert (one.answer, scene.state(), arrived) == (2, REMAINS, 0), seed
        seen.add((one.tried, one.lost))

    # Before the re-read; after it, so that the next try loses; after the next try, and so never.
    assert seen == {(1, 0), (2, 1), (2, 0)}


def test_a_dequeue_that_hears_nothing_twenty_nine_times_goes_on(scene: Scene) -> None:
    assert scene.see(holding(scene), *[Fault.ERROR_BEFORE] * 29) == Seen(2, 30, 0, REMAINS)


def test_a_dequeue_that_hears_nothing_thirty_times_says_so(scene: Scene) -> None:
    dequeue = holding(scene)
    scene.store.inject(Fault.ERROR_BEFORE, times=30)
    with pytest.raises(OutcomeUnknown):
        dequeue()

    assert scene.state() == State(1, 0, ("a", "b", "c"))


def test_a_dequeue_of_what_is_gone_writes_nothing(scene: Scene) -> None:
    dequeue = holding(scene)
    dequeue()

    assert scene.see(dequeue) == Seen(2, 0, 0, REMAINS)
