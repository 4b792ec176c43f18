"""An enqueue and each single fault: what it answers, what is there, how often it wrote, and what it could not tell."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from penstock.buffer.manifest.queue import BufferQueue
from penstock.errors import StorageError
from penstock.storage import MemoryStore
from penstock.testing import Fault
from tests.buffer.manifest.faults.recording import NOTHING, State
from tests.buffer.manifest.faults.scene import PATH, Scene, Seen, entries
from tests.support.enqueuing import Shipment


def enqueue(scene: Scene, *locations: str) -> Callable[[], object]:
    return lambda: scene.enqueue(*locations)


FIRST, LATER = State(0, 0, ("a",)), State(0, 0, ("z", "a"))


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        Fault.READ_ERROR: Seen({"a": 0}, 1, 0, FIRST),
        Fault.ERROR_BEFORE: Seen({"a": 0}, 2, 0, FIRST),
        Fault.ERROR_AFTER: Seen({"a": 0}, 1, 0, FIRST),
        Fault.APPLIED_THEN_CONFLICT: Seen({"a": 0}, 1, 1, FIRST),
        Fault.EXISTS_WHILE_ABSENT: Seen({"a": 0}, 2, 1, FIRST),
        Fault.THIRD_PARTY_BEFORE: Seen({"a": 1}, 2, 1, State(0, 0, ("other", "a"))),
        Fault.LATE: Seen({"a": 0}, 1, 0, FIRST),
        Fault.DELAY: Seen({"a": 0}, 1, 0, FIRST),
        Fault.TIME_JUMP: Seen({"a": 0}, 1, 0, FIRST),
    }.items(),
)
def test_the_first_write_of_all_meets_a_fault(scene: Scene, fault: Fault, expected: Seen) -> None:
    scene.third_party = lambda: scene.others_enqueue("other")

    assert scene.see(enqueue(scene, "a"), fault) == expected


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        Fault.READ_ERROR: Seen({"a": 1}, 1, 0, LATER),
        Fault.ERROR_BEFORE: Seen({"a": 1}, 2, 0, LATER),
        Fault.ERROR_AFTER: Seen({"a": 1}, 1, 0, LATER),
        Fault.APPLIED_THEN_CONFLICT: Seen({"a": 1}, 1, 1, LATER),
        Fault.THIRD_PARTY_BEFORE: Seen({"a": 2}, 2, 1, State(0, 0, ("z", "other", "a"))),
        Fault.LATE: Seen({"a": 1}, 1, 0, LATER),
        Fault.DELAY: Seen({"a": 1}, 1, 0, LATER),
        Fault.TIME_JUMP: Seen({"a": 1}, 1, 0, LATER),
    }.items(),
)
def test_a_later_write_meets_a_fault(scene: Scene, fault: Fault, expected: Seen) -> None:
    scene.others_enqueue("z")
    scene.third_party = lambda: scene.others_enqueue("other")

    assert scene.see(enqueue(scene, "a"), fault) == expected


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        Fault.ERROR_BEFORE: Seen({"a": 2}, 2, 0, State(0, 0, ("z", "other", "a"))),
        Fault.ERROR_AFTER: Seen({"a": 1}, 1, 0, State(0, 0, ("z", "a", "other"))),
        Fault.APPLIED_THEN_CONFLICT: Seen({"a": 1}, 1, 1, State(0, 0, ("z", "a", "other"))),
        Fault.LATE: Seen({"a": 2}, 2, 0, State(0, 0, ("z", "other", "a"))),
    }.items(),
)
def test_another_queue_enqueues_before_the_manifest_is_read_again(scene: Scene, fault: Fault, expected: Seen) -> None:
    scene.others_enqueue("z")
    scene.third_party = lambda: scene.others_enqueue("other")

    assert scene.see(enqueue(scene, "a"), fault, Fault.THIRD_PARTY_AFTER) == expected


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        # Its place was not given yet: it did not happen, and nothing is in doubt.
        Fault.ERROR_BEFORE: Seen({"a": 1}, 2, 0, State(1, 1, ("a",))),
        Fault.LATE: Seen({"a": 1}, 2, 0, State(1, 1, ("a",))),
    }.items(),
)
def test_what_did_not_happen_is_appended_though_everything_is_dequeued_before_the_manifest_is_read_again(
    scene: Scene, fault: Fault, expected: Seen
) -> None:
    scene.others_enqueue("z")
    scene.third_party = scene.others_consume

    assert scene.see(enqueue(scene, "a"), fault, Fault.THIRD_PARTY_AFTER) == expected


def test_a_group_whose_first_entry_is_dequeued_is_recognised_by_its_second(scene: Scene) -> None:
    def third_party() -> None:
        scene.other.dequeue(scene.others_claim(), 0)

    scene.third_party = third_party

    seen = scene.see(enqueue(scene, "a", "b"), Fault.ERROR_AFTER, Fault.THIRD_PARTY_AFTER)

    assert seen == Seen({"a": 0, "b": 1}, 1, 0, State(1, 1, ("b",)))


def test_a_group_whose_last_place_is_anothers_did_not_happen_though_its_first_is_dequeued(scene: Scene) -> None:
    def third_party() -> None:
        scene.others_enqueue("x", "y")
        scene.other.dequeue(scene.others_claim(), 0)

    scene.third_party = third_party

    seen = scene.see(enqueue(scene, "a", "b"), Fault.ERROR_BEFORE, Fault.THIRD_PARTY_AFTER)

    assert seen == Seen({"a": 2, "b": 3}, 2, 0, State(1, 1, ("y", "a", "b")))


def test_a_group_whose_last_place_was_never_given_did_not_happen_and_is_not_in_doubt(scene: Scene) -> None:
    # It would have taken two places, and only one was given since, to the other queue.
    def third_party() -> None:
        scene.others_enqueue("x")
        scene.others_consume()

    scene.third_party = third_party

    seen = scene.see(enqueue(scene, "a", "b"), Fault.ERROR_BEFORE, Fault.THIRD_PARTY_AFTER)

    assert seen == Seen({"a": 1, "b": 2}, 2, 0, State(1, 1, ("a", "b")), doubts=0)


def test_a_place_that_is_taken_during_the_pause_is_anothers(scene: Scene) -> None:
    scene.during_pause = lambda: scene.others_enqueue("other")

    assert scene.see(enqueue(scene, "a"), Fault.ERROR_BEFORE) == Seen({"a": 1}, 2, 0, State(0, 0, ("other", "a")))


def test_what_dropped_out_is_not_reported_as_enqueued_by_a_shorter_try_that_begins_the_same(scene: Scene) -> None:
    # Both entries are tried and nothing happens; the second is too late then; the first alone happens, unheard.
    scene.during_pause = partial(let_pass, scene)
    seen = scene.see(lambda: scene.enqueue("a", "b", until=1.0), Fault.ERROR_BEFORE, Fault.ERROR_AFTER)

    assert seen == Seen({"a": 0}, 2, 0, State(0, 0, ("a",)))


def test_what_dropped_out_is_reported_as_enqueued_where_the_longer_try_happened(scene: Scene) -> None:
    scene.during_pause = partial(let_pass, scene)
    seen = scene.see(lambda: scene.enqueue("a", "b", until=1.0), Fault.ERROR_AFTER)

    assert seen == Seen({"a": 0, "b": 1}, 1, 0, State(0, 0, ("a", "b")))


def let_pass(scene: Scene) -> None:
    scene.now += 10.0


def test_a_try_that_arrives_after_some_of_its_entries_are_late_is_recognised(fresh_name: str) -> None:
    seen = set()
    for seed in range(40):
        scene = Scene(fresh_name, seed, max_late=8)
        scene.during_pause = partial(let_pass, scene)
        answer = scene.see(partial(scene.enqueue, "a", "b", until=1.0), Fault.LATE).answer
        scene.store.settle()
        assert answer == {location: place for place, location in enumerate(scene.state().locations)}, seed
        seen.add(scene.state().locations)

    assert seen == {("a", "b"), ("a",)}


def test_what_is_too_late_is_never_written_whenever_its_time_passes(fresh_name: str) -> None:
    written = []
    for until in range(12):  # the clock goes on with each look at it
        ticks = itertools.count()
        queue = BufferQueue(MemoryStore(f"{fresh_name}-{until}"), PATH, "producer", uptime=lambda: float(next(ticks)))  # noqa: B023
        shipment = Shipment([*entries("a"), replace(entries("b")[0], deadline=float(until))])
        done = shipment.enqueue(queue)
        there = [entry.location for entry in queue.look().entries(0, 9)]
        assert list(done.sequences) == there == ["a", *(["b"] if not shipment.late else [])]
        written.append(len(there))

    assert sorted(written) == written
    assert set(written) == {1, 2}


def test_a_group_that_is_too_late_as_a_whole_writes_nothing(scene: Scene) -> None:
    seen = scene.see(lambda: scene.enqueue("a", until=0.0))

    assert seen == Seen({}, 0, 0, NOTHING)


def test_a_late_write_is_recognised_whenever_it_arrives(fresh_name: str) -> None:
    seen = set()
    for seed in range(40):
        scene = Scene(fresh_name, seed, max_late=4)
        scene.others_enqueue("z")
        one = scene.see(enqueue(scene, "a"), Fault.LATE)
        arrived = scene.store.settle()
        assert (one.answer, scene.state(), one.doubts, arrived) == ({"a": 1}, LATER, 0, 0), seed
        seen.add((one.tried, one.lost))

    # Before the re-read; after it, so that the next try loses; after the next try, and so never.
    assert seen == {(1, 0), (2, 1), (2, 0)}


def test_a_store_that_fails_four_reads_delays_an_enqueue(scene: Scene) -> None:
    seen = scene.see(enqueue(scene, "a"), *[Fault.READ_ERROR] * 4)

    assert seen == Seen({"a": 0}, 1, 0, FIRST)


def test_a_store_that_fails_five_reads_fails_an_enqueue_which_wrote_nothing(scene: Scene) -> None:
    scene.store.inject(Fault.READ_ERROR, times=5)
    with pytest.raises(StorageError):
        scene.enqueue("a")

    assert scene.state() == NOTHING


def test_an_enqueue_that_gives_up_after_its_write_happened_leaves_it_there_once(scene: Scene) -> None:
    scene.store.inject(Fault.ERROR_AFTER)
    scene.third_party = lambda: scene.store.inject(Fault.READ_ERROR, times=5)
    scene.store.inject(Fault.THIRD_PARTY_AFTER)
    with pytest.raises(StorageError):
        scene.enqueue("a")

    assert scene.state() == FIRST


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.THIRD_PARTY_BEFORE])
def test_an_enqueue_goes_on_for_as_long_as_its_entries_are_in_time(scene: Scene, fault: Fault) -> None:
    others = iter(range(100))
    scene.third_party = lambda: scene.others_enqueue(f"other-{next(others)}")

    seen = scene.see(enqueue(scene, "a"), *[fault] * 100)

    assert (seen.tried, seen.there.locations[-1], seen.there.locations.count("a")) == (101, "a", 1)
