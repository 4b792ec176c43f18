"""Evidence in version 2: the head knows its writers, so an enqueue is recognised wherever its entries are now."""

from __future__ import annotations

import pytest

from penstock.buffer.manifest.state import Enqueued, Limits, Transaction
from penstock.errors import InvalidInput, OutcomeUnknown
from penstock.testing import Fault
from tests.buffer.manifest.faults.recording import State
from tests.buffer.manifest.faults.scene import Scene, Seen, entries
from tests.buffer.manifest.faults.test_enqueue import enqueue
from tests.support.enqueuing import enqueue as enqueue_in

MANIFESTS = ["native"]
HAPPENED = [Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT]


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        Fault.ERROR_AFTER: Seen({"a": 1}, 1, 0, State(1, 2, ())),
        Fault.APPLIED_THEN_CONFLICT: Seen({"a": 1}, 1, 1, State(1, 2, ())),
    }.items(),
)
def test_an_enqueue_is_recognised_though_everything_is_dequeued_before_the_manifest_is_read_again(
    scene: Scene, fault: Fault, expected: Seen
) -> None:
    scene.others_enqueue("z")
    scene.third_party = scene.others_consume

    assert scene.see(enqueue(scene, "a"), fault, Fault.THIRD_PARTY_AFTER) == expected


@pytest.mark.parametrize("fault", HAPPENED)
def test_a_group_that_is_dequeued_already_is_not_appended_again(scene: Scene, fault: Fault) -> None:
    scene.third_party = scene.others_consume

    seen = scene.see(enqueue(scene, "a", "b", "c"), fault, Fault.THIRD_PARTY_AFTER)

    assert (seen.answer, seen.there, seen.doubts) == ({"a": 0, "b": 1, "c": 2}, State(1, 3, ()), 0)


def test_what_did_not_happen_is_known_not_to_have_though_its_place_was_given_and_dequeued(scene: Scene) -> None:
    def third_party() -> None:
        scene.others_enqueue("other")
        scene.others_consume()

    scene.third_party = third_party

    seen = scene.see(enqueue(scene, "a"), Fault.ERROR_BEFORE, Fault.THIRD_PARTY_AFTER)

    assert seen == Seen({"a": 1}, 2, 0, State(1, 1, ("a",)), doubts=0)


@pytest.mark.parametrize("fault", HAPPENED)
def test_what_is_dequeued_during_the_pause_is_recognised_after_it(scene: Scene, fault: Fault) -> None:
    scene.others_enqueue("z")
    scene.during_pause = scene.others_consume

    seen = scene.see(enqueue(scene, "a"), fault)

    assert (seen.answer, seen.there, seen.doubts) == ({"a": 1}, State(1, 2, ()), 0)


def test_a_queue_that_kept_the_head_of_its_last_write_reads_nothing_before_the_next(scene: Scene) -> None:
    scene.enqueue("a")

    assert scene.see(enqueue(scene, "b")) == Seen({"b": 1}, 1, 0, State(0, 0, ("a", "b")))
    # It would have met it if it had read.
    scene.store.inject(Fault.READ_ERROR)
    scene.enqueue("c")
    assert len(scene.store.planned) == 1


@pytest.mark.parametrize("fault", HAPPENED)
def test_a_queue_that_kept_the_head_tells_its_own_write_from_the_one_before(scene: Scene, fault: Fault) -> None:
    scene.enqueue("a")
    scene.third_party = scene.others_consume

    seen = scene.see(enqueue(scene, "b"), fault, Fault.THIRD_PARTY_AFTER)

    assert (seen.answer, seen.there) == ({"b": 1}, State(1, 2, ()))


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.THIRD_PARTY_BEFORE])
def test_a_queue_that_kept_the_head_appends_what_did_not_happen_though_the_write_before_did(
    scene: Scene, fault: Fault
) -> None:
    scene.enqueue("a")
    scene.third_party = scene.others_consume

    seen = scene.see(enqueue(scene, "b"), fault)

    assert (seen.answer, seen.there.locations[-1:], seen.tried) == ({"b": 1}, ("b",), 2)


