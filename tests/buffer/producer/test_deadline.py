"""`enqueue_deadline`: a batch that is not enqueued in time fails, because the collector relies on that."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

from penstock import ObjectStore, Producer
from penstock.buffer.producer.producer import seconds_since_boot
from penstock.errors import OutcomeUnknown, StorageError
from tests.buffer.producer.conftest import NewGate, OpenProducer
from tests.support.buffer_contents import data_objects, entries, queue
from tests.support.hooked_store import HookedStore, Step
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Bell


class Uptime:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def test_what_is_enqueued_in_time_is_enqueued(store: ObjectStore, open_producer: OpenProducer) -> None:
    uptime, hooked = Uptime(), HookedStore(store)
    hooked.before("write data", lambda: uptime.pass_by(33))
    hooked.after("read manifest", lambda: uptime.pass_by(33), skip=1, times=1)  # not when the producer is opened
    hooked.before("write manifest", lambda: uptime.pass_by(33))  # the last check is before this
    producer = open_producer(hooked, uptime=uptime, enqueue_deadline=67, flush_size_bytes=1)
    assert producer.produce(b"x").result(PATIENCE).sequence == 0


# The manifest is read when the producer is opened, and again for the batch.
@pytest.mark.parametrize(("step", "skip"), [("write owner", 0), ("write data", 0), ("read manifest", 1)])
def test_a_batch_that_any_step_makes_late_is_not_enqueued_and_the_next_one_is(
    store: ObjectStore, open_producer: OpenProducer, step: Step, skip: int
) -> None:
    uptime, hooked = Uptime(), HookedStore(store)
    hooked.after(step, lambda: uptime.pass_by(101), skip=skip, times=1)
    producer = open_producer(hooked, uptime=uptime, enqueue_deadline=100, flush_size_bytes=1)
    with pytest.raises(StorageError, match=r"enqueue_deadline = 100 s"):
        producer.produce(b"late").result(PATIENCE)
    assert (queue(store), hooked.count("write manifest")) == ((), 0)
    assert len(data_objects(store)) == 1  # which a collector deletes
    assert producer.produce(b"in time").result(PATIENCE).sequence == 0
    assert entries(store) == [b"in time"]


def test_the_time_that_a_batch_waits_for_its_first_writer_does_not_count(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    uptime = Uptime()
    producer = open_producer(memory, uptime=uptime, enqueue_deadline=100)
    handle = producer.produce(b"x")
    uptime.pass_by(1000)
    producer.flush()
    assert handle.result().sequence == 0


def test_the_deadline_is_checked_after_each_read_and_again_before_each_write(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    """The manifest grows between the two, and a write that begins too late is as bad as a read."""
    written = []
    for seconds in range(1, 31, 2):  # that pass with each look at the clock: so the time is up at each place once
        before = len(queue(memory))
        store, ticking = HookedStore(memory), itertools.count(0, seconds)
        producer = open_producer(store, uptime=partial(next, ticking), enqueue_deadline=60, flush_size_bytes=1)
        with suppress(OutcomeUnknown):
            producer.produce(b"perhaps late").result(PATIENCE)
        written.append(len(queue(memory)) - before)
        assert written[-1] or store.count("write manifest") == 0
    assert written == sorted(written, reverse=True)
    assert set(written) == {0, 1}


def test_the_deadline_is_checked_at_each_try(store: ObjectStore, open_producer: OpenProducer) -> None:
    uptime, hooked = Uptime(), HookedStore(store)

    def lose() -> None:
        with Producer(store) as other:
            other.produce(b"other")
        uptime.pass_by(40)

    hooked.before("write manifest", lose)
    producer = open_producer(hooked, uptime=uptime, enqueue_deadline=100, flush_size_bytes=1)
    with pytest.raises(StorageError, match="enqueue_deadline"):
        producer.produce(b"late").result(PATIENCE)
    assert hooked.count("write manifest") == 3
    assert entries(store) == [b"other"] * 3


def test_a_write_without_evidence_by_the_deadline_is_not_known_to_be_enqueued(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    uptime, store = Uptime(), HookedStore(memory)

    def lose_the_request() -> None:
        uptime.pass_by(101)
        raise OutcomeUnknown("no reply")

    store.before("write manifest", lose_the_request)
    producer = open_producer(store, uptime=uptime, enqueue_deadline=100, flush_size_bytes=1)
    with pytest.raises(OutcomeUnknown, match="enqueue_deadline"):
        producer.produce(b"x").result(PATIENCE)
    assert store.count("write manifest") == 1


@pytest.mark.parametrize("when", ["after the read", "before the write"])
def test_of_a_run_only_what_is_too_late_fails(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate, when: str
) -> None:
    uptime, store, gate, written = Uptime(), HookedStore(memory), new_gate(), Bell()
    store.before("write data", gate, times=1)
    store.after("write data", written)
    store.after("write data", lambda: uptime.pass_by(60), skip=2, times=1)  # the one at the gate, before it is enqueued
    calls = threading.local()

    def up() -> float:
        """With "before the write", let time pass between the two checks of the enqueuer."""
        calls.count = getattr(calls, "count", 0) + 1
        is_first_of_enqueuer = threading.current_thread().name.endswith("enqueuer") and calls.count == 1
        return uptime() - (60 if is_first_of_enqueuer and when == "before the write" else 0)

    producer = open_producer(store, uptime=up, enqueue_deadline=100, flush_size_bytes=1)
    late = producer.produce(b"late")
    gate.wait_for_arrival()
    uptime.pass_by(50)
    in_time = [producer.produce(b"1"), producer.produce(b"2")]
    written.wait(times=2)
    with pytest.raises(TimeoutError):
        in_time[1].result(A_WHILE)
    gate.open()
    with pytest.raises(StorageError, match="enqueue_deadline"):
        late.result(PATIENCE)
    assert [handle.result(PATIENCE).sequence for handle in in_time] == [0, 1]
    assert entries(memory) == [b"1", b"2"]
    assert store.count("write manifest") == 1


def test_the_clock_runs_during_suspend() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    asked = seconds_since_boot()
    assert before <= asked <= time.clock_gettime(time.CLOCK_BOOTTIME)
