"""One contract: what holds of a method holds of its awaitable twin."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from penstock import Consumer, ConsumerConfig, ObjectStore, Producer, ProducerConfig, Record
from penstock.errors import (
    BackpressureTimeout,
    Closed,
    Fenced,
    InvalidInput,
    NotFound,
    OutOfOrderAck,
    StorageError,
)
from tests.support.buffer_contents import batches, entries
from tests.support.hooked_store import HookedStore
from tests.support.twins import AwaitedTwins, Twins
from tests.support.waiting import NEVER, Background, Bell, Gate

NO_COLLECTOR = ConsumerConfig(gc=False)


def fill(store: ObjectStore, count: int) -> None:
    with Producer(store) as producer:
        for number in range(count):
            producer.produce(f"event {number}")
            producer.flush()


@pytest.mark.parametrize("given", [b"one", "one", [b"one"], Record(b"one")], ids=["bytes", "text", "list", "record"])
def test_a_flushed_entry_is_in_the_queue(call: Twins, memory: ObjectStore, manifest: str, given: object) -> None:
    if manifest == "opendata" and isinstance(given, Record):
        given = given.value
    with call.within(Producer(memory, ProducerConfig(flush_interval=NEVER))) as producer:
        handle = call(producer.produce, given)
        assert not handle.done()
        call(producer.flush)
        assert handle.done()
        assert entries(memory) == [b"one"]


def test_json_and_metadata_are_produced(call: Twins, memory: ObjectStore) -> None:
    with call.within(Producer(memory)) as producer:
        call(producer.produce_json, [{"a": 1}], b"about it")
    with Consumer(memory, NO_COLLECTOR) as consumer:
        batch = call(consumer.next_batch)
    assert (batch.entries, batch.metadata[0].payload) == ([b'{"a":1}'], b"about it")


def test_a_full_producer_refuses_in_time_and_takes_nothing(call: Twins, memory: ObjectStore) -> None:
    store, gate = HookedStore(memory), Gate()
    store.before("write data", gate)
    with Producer(store, ProducerConfig(max_buffered_inputs=1)) as producer:
        call(producer.produce, b"first")
        for timeout in (0, 0.01):
            for given in (b"second", [b"second"]):
                with pytest.raises(BackpressureTimeout, match="nothing was taken"):
                    call(producer.produce, given, timeout=timeout)
        gate.open()
    assert entries(memory) == [b"first"]


def test_calls_that_wait_for_space_are_taken_in_their_order(in_line: Bell, call: Twins, memory: ObjectStore) -> None:
    store, gate = HookedStore(memory), Gate()
    store.before("write data", gate)
    with Producer(store, ProducerConfig(max_buffered_inputs=1)) as producer:
        call(producer.produce, b"0")
        waiting = []
        for number in range(1, 6):
            waiting.append(Background(call, producer.produce, str(number).encode()))
            in_line.wait()
        gate.open()
        assert all(one.result() for one in waiting)
    assert entries(memory) == [str(number).encode() for number in range(6)]


def test_a_call_that_waits_for_space_ends_when_the_producer_closes(
    in_line: Bell, call: Twins, memory: ObjectStore
) -> None:
    store, gate = HookedStore(memory), Gate()
    store.before("write data", gate)
    producer = Producer(store, ProducerConfig(max_buffered_inputs=1))
    call(producer.produce, b"first")
    gate.wait_for_arrival()
    waiting = Background(call, producer.produce, b"second")
    in_line.wait()
    closing = Background(call, producer.close)
    with pytest.raises(Closed, match="nothing was taken"):
        waiting.result()
    gate.open()
    closing.result()
    assert entries(memory) == [b"first"]


def test_what_cannot_be_taken_is_refused(call: Twins, memory: ObjectStore) -> None:
    with call.within(Producer(memory)) as producer:
        not_entries: tuple[object, ...] = ([], {"a": 1}, 7)
        for wrong in not_entries:
            with pytest.raises(InvalidInput):
                call(producer.produce, wrong)
    for method, given in ((producer.produce, (b"late",)), (producer.flush, ())):
        with pytest.raises(Closed):
            call(method, *given)
    call(producer.close)


def test_flush_raises_what_went_wrong(call: Twins, memory: ObjectStore) -> None:
    store = HookedStore(memory)

    def fail() -> None:
        raise StorageError("the disk is gone")

    store.before("write data", fail)
    producer = Producer(store, ProducerConfig(flush_interval=NEVER))
    handle = call(producer.produce, b"lost")
    with pytest.raises(StorageError, match="the disk is gone"):
        call(producer.flush)
    with pytest.raises(StorageError, match="the disk is gone"):
        handle.result()
    call(producer.close)


def test_batches_come_in_order_and_are_acked(call: Twins, memory: ObjectStore) -> None:
    fill(memory, 4)
    with call.within(Consumer(memory, NO_COLLECTOR)) as consumer:
        first, second = call(consumer.next_batch), call(consumer.next_batch)
        assert (first.sequence, first.entries, second.sequence) == (0, [b"event 0"], 1)
        call(consumer.ack, 0)
        call(second.ack)
        call(consumer.flush)
        assert consumer.last_acked_sequence == 1
        described = call(consumer.next_descriptors, 5)
        assert [one.sequence for one in described] == [2, 3]
        assert call(consumer.fetch_descriptor, described[1]).entries == [b"event 3"]
        assert call(consumer.fetch_handle().fetch, described[0]).entries == [b"event 2"]
        assert call(consumer.next_batch) is None
        call(consumer.rewind)
        assert call(consumer.next_batch).sequence == 2
        call(consumer.ack_through, 2)
    assert batches(memory) == [[b"event 3"]]


def test_a_consumer_is_iterated_over_and_followed(call: Twins, memory: ObjectStore) -> None:
    fill(memory, 3)
    with call.within(Consumer(memory, NO_COLLECTOR)) as consumer:
        assert [batch.sequence for batch in call.iterate(consumer)] == [0, 1, 2]
        call(consumer.rewind)
        followed = call.iterate(consumer, "follow", 0.0)
        assert [batch.sequence for batch in followed] == [0, 1, 2]
        with pytest.raises(InvalidInput, match="timeout"):
            next(iter(call.iterate(consumer, "follow", -1.0)))


def test_closing_ends_a_consumer_that_follows(call: Twins, memory: ObjectStore) -> None:
    fill(memory, 1)
    consumer = Consumer(memory, NO_COLLECTOR)
    followed = call.iterate(consumer, "follow")
    assert next(followed).sequence == 0
    following = Background(lambda: list(followed))
    call(consumer.close)
    assert following.result() == []
    with pytest.raises(Closed):
        call(consumer.next_batch)


def test_acks_out_of_order_are_refused(call: Twins, memory: ObjectStore) -> None:
    fill(memory, 3)
    with call.within(Consumer(memory, NO_COLLECTOR)) as consumer:
        with pytest.raises(OutOfOrderAck, match="nothing was handed out"):
            call(consumer.ack, 0)
        call(consumer.next_descriptors, 2)
        for method, sequence in ((consumer.ack, 1), (consumer.ack_through, 2)):
            with pytest.raises(OutOfOrderAck):
                call(method, sequence)
        call(consumer.ack_through, 1)
        with pytest.raises(OutOfOrderAck):
            call(consumer.ack_through, 1)
        with pytest.raises(InvalidInput):
            call(consumer.next_descriptors, -1)


def test_a_fenced_consumer_keeps_its_cursors(call: Twins, memory: ObjectStore) -> None:
    fill(memory, 2)
    older = Consumer(memory, NO_COLLECTOR)
    batch = call(older.next_batch)
    with Consumer(memory, NO_COLLECTOR):
        for method in (older.next_batch, batch.ack, older.flush):
            with pytest.raises(Fenced):
                call(method)
        assert (older.last_acked_sequence, older.last_handed_out_sequence) == (None, 0)


def test_an_object_that_is_gone_is_named_and_read_again(call: Twins, memory: ObjectStore) -> None:
    fill(memory, 1)
    with call.within(Consumer(memory, NO_COLLECTOR)) as consumer:
        entry = call(consumer.next_descriptors, 1)[0]
        call(consumer.rewind)
        data = memory.get(entry.location).data
        memory.delete(entry.location)
        for _ in range(2):
            with pytest.raises(NotFound, match="sequence 0"):
                call(consumer.next_batch)
        memory.put(entry.location, data)
        assert call(consumer.next_batch).sequence == 0


def test_an_exception_in_the_block_is_not_hidden_by_the_close(call: Twins, memory: ObjectStore) -> None:
    with pytest.raises(ZeroDivisionError), call.within(Consumer(memory, NO_COLLECTOR)), Consumer(memory, NO_COLLECTOR):
        raise ZeroDivisionError  # the first one is fenced


def test_a_forked_child_is_told_what_to_do_instead(call: Twins, memory: ObjectStore) -> None:
    fill(memory, 1)
    with Producer(memory) as producer, Consumer(memory, NO_COLLECTOR) as consumer:
        run = asyncio.run if isinstance(call, AwaitedTwins) else lambda result: result
        twin = "_async" if isinstance(call, AwaitedTwins) else ""
        calls: list[tuple[Any, ...]] = [
            (producer, "produce", b"x"),
            (producer, "flush"),
            (consumer, "next_batch"),
            (consumer, "flush"),
        ]
        child = os.fork()
        if not child:
            told = 0
            for of, name, *given in calls:
                try:
                    run(getattr(of, name + twin)(*given))
                except InvalidInput as error:
                    told += "here" in str(error)
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
