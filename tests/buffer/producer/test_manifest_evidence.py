"""After a manifest write that did not succeed, evidence decides: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import pytest

from penstock import ObjectStore, Producer
from penstock.errors import OutcomeUnknown
from penstock.testing import Fault, FaultyStore
from tests.buffer.producer.conftest import NewGate, OpenProducer, produce_run
from tests.support.buffer_contents import MANIFEST, entries
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE

UNKNOWN = (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.LATE, Fault.APPLIED_THEN_CONFLICT)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", [*UNKNOWN, Fault.EXISTS_WHILE_ABSENT])
def test_the_first_write_of_a_manifest_survives(
    memory: ObjectStore, open_producer: OpenProducer, fault: Fault, times: int
) -> None:
    faulty = FaultyStore(memory, rates={})
    producer = open_producer(faulty, flush_size_bytes=1)
    faulty.inject(fault, operation="put_if_absent", path=MANIFEST, times=times)
    handles = [producer.produce(b"%d" % number) for number in range(3)]
    assert [handle.result(PATIENCE).sequence for handle in handles] == [0, 1, 2]
    with faulty.quiet():
        assert entries(memory) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", [*UNKNOWN, Fault.THIRD_PARTY_BEFORE, Fault.THIRD_PARTY_AFTER])
def test_a_later_write_of_a_manifest_survives(
    memory: ObjectStore, open_producer: OpenProducer, fault: Fault, times: int
) -> None:
    faulty = FaultyStore(memory, rates={})
    producer = open_producer(faulty, flush_size_bytes=1)
    producer.produce(b"0").result(PATIENCE)
    faulty.inject(fault, operation="put_if_match", path=MANIFEST, times=times)
    handles = [producer.produce(b"%d" % number) for number in range(1, 4)]
    assert [handle.result(PATIENCE).sequence for handle in handles] == [1, 2, 3]
    with faulty.quiet():
        assert entries(memory) == [b"0", b"1", b"2", b"3"]


def compete(store: ObjectStore, payload: bytes) -> None:
    """Another producer enqueues an entry."""
    with Producer(store) as other:
        other.produce(payload)


@pytest.mark.parametrize("already", [0, 1], ids=["no manifest yet", "a manifest"])
def test_losing_to_another_producer_loses_nothing(
    store: ObjectStore, open_producer: OpenProducer, already: int
) -> None:
    for _ in range(already):
        compete(store, b"before")
    hooked = HookedStore(store)
    hooked.before("write manifest", lambda: compete(store, b"other"), times=2)
    handle = open_producer(hooked, flush_size_bytes=1).produce(b"mine")
    assert handle.result(PATIENCE).sequence == already + 2
    assert entries(store) == [b"before"] * already + [b"other", b"other", b"mine"]
    assert hooked.count("write manifest") == 3


def test_a_run_whose_reply_was_lost_is_found_whole(
    store: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    def lose_the_reply() -> None:
        compete(store, b"after")
        raise OutcomeUnknown("the reply was lost")

    hooked = HookedStore(store)
    hooked.after("write manifest", lose_the_reply, times=1)
    handles = produce_run(hooked, open_producer, new_gate(), 2)
    assert [handle.result(PATIENCE).sequence for handle in handles] == [0, 1]
    assert entries(store) == [b"0", b"1", b"after"]


def test_a_read_that_fails_now_and_then_fails_no_handle(store: ObjectStore, open_producer: OpenProducer) -> None:
    faulty = FaultyStore(store, rates={})
    producer = open_producer(faulty, flush_size_bytes=1)
    faulty.inject(Fault.READ_ERROR, operation="get", path=MANIFEST, times=2)
    assert producer.produce(b"x").result(PATIENCE).sequence == 0


@pytest.mark.parametrize("seed", range(5))
def test_under_every_fault_what_is_acknowledged_is_there_once_and_in_order(
    memory: ObjectStore, open_producer: OpenProducer, seed: int
) -> None:
    faulty = FaultyStore(memory, seed)
    producer = open_producer(faulty, flush_size_bytes=1)
    handles = {}
    for number in range(60):
        handles[b"%d" % number] = producer.produce(b"%d" % number)
    failed = set()
    for payload, handle in handles.items():
        try:
            handle.result(PATIENCE)
        except OutcomeUnknown:  # of its data object, which is not tried again
            failed.add(payload)
    with faulty.quiet():
        assert entries(memory) == [payload for payload in handles if payload not in failed]
    assert len(failed) < 30
