"""The queue of version 2: enqueues with evidence, groups, writers, and what each write costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock import Consumer, ConsumerConfig, Producer
from penstock.buffer.groups import Groups, Writers
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Enqueued, Start, Transaction, Unwritten, Writer
from penstock.buffer.manifest.v2.head import Head, decode_head, encode_head
from penstock.errors import Fenced, InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.manifest.samples import (
    FOLDER,
    MANIFEST,
    Counted,
    claim,
    head_of,
    locations,
    new,
    queue_on,
    writer,
)
from tests.support.enqueuing import enqueue
from tests.support.hooked_store import HookedStore

MANIFESTS = ["native"]
LOST_REPLIES = (Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT)
EVERY_KIND = (*LOST_REPLIES, Fault.ERROR_BEFORE, Fault.LATE, Fault.THIRD_PARTY_BEFORE, Fault.THIRD_PARTY_AFTER)


@pytest.fixture
def counted(fresh_name: str) -> Counted:
    return Counted(fresh_name)


def set_head(store: ObjectStore, change: Callable[[Head], Head]) -> None:
    found = store.get(MANIFEST)
    store.put_if_match(MANIFEST, encode_head(change(decode_head(found.data))), found.version)


def consume_all(store: ObjectStore, group: str = "default") -> None:
    """A consumer takes over, and acks everything."""
    queue = queue_on(store, group=group)
    view = queue.claim("earliest", None, allow_gap=False)
    queue.dequeue(view.epoch, view.next_sequence - 1)


# What an enqueue says and costs.


def test_entries_get_the_next_sequences_all_in_one_write(counted: Counted) -> None:
    queue = queue_on(counted)
    assert enqueue(queue, new(3)) == Enqueued(True, 0, {"data/0": 0, "data/1": 1, "data/2": 2})
    assert enqueue(queue, new(1, 3)) == Enqueued(True, 3, {"data/3": 3})
    assert counted.calls["compare and set"] == 2
    assert locations(counted) == [f"data/{number}" for number in range(4)]


@pytest.mark.parametrize("count", [1, 255, 256, 257, 5_000])
def test_any_number_of_entries_is_one_write_of_the_head(counted: Counted, count: int) -> None:
    done = enqueue(queue_on(counted), new(count))
    assert (done.appended, done.first_sequence, len(done.sequences)) == (True, 0, count)
    assert (counted.calls["compare and set"], head_of(counted).revision) == (1, 1)
    assert locations(counted) == [f"data/{number}" for number in range(count)]


def test_the_256th_entry_is_in_the_tail_and_the_257th_seals_it(counted: Counted) -> None:
    queue = queue_on(counted)
    enqueue(queue, new(200))
    enqueue(queue, new(56, 200))
    assert (len(head_of(counted).tail), head_of(counted).segments) == (256, ())
    enqueue(queue, new(1, 256))
    (reference,) = head_of(counted).segments
    assert (reference.first, reference.last, reference.records, reference.size) == (0, 255, 512, 2560)
    assert [entry.sequence for entry in head_of(counted).tail] == [256]


def test_what_is_added_counts_when_the_tail_is_measured_in_bytes(counted: Counted) -> None:
    queue = queue_on(counted)
    enqueue(queue, new(1, 0, bytes(30_000)))
    enqueue(queue, new(1, 1, bytes(2_000)))
    assert (len(head_of(counted).tail), len(head_of(counted).segments)) == (2, 0)
    enqueue(queue, new(1, 2, bytes(2_000)))
    assert ([entry.sequence for entry in head_of(counted).tail], len(head_of(counted).segments)) == ([2], 1)
    enqueue(queue, new(1, 3, bytes(40_000)))
    assert ([entry.sequence for entry in head_of(counted).tail], len(head_of(counted).segments)) == ([], 2)


def test_what_is_too_long_for_a_tail_takes_one_write_of_a_segment(counted: Counted) -> None:
    """Between the head that was read and the one that is written: the longer that takes, the more others are first."""
    enqueue(queue_on(counted), new(10))
    counted.clear()
    enqueue(queue_on(counted), new(300, 10))
    assert (counted.calls["get"], counted.calls["put"], counted.calls["compare and set"]) == (1, 1, 1)
    assert [(one.first, one.last) for one in head_of(counted).segments] == [(0, 309)]


def test_a_producer_that_kept_the_head_writes_without_reading_first(counted: Counted) -> None:
    queue = queue_on(counted)
    enqueue(queue, new(1))
    counted.clear()
    enqueue(queue, new(1, 1))
    assert counted.calls == {"compare and set": 1}


def test_one_that_lost_reads_once_and_writes_again(counted: Counted) -> None:
    queue, other = queue_on(counted), queue_on(counted)
    enqueue(queue, new(1))
    enqueue(other, new(1, 1))
    counted.clear()
    assert enqueue(queue, new(1, 2)).first_sequence == 2
    assert counted.calls == {"compare and set": 2, "get": 1}


def test_a_segment_is_there_before_the_head_that_names_it(counted: Counted) -> None:
    class Refusing(Counted):
        def put(self, path: str, data: object) -> str:
            raise StorageError("no space for segments")

    enqueue(queue_on(counted), new(256))
    before = head_of(counted)
    with pytest.raises(StorageError, match="no space"):
        enqueue(queue_on(Refusing(counted.url.removeprefix("memory://"))), new(1, 256))
    assert head_of(counted) == before


# Transactions.


def test_a_transaction_that_comes_again_is_success_and_appends_nothing(counted: Counted) -> None:
    assert enqueue(queue_on(counted), new(2), Transaction("query", 7)).appended
    before = head_of(counted)
    again = enqueue(queue_on(counted), new(2, 10), Transaction("query", 7))
    assert again == Enqueued(False, 0, was_there=True)
    assert head_of(counted) == before


def test_a_transaction_before_the_last_is_refused_and_appends_nothing(counted: Counted) -> None:
    enqueue(queue_on(counted), new(2), Transaction("query", 7))
    before = head_of(counted)
    with pytest.raises(InvalidInput, match="'query' comes with transaction 3, and 7 is its last one"):
        enqueue(queue_on(counted), new(2, 20), Transaction("query", 3))
    assert head_of(counted) == before


def test_a_later_transaction_of_the_same_writer_is_appended(counted: Counted) -> None:
    enqueue(queue_on(counted), new(1), Transaction("query", 0))
    assert enqueue(queue_on(counted), new(1, 1), Transaction("query", 1)).appended
    assert enqueue(queue_on(counted), new(1, 2), Transaction("another", 0)).appended
    assert len(locations(counted)) == 3
    assert {name: one.transaction for name, one in head_of(counted).writers.items()} == {"query": 1, "another": 0}


def test_a_transaction_that_was_dequeued_and_collected_is_known_all_the_same(counted: Counted) -> None:
    enqueue(queue_on(counted), new(300), Transaction("query", 7))
    consume_all(counted)
    again = enqueue(queue_on(counted), new(300, 1_000), Transaction("query", 7))
    assert (again.appended, again.was_there) == (False, True)
    assert (head_of(counted).next_sequence, locations(counted)) == (300, [])


def test_entries_that_are_too_late_are_reported_and_nothing_is_written(counted: Counted) -> None:
    queue = queue_on(counted)
    late = replace(new(1, 1)[0], deadline=-1.0)
    done = queue.enqueue([*new(1), late, *new(1, 2)])
    assert isinstance(done, Unwritten)
    assert (done.late, done.closed) == ((late,), ())
    assert counted.calls["compare and set"] == 0
    assert enqueue(queue, []) == Enqueued(appended=False)


def test_data_below_the_floor_is_reported_and_not_named(counted: Counted) -> None:
    enqueue(queue_on(counted), new(1))
    below = replace(new(1)[0], location="ingest/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch")
    set_head(counted, lambda head: head.changed(floor=1_469_922_850_260, floor_set_at=1))
    before, queue = head_of(counted), queue_on(counted)
    done = queue.enqueue([below, *new(1, 5)])
    assert isinstance(done, Unwritten)
    assert (done.closed, done.floor, done.late) == ((below,), 1_469_922_850_260, ())
    assert head_of(counted) == before
    again = queue.enqueue([replace(below, location="ingest/again"), *new(1, 5)], attempts=done.attempts)
    assert again == Enqueued(True, 1, {"ingest/again": 1, "data/5": 2})


# Lost replies.


@pytest.mark.parametrize("by", [None, Transaction("query", 4)], ids=["producer", "query"])
@pytest.mark.parametrize("is_dequeued", [False, True], ids=["queued", "dequeued"])
@pytest.mark.parametrize("backlog", [0, 256], ids=["small", "sealing"])
@pytest.mark.parametrize("fault", LOST_REPLIES)
def test_after_a_lost_reply_nothing_is_appended_twice(
    counted: Counted, fault: Fault, by: Transaction | None, is_dequeued: bool, backlog: int
) -> None:
    enqueue(queue_on(counted), new(1 + backlog))

    def meanwhile(_: ObjectStore, path: str) -> None:
        if is_dequeued:
            consume_all(counted)
        enqueue(queue_on(counted), new(1, 900))

    faulty = FaultyStore(counted, rates={}, third_party=meanwhile, sleep=lambda _: None)
    faulty.inject(fault, path=MANIFEST)
    faulty.inject(Fault.THIRD_PARTY_AFTER, path=MANIFEST)
    done = enqueue(queue_on(faulty), new(2, 500), by)
    assert not faulty.planned
    first = 1 + backlog
    assert head_of(counted).next_sequence == first + 3
    assert done.first_sequence == first
    if is_dequeued and by is not None:
        assert done.was_there  # a writer of the same name may have written it: there is no evidence left
    else:
        assert done == Enqueued(True, first, {"data/500": first, "data/501": first + 1})


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("fault", EVERY_KIND)
def test_whatever_a_write_meets_its_entries_are_there_once(counted: Counted, fault: Fault, times: int) -> None:
    enqueue(queue_on(counted), new(1))
    others = itertools.count(100)
    faulty = FaultyStore(
        counted,
        rates={},
        third_party=lambda *_: enqueue(queue_on(counted), new(1, next(others))),
        sleep=lambda _: None,
        max_late=2,
    )
    queue = queue_on(faulty)
    faulty.inject(fault, path=MANIFEST, times=times)
    sequences: dict[str, int] = {}
    for number in range(1, 8):
        sequences.update(enqueue(queue, new(1, number)).sequences)
    faulty.settle()
    found = locations(counted)
    assert {location: found.index(location) for location in sequences} == sequences
    assert len(found) == len(set(found))
    assert [one for one in found if one in sequences] == [f"data/{number}" for number in range(1, 8)]


@pytest.mark.parametrize("fault", LOST_REPLIES)
def test_after_a_lost_reply_some_of_the_entries_may_be_too_late_and_are_there(counted: Counted, fault: Fault) -> None:
    enqueue(queue_on(counted), new(1))
    now = [0.0]
    hooked = HookedStore(counted)
    hooked.after("write manifest", lambda: now.append(9.0), times=1)
    faulty = FaultyStore(hooked, rates={}, sleep=lambda _: None)
    faulty.inject(fault, path=MANIFEST)
    queue = BufferQueue(faulty, MANIFEST, "producer", sleep=lambda _: None, uptime=lambda: now[-1])
    first, second = new(2, 1)
    assert enqueue(queue, [first, replace(second, deadline=5.0)]).sequences == {"data/1": 1, "data/2": 2}
    assert locations(counted) == ["data/0", "data/1", "data/2"]


def test_a_segment_whose_sealer_lost_its_write_stays_until_a_collector_comes(counted: Counted) -> None:
    queue = queue_on(counted)
    enqueue(queue, new(256))
    enqueue(queue_on(counted), new(1, 256))
    enqueue(queue, new(1, 257))
    there = [meta.path for meta in counted.list_objects(FOLDER)]
    assert len(there) == 2
    (reference,) = head_of(counted).segments
    assert f"{FOLDER}/{reference.name}" in there


# Who is remembered.


def test_the_latest_thousand_random_names_are_remembered_and_named_ones_stay(counted: Counted) -> None:
    enqueue(queue_on(counted), new(1), Transaction("query", 0))
    writers = {f"w{number}": writer(2 + number) for number in range(1_000)}
    set_head(counted, lambda head: replaced(head, {**head.writers, **writers}, 1_001))
    enqueue(queue_on(counted), new(1, 1), Transaction("new", 0, is_named=False))
    head = head_of(counted)
    assert (len(head.writers), "w0" in head.writers, "query" in head.writers) == (1_001, False, True)
    assert head.forgotten_through == 2
    enqueue(
        queue_on(counted), new(1, 2), Transaction("w1", 1, is_named=False)
    )  # it has written: it is not the oldest now
    enqueue(queue_on(counted), new(1, 3), Transaction("newer", 0, is_named=False))
    head = head_of(counted)
    assert ("w1" in head.writers, "w2" in head.writers, head.forgotten_through) == (True, False, 4)
    assert list(head.writers)[-2:] == ["w1", "newer"]


def replaced(head: Head, writers: dict[str, Writer], revision: int) -> Head:
    later: Head = head.changed(writers=writers)
    while later.revision < revision:
        later = later.changed()
    return later


@pytest.mark.parametrize(("forgotten_past_base", "is_known"), [(0, True), (1, False), (5, False)])
def test_a_producer_in_doubt_whose_name_was_forgotten_fails_only_if_it_may_have_been_it(
    counted: Counted, forgotten_past_base: int, is_known: bool
) -> None:
    enqueue(queue_on(counted), new(1))
    base = head_of(counted).revision

    def forget(_: ObjectStore, path: str) -> None:
        # One more write, by any writer; and writers are forgotten up to a revision.
        forgotten = base + forgotten_past_base
        set_head(counted, lambda head: replaced(head, {}, base + 6).changed(forgotten_through=forgotten))

    faulty = FaultyStore(counted, rates={}, third_party=forget, sleep=lambda _: None)
    faulty.inject(Fault.THIRD_PARTY_BEFORE, path=MANIFEST)
    queue = queue_on(faulty)
    if is_known:
        assert enqueue(queue, new(1, 1)).sequences == {"data/1": 1}
    else:
        with pytest.raises(OutcomeUnknown, match="has forgotten its writer"):
            enqueue(queue, new(1, 1))
        assert locations(counted) == ["data/0"]


def test_a_producer_whose_name_was_forgotten_between_its_writes_goes_on(counted: Counted) -> None:
    queue = queue_on(counted)
    enqueue(queue, new(1))
    set_head(counted, lambda head: head.changed(writers={}, forgotten_through=head.revision + 1))
    with pytest.raises(OutcomeUnknown):  # its first try was based on what it kept: it lost, and cannot know why
        enqueue(queue, new(1, 1))
    assert enqueue(queue, new(1, 2)).sequences == {"data/2": 1}


@pytest.mark.parametrize("fault", [None, *LOST_REPLIES])
def test_a_writer_that_is_dropped_is_forgotten_and_what_it_sends_again_is_appended(
    counted: Counted, fault: Fault | None
) -> None:
    enqueue(queue_on(counted), new(1), Transaction("query", 7))
    faulty = FaultyStore(counted, rates={}, sleep=lambda _: None)
    if fault is not None:
        faulty.inject(fault, path=MANIFEST)
    Writers(faulty).drop("query")
    assert Writers(counted).list() == {}
    assert head_of(counted).forgotten_through == 1
    assert enqueue(queue_on(counted), new(1, 1), Transaction("query", 7)).appended
    with pytest.raises(InvalidInput, match="no writer 'typo'"):
        Writers(counted).drop("typo")


def test_writers_are_listed_with_what_each_did_last(counted: Counted) -> None:
    enqueue(queue_on(counted), new(1), Transaction("query", 7))
    enqueue(queue_on(counted), new(2, 1), Transaction("other", 1))
    enqueue(queue_on(counted), new(1, 3), Transaction("query", 8))
    found = Writers(counted).list()
    assert [(name, one.transaction, one.first_sequence, one.revision) for name, one in found.items()] == [
        ("other", 1, 1, 2),
        ("query", 8, 3, 3),
    ]


# Groups.


def acked(store: ObjectStore) -> dict[str, tuple[int, int]]:
    return {name: (group.epoch, group.acked_through) for name, group in head_of(store).groups.items()}


@pytest.mark.parametrize("fault", [None, *LOST_REPLIES, Fault.ERROR_BEFORE])
@pytest.mark.parametrize(("start", "begins"), [("earliest", -1), ("latest", 2), (1, 0)])
def test_a_group_is_created_once_whatever_its_write_meets(
    counted: Counted, fault: Fault | None, start: Start, begins: int
) -> None:
    enqueue(queue_on(counted), new(3))
    faulty = FaultyStore(counted, rates={}, sleep=lambda _: None)
    if fault is not None:
        faulty.inject(fault, path=MANIFEST)
    Groups(faulty).create("audit", start)
    assert acked(counted) == {"default": (0, -1), "audit": (1, begins)}
    with pytest.raises(InvalidInput, match="already"):
        Groups(counted).create("audit")


@pytest.mark.parametrize("fault", [None, *LOST_REPLIES])
def test_a_reset_gives_one_epoch_and_fences(counted: Counted, fault: Fault | None) -> None:
    enqueue(queue_on(counted), new(3))
    reading = queue_on(counted)
    epoch = claim(reading)
    faulty = FaultyStore(counted, rates={}, sleep=lambda _: None)
    if fault is not None:
        faulty.inject(fault, path=MANIFEST)
    Groups(faulty).reset("default", 2)
    assert acked(counted) == {"default": (2, 1)}
    calls: list[Callable[[], object]] = [lambda: reading.read(epoch), lambda: reading.dequeue(epoch, 0)]
    for call in calls:
        with pytest.raises(Fenced, match="epoch is 2"):
            call()
    with pytest.raises(InvalidInput, match="no group 'typo'"):
        Groups(counted).reset("typo", "latest")


@pytest.mark.parametrize("fault", [None, *LOST_REPLIES])
def test_a_group_that_is_dropped_is_gone_and_never_made_again_by_its_consumer(
    counted: Counted, fault: Fault | None
) -> None:
    enqueue(queue_on(counted), new(3))
    reading = queue_on(counted, group="audit")
    epoch = claim(reading)
    faulty = FaultyStore(counted, rates={}, sleep=lambda _: None)
    if fault is not None:
        faulty.inject(fault, path=MANIFEST)
    Groups(faulty).drop("audit")
    calls: list[Callable[[], object]] = [lambda: reading.read(epoch), lambda: reading.dequeue(epoch, 0)]
    for call in calls:
        with pytest.raises(Fenced, match="is gone"):
            call()
    assert acked(counted) == {"default": (0, -1)}


def test_a_group_that_comes_again_never_meets_an_old_epoch(counted: Counted) -> None:
    enqueue(queue_on(counted), new(3))
    reading = queue_on(counted, group="audit")
    epoch = claim(reading)
    Groups(counted).drop("audit")
    Groups(counted).create("audit")
    with pytest.raises(Fenced):
        reading.dequeue(epoch, 2)
    assert acked(counted)["audit"] == (2, -1)


@pytest.mark.parametrize("fault", LOST_REPLIES)
def test_a_group_that_was_created_and_claimed_meanwhile_is_not_taken_from_its_consumer(
    counted: Counted, fault: Fault
) -> None:
    enqueue(queue_on(counted), new(3))

    def claimed(*_: object) -> None:
        queue_on(counted, group="audit").claim("earliest", None, allow_gap=False)

    faulty = FaultyStore(counted, rates={}, third_party=claimed, sleep=lambda _: None)
    faulty.inject(fault, path=MANIFEST)
    faulty.inject(Fault.THIRD_PARTY_AFTER, path=MANIFEST)
    with pytest.raises(OutcomeUnknown, match="groups list"):  # it may have been another administrator's
        Groups(faulty).create("audit", "latest")
    assert acked(counted)["audit"] == (2, 2)


@pytest.mark.parametrize("fault", LOST_REPLIES)
@pytest.mark.parametrize("command", ["drop", "reset"])
def test_a_group_that_was_taken_over_after_a_lost_reply_is_not_changed_twice(
    counted: Counted, fault: Fault, command: str
) -> None:
    enqueue(queue_on(counted), new(3))
    Groups(counted).create("audit")

    def taken_over(*_: object) -> None:
        consume_all(counted, "audit")

    faulty = FaultyStore(counted, rates={}, third_party=taken_over, sleep=lambda _: None)
    faulty.inject(fault, path=MANIFEST)
    faulty.inject(Fault.THIRD_PARTY_AFTER, path=MANIFEST)
    change = Groups(faulty)
    with pytest.raises(OutcomeUnknown, match="groups list"):
        change.drop("audit") if command == "drop" else change.reset("audit", "earliest")
    assert acked(counted)["audit"][1] == 2


def test_what_is_done_to_a_group_of_a_buffer_that_is_not_there_makes_none(counted: Counted) -> None:
    calls: list[Callable[[], object]] = [
        lambda: Groups(counted).drop("default", force=True),
        lambda: Groups(counted).reset("default", "latest"),
        lambda: Writers(counted).drop("anybody"),
    ]
    for call in calls:
        with pytest.raises(NotFound, match="there is no manifest"):
            call()
    assert not list(counted.list_objects())


def test_who_was_fenced_by_a_reset_hears_of_it(counted: Counted) -> None:
    enqueue(queue_on(counted), new(3))
    reading = queue_on(counted)
    epoch = claim(reading)
    Groups(counted).reset("default", "earliest")
    with pytest.raises(Fenced, match=r"taken over the group 'default' of .*, by a reset, at 2"):
        reading.read(epoch)


def test_the_last_group_needs_force_and_then_nothing_leaves(counted: Counted) -> None:
    enqueue(queue_on(counted), new(3))
    with pytest.raises(InvalidInput, match="'default' is the last group"):
        Groups(counted).drop("default")
    Groups(counted).drop("default", force=True)
    assert (Groups(counted).list(), len(locations(counted))) == ([], 3)
    enqueue(queue_on(counted), new(1, 3))
    Groups(counted).create("late")
    assert [(one.name, one.lag) for one in Groups(counted).list()] == [("late", 4)]


def test_groups_are_listed_with_their_lag(counted: Counted) -> None:
    enqueue(queue_on(counted), new(5))
    Groups(counted).create("audit", 2)
    consume_all(counted)
    found = Groups(counted).list()
    assert [(one.name, one.acked_through, one.lag) for one in found] == [("default", 4, 0), ("audit", 1, 3)]
    assert found[1].owner
    assert found[1].taken_at > 0


def test_an_entry_leaves_when_every_group_is_past_it(counted: Counted) -> None:
    enqueue(queue_on(counted), new(5))
    Groups(counted).create("audit")
    consume_all(counted)
    assert len(locations(counted)) == 5
    queue = queue_on(counted, group="audit")
    epoch = claim(queue)
    queue.dequeue(epoch, 2)
    assert locations(counted) == ["data/3", "data/4"]
    Groups(counted).drop("audit")
    assert locations(counted) == []


@pytest.mark.parametrize("fault", [*LOST_REPLIES, Fault.ERROR_BEFORE, Fault.LATE])
def test_an_ack_is_there_whatever_its_write_meets(counted: Counted, fault: Fault) -> None:
    enqueue(queue_on(counted), new(5))
    faulty = FaultyStore(counted, rates={}, sleep=lambda _: None)
    queue = queue_on(faulty)
    epoch = claim(queue)
    faulty.inject(fault, path=MANIFEST, operation="put_if_match")
    assert queue.dequeue(epoch, 2).first_sequence == 3
    assert acked(counted)["default"] == (1, 2)


@pytest.mark.parametrize("spoil", ["gone", "garbage"])
def test_an_ack_into_a_segment_that_cannot_be_read_still_works(counted: Counted, spoil: str) -> None:
    enqueue(queue_on(counted), new(300))
    (reference,) = head_of(counted).segments
    path = f"{FOLDER}/{reference.name}"
    if spoil == "gone":
        counted.delete([path])
    else:
        counted.put(path, b"garbage")
    queue = queue_on(counted)
    epoch = claim(queue)
    assert queue.dequeue(epoch, 99).first_sequence == 100
    assert acked(counted)["default"] == (1, 99)
    assert head_of(counted).segments == (reference,)  # as wide as it was
    queue.dequeue(epoch, 299)
    assert (head_of(counted).segments, head_of(counted).first_sequence) == ((), 300)


def test_an_ack_into_a_segment_narrows_its_window(counted: Counted) -> None:
    enqueue(queue_on(counted), new(300))
    queue = queue_on(counted)
    epoch = claim(queue)
    queue.dequeue(epoch, 99)
    (reference,) = head_of(counted).segments
    assert (reference.first, reference.last, reference.records, reference.size) == (100, 299, 400, 2_000)
    assert len(list(counted.list_objects(FOLDER))) == 1


def test_a_consumer_reads_a_segment_that_is_gone_as_not_found_and_names_it(counted: Counted) -> None:
    enqueue(queue_on(counted), new(300))
    (reference,) = head_of(counted).segments
    counted.delete([f"{FOLDER}/{reference.name}"])
    with pytest.raises(NotFound, match=reference.name):
        queue_on(counted).look().entries(0, 1)


def test_two_groups_read_everything_each_at_its_own_pace(counted: Counted) -> None:
    with Producer(counted) as producer:
        for number in range(5):
            producer.produce(b"%d" % number).result()
    with (
        Consumer(counted, ConsumerConfig(gc=False)) as one,
        Consumer(counted, ConsumerConfig(gc=False, group="audit")) as other,
    ):
        assert [value for batch in one for value in batch.entries] == [b"0", b"1", b"2", b"3", b"4"]
        one.ack_through(4)
        assert [value for batch in other for value in batch.entries] == [b"0", b"1", b"2", b"3", b"4"]


def test_one_queue_at_a_time_counts_its_own_transactions(counted: Counted) -> None:
    queue = queue_on(counted)
    for number in range(3):
        enqueue(queue, new(1, number))
    (only,) = head_of(counted).writers.values()
    assert (only.transaction, only.first_sequence, only.revision, only.is_named) == (2, 2, 3, False)
