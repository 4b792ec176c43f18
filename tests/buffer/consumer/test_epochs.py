"""Every consumer has an epoch that no other has or had: only a success reply grants one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

from penstock.buffer import Consumer
from penstock.errors import Conflict, Fenced, OutcomeUnknown, StorageError
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, PATIENCE, consume, epoch, kept, queue_up, sequences

LOST = [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT, Fault.LATE]


def is_fenced(consumer: Consumer) -> bool:
    try:
        consumer.flush()
    except Fenced:
        return True
    return False


def test_the_first_consumer_gets_the_epoch_1_where_a_producer_created_the_manifest(store: ObjectStore) -> None:
    queue_up(store, 1)
    assert epoch(store) == 0
    consume(store)
    assert epoch(store) == 1


def test_each_new_consumer_gets_the_next_epoch(store: ObjectStore) -> None:
    found = []
    for _ in range(3):
        consume(store)
        found.append(epoch(store))
    assert found == [1, 2, 3]


def test_a_claim_is_one_read_and_one_write_and_the_first_one_checks_whether_the_manifest_was_deleted(
    store: ObjectStore,
) -> None:
    intercepted = InterceptedStore(store)
    consume(intercepted)
    consume(intercepted)
    assert intercepted.calls == [
        ("get", MANIFEST),
        ("get", "ingest/.owner"),
        ("put_if_absent", MANIFEST),
        ("get", MANIFEST),
        ("put_if_match", MANIFEST),
    ]


def test_a_claim_keeps_the_entries(store: ObjectStore) -> None:
    queue_up(store, 3)
    consume(store)
    assert kept(store) == [0, 1, 2]


# A reply that is lost


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("entries", [0, 3])
def test_a_claim_whose_reply_is_lost_ends_with_an_epoch_of_its_own(
    memory: ObjectStore, fault: Fault, entries: int
) -> None:
    queue_up(memory, entries)
    old = consume(memory)
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, path=MANIFEST)
    new = consume(faulty)
    faulty.settle()
    assert not faulty.planned
    assert (is_fenced(old), is_fenced(new)) == (True, False)


@pytest.mark.parametrize("fault", [*LOST, Fault.EXISTS_WHILE_ABSENT])
def test_a_claim_whose_reply_is_lost_creates_the_manifest(memory: ObjectStore, fault: Fault) -> None:
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, operation="put_if_absent", path=MANIFEST)
    consumer = consume(faulty)
    faulty.settle()
    assert not faulty.planned
    assert not is_fenced(consumer)


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT])
def test_an_epoch_that_was_written_without_a_success_reply_is_not_used(memory: ObjectStore, fault: Fault) -> None:
    queue_up(memory, 1)
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    consume(faulty)
    assert epoch(memory) == 2


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("entries", [0, 1])
def test_a_claim_whose_reply_is_lost_does_not_use_an_epoch_that_a_rival_got_meanwhile(
    memory: ObjectStore, fault: Fault, entries: int
) -> None:
    # The rival claims between the failed write and the read that follows: where that write did not take effect, the
    # manifest then has the very epoch that was tried.
    queue_up(memory, entries)
    rivals: list[Consumer] = []
    faulty = FaultyStore(memory, rates={}, third_party=lambda store, _: rivals.append(consume(store)))
    faulty.inject(fault, path=MANIFEST)
    faulty.inject(Fault.THIRD_PARTY_AFTER, path=MANIFEST)
    consumer = consume(faulty)
    faulty.settle()
    assert not faulty.planned
    (rival,) = rivals
    assert (is_fenced(rival), is_fenced(consumer)) == (True, False)


@pytest.mark.parametrize("entries", [0, 1])
def test_a_claim_that_loses_to_a_rival_takes_the_epoch_after_the_rivals(store: ObjectStore, entries: int) -> None:
    if entries:
        queue_up(store, entries)
    rivals: list[Consumer] = []
    intercepted = InterceptedStore(store)
    operation = "put_if_match" if entries else "put_if_absent"
    intercepted.before(operation, lambda: rivals.append(consume(store)), path=MANIFEST)
    consumer = consume(intercepted)
    assert epoch(store) == 2
    assert (is_fenced(rivals[0]), is_fenced(consumer)) == (True, False)


def test_a_late_claim_does_not_take_the_queue_back(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    # The reply is lost, and the request stays on its way until after the claim that followed it.
    slow = FaultyStore(memory, rates={}, max_late=1000)
    slow.inject(Fault.LATE, operation="put_if_match", path=MANIFEST)
    consumer = consume(slow)
    newest = consume(memory)
    slow.settle()
    assert (is_fenced(consumer), is_fenced(newest)) == (True, False)


def test_of_many_consumers_at_once_exactly_one_is_not_fenced(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    faulty = FaultyStore(memory, seed=11, sleep=lambda _: None)
    ready = threading.Barrier(4)

    def claim(_: int) -> list[Consumer]:
        ready.wait(PATIENCE)
        return [consume(faulty) for _ in range(5)]

    with ThreadPoolExecutor(4) as threads:
        consumers = [consumer for some in threads.map(claim, range(4)) for consumer in some]
    with faulty.quiet():
        assert [is_fenced(consumer) for consumer in consumers].count(False) == 1


def test_of_many_consumers_no_two_hold_one_epoch(memory: ObjectStore) -> None:
    faulty = FaultyStore(memory, seed=5, sleep=lambda _: None)
    with ThreadPoolExecutor(4) as threads:
        shown = list(threads.map(lambda _: repr(consume(faulty)), range(24)))
    assert len(set(shown)) == 24


# A store that does not reply


def test_a_claim_reads_again_where_a_read_fails(store: ObjectStore) -> None:
    queue_up(store, 2)
    intercepted = InterceptedStore(store)
    intercepted.fail("get", StorageError("the store is down"), path=MANIFEST, times=4)
    assert sequences(consume(intercepted).next_descriptors(2)) == [0, 1]
    assert intercepted.is_done


def test_a_claim_gives_up_where_no_read_succeeds(memory: ObjectStore) -> None:
    intercepted = InterceptedStore(memory)
    intercepted.fail("get", StorageError("the store is down"), path=MANIFEST, times=1000)
    with pytest.raises(StorageError, match="the store is down"):
        consume(intercepted)
    assert intercepted.count("put_if_absent", "put_if_match") == 0


def test_a_claim_that_never_gets_a_reply_fails_in_the_end(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    old = consume(memory)
    intercepted = InterceptedStore(memory)
    intercepted.fail("put_if_match", OutcomeUnknown("no reply"), path=MANIFEST, times=1000)
    with pytest.raises(OutcomeUnknown, match="no reply"):
        consume(intercepted)
    assert not is_fenced(old)


def test_a_claim_that_loses_again_and_again_goes_on(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    intercepted = InterceptedStore(memory)
    # A lost compare-and-set is a reply: the one that is lost after that is the first.
    replies = iter([*[Conflict("another was first")] * 35, OutcomeUnknown("no reply")])

    def refuse() -> NoReturn:
        raise next(replies)

    intercepted.before("put_if_match", refuse, path=MANIFEST, times=36)
    assert not is_fenced(consume(intercepted))
    assert intercepted.is_done


def test_a_dequeue_that_never_gets_a_reply_fails_in_the_end(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    consumer.next_descriptors(1)
    intercepted.fail("put_if_match", OutcomeUnknown("no reply"), path=MANIFEST, times=1000)
    with pytest.raises(OutcomeUnknown, match="no reply"):
        consumer.ack_through(0)
    assert consumer.last_acked_sequence is None
