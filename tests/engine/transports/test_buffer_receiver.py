"""`BufferReceiver`, on real buffers: slices, order, filters, commits, and what goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Consumer, ObjectStore, Record, open_store
from penstock.buffer import Manifest
from penstock.engine import BatchEngine, BufferReceiver, Drop, EngineConfig, Keep, MemoryGuard, WorkBatch
from penstock.errors import Closed, CommitFailed, Fenced, InvalidInput, ReceiveFailed, StorageError
from penstock.testing import Fault, FaultyStore
from tests.engine.doubles import Sink, through, values
from tests.engine.sources import numbered, plant
from tests.engine.transports.conftest import Open
from tests.support.filled_buffers import fill, kept, no_gc
from tests.support.hooked_store import HookedStore
from tests.support.waiting import A_WHILE, Background, Gate


def drain(receiver: BufferReceiver, max_records: int = 1000, max_bytes: int | None = None) -> list[WorkBatch]:
    """Everything that is there, a receive after the other."""
    blocks = []
    while (block := receiver.recv(max_records, max_bytes, 0)).commit_tokens or not block.is_empty:
        blocks.append(block)
    return blocks


def drained(receiver: BufferReceiver) -> list[bytes]:
    """The values of everything that is there."""
    return [value for block in drain(receiver) for value in values(block.records)]


# Slices


LARGE = b"x" * 10
SLICES: dict[str, tuple[list[list[bytes]], int, int | None, list[tuple[list[bytes], tuple[int, ...]]]]] = {
    "a whole batch": ([[b"a", b"b"]], 9, None, [([b"a", b"b"], (0,))]),
    "by records": ([[b"a", b"b", b"c"]], 2, None, [([b"a", b"b"], ()), ([b"c"], (0,))]),
    "by records, ending with the batch": ([[b"a", b"b"]], 1, None, [([b"a"], ()), ([b"b"], (0,))]),
    "by bytes": ([[b"aa", b"bb", b"cc", b"d"]], 9, 4, [([b"aa", b"bb"], ()), ([b"cc", b"d"], (0,))]),
    "a large record first": ([[LARGE, b"b", b"c"]], 9, 5, [([LARGE], ()), ([b"b", b"c"], (0,))]),
    "a large record between": ([[b"a", LARGE, b"c"]], 9, 5, [([b"a"], ()), ([LARGE], ()), ([b"c"], (0,))]),
    "a large record alone in its batch": ([[LARGE], [b"b"]], 9, 5, [([LARGE], (0,)), ([b"b"], (1,))]),
    "no bytes": ([[b"a", b"b"], [b"c"]], 9, 0, [([b"a"], ()), ([b"b"], (0,)), ([b"c"], (1,))]),
}


@pytest.mark.parametrize("case", SLICES)
def test_a_batch_is_cut_to_the_limits_and_its_last_slice_carries_its_sequence_as_the_token(
    memory: ObjectStore, receive: Open, case: str
) -> None:
    batches, max_records, max_bytes, expected = SLICES[case]
    fill(memory, *batches)
    blocks = drain(receive(memory), max_records, max_bytes)
    assert [(values(block.records), block.commit_tokens) for block in blocks] == expected


def test_batches_are_joined_up_to_the_limit(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a", b"b"], [b"c"], [b"d"])
    receiver = receive(memory)
    receiver.recv(1)  # from now on it is known how large they are
    block = receiver.recv(2, timeout=5)
    assert (values(block.records), block.commit_tokens) == ([b"b", b"c"], (0, 1))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 12), max_size=5), min_size=1, max_size=5),
    max_records=st.integers(1, 6),
    max_bytes=st.none() | st.integers(0, 30),
)
def test_everything_comes_once_in_order_within_the_limits_whatever_they_are(
    sizes: list[list[int]], max_records: int, max_bytes: int | None
) -> None:
    store = open_store("memory://any-limits")
    store.delete([meta.path for meta in store.list_objects()])
    letters = iter(range(256))
    batches = [[bytes([next(letters)]) * size for size in batch] for batch in sizes]
    plant(store, *batches)
    with BufferReceiver(Consumer(store, no_gc()), fetchers=2) as receiver:
        blocks = drain(receiver, max_records, max_bytes)
    assert [value for block in blocks for value in values(block.records)] == [
        value for batch in batches for value in batch
    ]
    assert [token for block in blocks for token in block.commit_tokens] == list(range(len(batches)))
    for block in blocks:
        assert len(block) <= max_records
        assert max_bytes is None or block.total_bytes <= max_bytes or len(block) == 1


# Order, columns, empty batches


def test_batches_come_in_order_though_later_ones_are_fetched_first(
    memory: ObjectStore, receive: Open, gate: Gate
) -> None:
    store = HookedStore(memory)
    fill(memory, *numbered(6))
    receiver = receive(store, fetchers=2)
    first = receiver.recv(1)
    fetched = threading.Semaphore(0)
    store.before("read data", gate, times=1)
    store.after("read data", fetched.release)
    second = Background(lambda: receiver.recv(1))
    gate.wait_for_arrival()
    assert fetched.acquire(timeout=60)  # another one, by the other thread
    gate.open()
    blocks = [first, second.result(), *drain(receiver, 1)]
    assert [value for block in blocks for value in values(block.records)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("max_records", [1, 10])
def test_keys_headers_and_timestamps_are_kept(memory: ObjectStore, receive: Open, max_records: int) -> None:
    headers = [("h", b"1"), ("h", b"2")]
    records = [Record(b"%d" % n, key=b"k%d" % n, headers=headers, timestamp_ms=n) for n in range(4)]
    fill(memory, records)
    assert [record for block in drain(receive(memory), max_records) for record in block.records] == records


def test_batches_with_different_columns_are_joined(memory: ObjectStore, receive: Open) -> None:
    records = [Record(b"a"), Record(b"b"), Record(b"c", key=b"k"), Record(b"d", timestamp_ms=5)]
    fill(memory, records[:2], [records[2]], [records[3]])
    receiver = receive(memory)
    blocks = [receiver.recv(1), receiver.recv(3, timeout=5)]
    assert [record for block in blocks for record in block.records] == records


def test_an_empty_batch_is_a_token_without_records(memory: ObjectStore, receive: Open) -> None:
    plant(memory, [])
    block = receive(memory).recv(10, timeout=0)
    assert (len(block), block.commit_tokens) == (0, (0,))


def test_an_empty_batch_is_committed_by_the_engine(memory: ObjectStore, receive: Open) -> None:
    plant(memory, [], [])
    BatchEngine(EngineConfig(recv_timeout=0)).run(receive(memory), through, Sink(), until_idle=True)
    assert kept(memory) == []


def test_empty_batches_between_others_cost_no_record(memory: ObjectStore, receive: Open) -> None:
    plant(memory, [b"a"], [], [b"b"], [])
    blocks = drain(receive(memory), 1)
    assert [value for block in blocks for value in values(block.records)] == [b"a", b"b"]
    assert [token for block in blocks for token in block.commit_tokens] == [0, 1, 2, 3]


# Filters


def test_a_slice_that_a_filter_empties_does_not_end_a_run_that_ends_when_idle(
    memory: ObjectStore, receive: Open
) -> None:
    fill(memory, [b"drop", b"drop", b"keep", b"keep"])
    receiver = receive(memory, filters=[lambda record: Drop if record.value == b"drop" else Keep])
    sink = Sink()
    BatchEngine(EngineConfig(max_records=2, recv_timeout=0)).run(receiver, through, sink, until_idle=True)
    assert sink.values == [b"keep", b"keep"]


# Fetches that fail


@pytest.mark.parametrize("failing", ["data", "manifest"])
def test_a_read_that_fails_is_raised_and_nothing_is_lost(memory: ObjectStore, receive: Open, failing: str) -> None:
    fill(memory, [b"a"], [b"b"])
    store = FaultyStore(memory, rates={})
    receiver = receive(store)
    path = Manifest.read(memory).entries[0].location if failing == "data" else None
    store.inject(Fault.READ_ERROR, operation="get", path=path)
    with pytest.raises(StorageError, match="injected"):
        receiver.recv(10)
    assert drained(receiver) == [b"a", b"b"]


def test_a_fetch_that_fails_after_good_batches_hands_out_the_good_ones_first(
    memory: ObjectStore, receive: Open
) -> None:
    fill(memory, *numbered(4))
    store = FaultyStore(memory, rates={})
    receiver = receive(store)
    before = receiver.recv(1)
    store.inject(Fault.READ_ERROR, operation="get", path=Manifest.read(memory).entries[2].location)
    good = receiver.recv(10, timeout=60)
    assert values([*before.records, *good.records]) == [b"0", b"1"]
    with pytest.raises(StorageError):
        receiver.recv(10)


def test_after_a_fetch_that_failed_what_was_not_committed_comes_again_and_what_was_does_not(
    memory: ObjectStore, receive: Open
) -> None:
    fill(memory, *numbered(4))
    store = FaultyStore(memory, rates={})
    receiver = receive(store)
    receiver.commit(receiver.recv(1).commit_tokens)
    store.inject(Fault.READ_ERROR, operation="get", path=Manifest.read(memory).entries[1].location)
    receiver.recv(10, timeout=60)
    with pytest.raises(StorageError):
        receiver.recv(10)
    assert drained(receiver) == [b"1", b"2", b"3"]


def test_health_follows_the_last_receive(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a"])
    store = FaultyStore(memory, rates={})
    receiver = receive(store)
    was_healthy = receiver.healthy
    store.inject(Fault.READ_ERROR, operation="get")
    with pytest.raises(StorageError):
        receiver.recv(10)
    failed = receiver.healthy
    receiver.recv(10)
    assert (was_healthy, failed, receiver.healthy) == (True, False, True)


def test_a_missing_object_is_raised_each_time(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a"])
    memory.delete([Manifest.read(memory).entries[0].location])
    receiver = receive(memory)
    for _ in range(2):
        with pytest.raises(StorageError):
            receiver.recv(10)


# Waiting


def test_nothing_comes_of_an_empty_buffer_when_the_time_is_over(memory: ObjectStore, receive: Open) -> None:
    block = receive(memory).recv(10, timeout=0.001)
    assert (len(block), block.commit_tokens) == (0, ())


def test_what_is_produced_while_it_waits_is_received(memory: ObjectStore, receive: Open) -> None:
    store, looked = HookedStore(memory), threading.Event()
    receiver = receive(store)
    store.after("read manifest", looked.set)
    waiting = Background(lambda: receiver.recv(10, timeout=60))
    assert looked.wait(60)
    fill(memory, [b"late"])
    assert values(waiting.result().records) == [b"late"]


def test_an_entry_that_is_known_is_waited_for_longer_than_the_timeout(
    memory: ObjectStore, receive: Open, gate: Gate
) -> None:
    store = HookedStore(memory)
    fill(memory, [b"slow"])
    receiver = receive(store)
    store.before("read data", gate)
    waiting = Background(lambda: receiver.recv(10, timeout=0))
    gate.wait_for_arrival()
    assert not waiting.has_ended_within(A_WHILE)
    gate.open()
    assert values(waiting.result().records) == [b"slow"]


def test_what_is_there_is_not_held_up_by_a_slow_one_behind_it(memory: ObjectStore, receive: Open, gate: Gate) -> None:
    store = HookedStore(memory)
    fill(memory, [b"a", b"b"], [b"slow"])
    receiver = receive(store)
    receiver.recv(1)
    store.before("read data", gate)
    assert values(Background(lambda: receiver.recv(10, timeout=0)).result().records) == [b"b"]


# Commit, rewind, close


def test_a_commit_is_durable(memory: ObjectStore, receive: Open) -> None:
    fill(memory, *numbered(3))
    receiver = receive(memory)
    receiver.recv(1)
    receiver.commit(receiver.recv(1).commit_tokens)
    assert kept(memory) == [2]


def test_a_commit_of_nothing_is_nothing(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a"])
    receive(memory).commit(())
    assert kept(memory) == [0]


def test_a_rewind_brings_back_what_was_not_committed_from_its_first_record(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a"], [b"b", b"c"], [b"d"])
    receiver = receive(memory)
    receiver.commit(receiver.recv(1).commit_tokens)
    receiver.recv(1)
    receiver.rewind()
    assert drained(receiver) == [b"b", b"c", b"d"]


def test_a_rewind_twice_brings_everything_back_once(memory: ObjectStore, receive: Open) -> None:
    fill(memory, *numbered(3))
    receiver = receive(memory)
    receiver.recv(1)
    receiver.recv(1)
    receiver.rewind()
    receiver.rewind()
    assert drained(receiver) == [b"0", b"1", b"2"]


def test_a_commit_from_the_thread_of_a_sink_while_it_receives(memory: ObjectStore, receive: Open, gate: Gate) -> None:
    store, guard = HookedStore(memory), MemoryGuard(1 << 30)
    fill(memory, *numbered(2))
    receiver = receive(store, guard=guard)
    tokens = receiver.recv(1).commit_tokens
    store.before("read data", gate)
    receiving = Background(lambda: receiver.recv(1))
    gate.wait_for_arrival()
    Background(lambda: receiver.commit(tokens)).result()
    gate.open()
    receiving.result()
    receiver.rewind()
    assert drained(receiver) == [b"1"]


def test_a_rewind_while_a_commit_is_under_way_leaves_nothing_that_cannot_be_committed(
    memory: ObjectStore, receive: Open, gate: Gate
) -> None:
    store = HookedStore(memory)
    fill(memory, *numbered(2))
    receiver = receive(store)
    tokens = receiver.recv(1).commit_tokens
    store.before("write manifest", gate)
    committing = Background(lambda: receiver.commit(tokens))
    gate.wait_for_arrival()
    rewinding = Background(receiver.rewind)
    gate.open()
    committing.result()
    rewinding.result()
    sink = Sink()
    BatchEngine(EngineConfig(max_records=1, recv_timeout=0)).run(receiver, through, sink, until_idle=True)
    assert (sink.values[-1], kept(memory)) == (b"1", [])


def test_commits_from_another_thread_all_the_while_lose_nothing(memory: ObjectStore, receive: Open) -> None:
    fill(memory, *numbered(40))
    guard = MemoryGuard(1 << 30)
    receiver = receive(memory, guard=guard)
    blocks = iter(lambda: receiver.recv(1, timeout=0), None)
    seen, committers = list[bytes](), list[Background[None]]()
    for block in blocks:
        if block.is_empty:
            break
        seen += values(block.records)
        if committers:
            committers[-1].result()
        committers.append(Background(lambda tokens=block.commit_tokens: receiver.commit(tokens)))  # type: ignore[misc]
    committers[-1].result()
    assert (seen, kept(memory), guard.current_bytes) == ([b"%d" % number for number in range(40)], [], 0)


def test_a_receive_after_a_fence_fails(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a"])
    receiver = receive(memory)
    Consumer(memory, no_gc())
    with pytest.raises(ReceiveFailed) as caught:
        BatchEngine().run(receiver, through, Sink(), until_idle=True)
    assert isinstance(caught.value.__cause__, Fenced)


def fencing(store: ObjectStore) -> Callable[[WorkBatch], None]:
    """A sink that makes a newer consumer of the same group."""

    def sink(_: WorkBatch) -> None:
        Consumer(store, no_gc())

    return sink


def test_a_commit_after_a_fence_fails_and_commits_nothing(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a"])
    receiver = receive(memory)
    with pytest.raises(CommitFailed) as caught:
        BatchEngine().run(receiver, through, fencing(memory), until_idle=True)
    assert isinstance(caught.value.__cause__, Fenced)
    assert kept(memory) == [0]


def test_a_commit_of_which_the_reply_was_lost_fails_and_the_next_run_finds_that_it_happened(
    memory: ObjectStore, receive: Open
) -> None:
    fill(memory, *numbered(3))
    store = HookedStore(memory)
    receiver, sink = receive(store), Sink()

    def lose() -> None:
        raise StorageError("the reply was lost")

    store.after("write manifest", lose, times=1)
    engine = BatchEngine(EngineConfig(max_records=1, recv_timeout=0))
    with pytest.raises(CommitFailed):
        engine.run(receiver, through, sink, until_idle=True)
    engine.run(receiver, through, sink, until_idle=True)
    assert (sink.values, kept(memory)) == ([b"0", b"1", b"2"], [])


def test_close_ends_a_receive_that_waits_for_entries(memory: ObjectStore) -> None:
    store, looked = HookedStore(memory), threading.Event()
    receiver = BufferReceiver(Consumer(store, no_gc()))
    store.after("read manifest", looked.set)
    waiting = Background(lambda: receiver.recv(10, timeout=3600))
    assert looked.wait(60)
    Background(receiver.close).result()
    with pytest.raises(Closed):
        waiting.result()


def test_close_ends_a_receive_that_waits_for_a_fetch_when_the_store_answers(memory: ObjectStore) -> None:
    store, gate, guard = HookedStore(memory), Gate(), MemoryGuard(1 << 30)
    fill(memory, [b"slow"])
    receiver = BufferReceiver(Consumer(store, no_gc()), guard=guard)
    store.before("read data", gate)
    waiting = Background(lambda: receiver.recv(10))
    gate.wait_for_arrival()
    closing = Background(receiver.close)
    while receiver.healthy:
        assert not closing.has_ended_within(0.001)
    gate.open()
    closing.result()
    with pytest.raises(Closed):
        waiting.result()
    assert guard.current_bytes == 0


def test_close_again_does_nothing(memory: ObjectStore) -> None:
    receiver = BufferReceiver(memory)
    receiver.close()
    receiver.close()
    assert not receiver.healthy


def test_a_receiver_that_is_closed_leaves_what_it_had_fetched_ahead_to_the_next(memory: ObjectStore) -> None:
    fill(memory, *numbered(10))
    sink, stop = Sink(), threading.Event()

    def take_one(batch: WorkBatch) -> None:
        sink(batch)
        stop.set()

    with Consumer(memory, no_gc()) as consumer:
        with BufferReceiver(consumer) as receiver:
            BatchEngine(EngineConfig(max_records=1)).run(receiver, through, take_one, shutdown=stop)
        with BufferReceiver(consumer) as receiver:
            BatchEngine(EngineConfig(recv_timeout=0)).run(receiver, through, sink, until_idle=True)
    assert sink.values == [b"%d" % number for number in range(10)]


def test_what_a_consumer_had_handed_out_before_and_is_not_acked_is_received(memory: ObjectStore) -> None:
    fill(memory, [b"0"], [b"1"])
    with Consumer(memory, no_gc()) as consumer:
        consumer.next_descriptors(2)
        with BufferReceiver(consumer) as receiver:
            sink = Sink()
            BatchEngine(EngineConfig(recv_timeout=0)).run(receiver, through, sink, until_idle=True)
    assert sink.values == [b"0", b"1"]


def test_close_leaves_a_consumer_open_that_was_given(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    consumer = Consumer(memory, no_gc())
    BufferReceiver(consumer).close()
    assert consumer.next_batch() is not None


def test_close_ends_its_threads_and_those_of_a_consumer_that_it_opened(tmp_path: Path) -> None:
    fill(open_store(tmp_path), [b"a"])
    before = set(threading.enumerate())
    receiver = BufferReceiver(tmp_path)
    receiver.recv(1)
    assert set(threading.enumerate()) > before
    receiver.close()
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize("fetchers", [0, -1, 1.5, True, None, 1 << 40])
def test_a_number_of_fetchers_out_of_range_is_refused(memory: ObjectStore, fetchers: Any) -> None:
    with pytest.raises(InvalidInput, match="fetchers"):
        BufferReceiver(memory, fetchers=fetchers)


def test_a_receiver_that_lost_its_group_raises_at_the_end_of_its_with_block(memory: ObjectStore) -> None:
    with pytest.raises(Fenced), BufferReceiver(memory):
        Consumer(memory, no_gc())