# Writers that are forgotten.


@pytest.fixture
def forgetful(fresh_name: str) -> Scene:
    """A head that remembers two writers without a name."""
    return Scene(fresh_name, limits=Limits(unnamed_writers=2))


def strangers_enqueue(scene: Scene, count: int) -> None:
    """So many others append, each a writer of its own."""
    for number in range(count):
        by = Transaction(f"stranger-{number}", 0, is_named=False)
        enqueue_in(scene.other, entries(by.writer), by)


@pytest.mark.parametrize("fault", [*HAPPENED, Fault.ERROR_BEFORE])
def test_a_writer_in_doubt_that_was_forgotten_meanwhile_says_that_it_cannot_know(
    forgetful: Scene, fault: Fault
) -> None:
    strangers_enqueue(forgetful, 2)
    forgetful.third_party = lambda: strangers_enqueue(forgetful, 5)
    forgetful.store.inject(fault)
    forgetful.store.inject(Fault.THIRD_PARTY_AFTER)

    with pytest.raises(OutcomeUnknown, match="not known to be enqueued"):
        forgetful.enqueue("a")

    assert forgetful.state().locations.count("a") == (fault in HAPPENED)


def test_a_writer_that_tries_on_a_head_which_it_kept_while_too_many_others_wrote_cannot_know_and_goes_on_after_that(
    forgetful: Scene,
) -> None:
    # Nothing went wrong here but that it was idle: a conflict may have happened all the same.
    forgetful.enqueue("a")
    strangers_enqueue(forgetful, 5)
    with pytest.raises(OutcomeUnknown, match="not known to be enqueued"):
        forgetful.enqueue("b")

    assert forgetful.enqueue("c") == {"c": 6}


def test_a_writer_that_kept_no_head_is_in_no_doubt_however_many_were_forgotten(forgetful: Scene) -> None:
    strangers_enqueue(forgetful, 5)

    assert forgetful.see(enqueue(forgetful, "a")).answer == {"a": 5}


# Transactions with a name.


def append(scene: Scene, number: int, *locations: str) -> Enqueued:
    return enqueue_in(scene.mine, entries(*locations), Transaction("nightly", number))


def test_a_transaction_that_comes_again_is_not_appended_and_its_first_sequence_is_known(scene: Scene) -> None:
    scene.others_enqueue("z")
    assert append(scene, 7, "a", "b") == Enqueued(True, 1, {"a": 1, "b": 2})

    assert append(scene, 7, "c", "d") == Enqueued(False, 1, {}, was_there=True)
    assert scene.state() == State(0, 0, ("z", "a", "b"))


def test_a_transaction_before_the_last_one_is_refused_for_it_may_never_have_been_appended(scene: Scene) -> None:
    append(scene, 7, "a")

    with pytest.raises(InvalidInput, match="comes with transaction 6, and 7 is its last one"):
        append(scene, 6, "b")
    assert scene.state() == State(0, 0, ("a",))


@pytest.mark.parametrize("fault", [*HAPPENED, Fault.ERROR_BEFORE, Fault.LATE])
def test_a_transaction_whose_write_goes_wrong_is_appended_once(scene: Scene, fault: Fault) -> None:
    scene.others_enqueue("z")
    scene.third_party = scene.others_consume
    scene.store.inject(fault)
    scene.store.inject(Fault.THIRD_PARTY_AFTER)

    # Where it is dequeued already the head says that it happened, and not whether it was this process: a success both.
    done = append(scene, 7, "a")
    assert done.appended or done.was_there
    assert not append(scene, 7, "a").appended
    assert scene.state().next == 2


def test_a_named_writer_is_remembered_however_many_come_after_it(forgetful: Scene) -> None:
    append(forgetful, 7, "a")
    strangers_enqueue(forgetful, 50)

    assert append(forgetful, 7, "a").was_there
