"""`BufferSender`: records into a buffer, durable when `send` returns."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock import ObjectStore, Producer, ProducerConfig, Record, open_store
from penstock.buffer import decode_batch
from penstock.engine import BatchEngine, BufferSender, EngineConfig, MemoryTransport, WorkBatch
from penstock.errors import Closed, InvalidInput, SinkFailed, StorageError
from penstock.records import records_from_arrow, records_to_arrow
from tests.engine.doubles import through
from tests.support.buffer_contents import batches, entries, queue
from tests.support.hooked_store import HookedStore
from tests.support.waiting import NEVER, Background, Bell, Gate

RECORDS = [Record(b"a", key=b"k"), Record(b"b", headers=[("h", b"1")]), Record(b"c", timestamp_ms=5)]
SLOW = ProducerConfig(flush_interval=NEVER)


@pytest.fixture
def memory(fresh_name: str) -> ObjectStore:
    return open_store(f"memory://{fresh_name}")


@pytest.fixture
def store(memory: ObjectStore) -> HookedStore:
    return HookedStore(memory)


@pytest.fixture
def sender(store: HookedStore) -> Iterator[BufferSender]:
    with BufferSender(store, SLOW) as sender:
        yield sender


def fail() -> None:
    raise StorageError("the store is gone")


@pytest.mark.parametrize(
    "sent",
    [RECORDS, iter(RECORDS), WorkBatch(RECORDS, (1,)), WorkBatch(records_to_arrow(RECORDS))],
    ids=["list", "iterator", "batch", "columns"],
)
def test_everything_is_in_the_buffer_when_send_returns(sender: BufferSender, memory: ObjectStore, sent: Any) -> None:
    sender.send(sent)
    (entry,) = queue(memory)
    assert records_from_arrow(decode_batch(memory.get(entry.location).data)) == RECORDS


def test_it_does_not_wait_for_the_interval_of_its_producer(sender: BufferSender, memory: ObjectStore) -> None:
    Background(lambda: sender.send(RECORDS)).result()
    assert entries(memory) == [b"a", b"b", b"c"]


def test_send_returns_only_when_the_manifest_has_it(store: HookedStore, sender: BufferSender) -> None:
    gate = Gate()
    store.before("write manifest", gate)
    sending = Background(lambda: sender.send(RECORDS))
    gate.wait_for_arrival()
    assert not sending.has_ended_within(0.05)
    gate.open()
    sending.result()


def test_columns_of_ones_own_are_sent_as_json(sender: BufferSender, memory: ObjectStore) -> None:
    sender.send(WorkBatch(pa.record_batch({"id": [1, 2]})))
    assert [json.loads(entry) for entry in entries(memory)] == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("nothing", [[], WorkBatch(()), WorkBatch((), (1, 2))])
def test_no_records_are_no_work(sender: BufferSender, store: HookedStore, nothing: Any) -> None:
    sender.send(nothing)
    assert store.count("write data") == 0


def test_much_is_handed_over_in_pieces_of_a_data_object_in_order(memory: ObjectStore) -> None:
    records = [Record(value * 20, key=value * 20) for value in (b"a", b"b", b"cc", b"d")]  # a key counts as well
    with BufferSender(memory, ProducerConfig(max_batch_bytes=100)) as sender:
        sender.send(records)
    assert batches(memory) == [[b"a" * 20, b"b" * 20], [b"c" * 40], [b"d" * 20]]


@pytest.mark.parametrize("step", ["write data", "write manifest"])
def test_what_goes_wrong_is_raised(store: HookedStore, sender: BufferSender, step: Any) -> None:
    store.before(step, fail, times=1)
    with pytest.raises(StorageError, match="the store is gone"):
        sender.send(RECORDS)


def test_after_what_went_wrong_it_goes_on(store: HookedStore, sender: BufferSender, memory: ObjectStore) -> None:
    store.before("write data", fail, times=1)
    with pytest.raises(StorageError):
        sender.send([Record(b"lost")])
    sender.send([Record(b"kept")])
    assert entries(memory) == [b"kept"]


def test_a_failed_write_of_another_user_of_the_producer_fails_no_send(store: HookedStore, memory: ObjectStore) -> None:
    failed = Bell()

    def ring_and_fail() -> None:
        failed()
        fail()

    with Producer(store, ProducerConfig(flush_interval=NEVER, flush_size_bytes=1)) as producer:
        store.before("write data", ring_and_fail, times=1)
        theirs = producer.produce(b"theirs")
        failed.wait()
        BufferSender(producer).send([Record(b"ours")])
        with pytest.raises(StorageError):
            theirs.result()
    assert entries(memory) == [b"ours"]


def test_a_sender_that_fails_fails_the_block_of_an_engine_and_nothing_is_committed(
    store: HookedStore, sender: BufferSender, memory: ObjectStore
) -> None:
    source = MemoryTransport()
    source.send(RECORDS)
    store.before("write data", fail, times=1)
    engine = BatchEngine(EngineConfig(recv_timeout=0))
    with pytest.raises(SinkFailed) as caught:
        engine.run(source, through, sender.send, until_idle=True)
    assert isinstance(caught.value.__cause__, StorageError)
    assert repr(source) == "MemoryTransport(3 not committed)"
    engine.run(source, through, sender.send, until_idle=True)
    assert (entries(memory), source.committed_sequence) == ([b"a", b"b", b"c"], 2)


def test_each_send_is_a_batch_of_its_own(sender: BufferSender, memory: ObjectStore) -> None:
    sender.send([Record(b"a")])
    sender.send([Record(b"b")])
    assert batches(memory) == [[b"a"], [b"b"]]


@pytest.mark.parametrize("closes", [1, 2])
def test_after_close_it_refuses_to_send(memory: ObjectStore, closes: int) -> None:
    sender = BufferSender(memory)
    for _ in range(closes):
        sender.close()
    with pytest.raises(Closed):
        sender.send(RECORDS)


def test_close_ends_the_threads_of_a_producer_that_it_opened(memory: ObjectStore) -> None:
    before = set(threading.enumerate())
    with BufferSender(memory) as sender:
        sender.send(RECORDS)
        assert set(threading.enumerate()) > before
    assert not set(threading.enumerate()) - before


def test_close_leaves_a_producer_open_that_was_given(memory: ObjectStore) -> None:
    with Producer(memory) as producer:
        BufferSender(producer).close()
        producer.produce(b"x").result()
    assert entries(memory) == [b"x"]


@pytest.mark.parametrize("what", [None, 3, [b"bytes"], b"bytes"])
def test_what_are_no_records_is_refused(sender: BufferSender, what: Any) -> None:
    with pytest.raises(InvalidInput, match="records must be"):
        sender.send(what)
