"""How far `BufferReceiver` fetches ahead, what it leases for that, and what a hold changes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock import ObjectStore, Record
from penstock.engine import BatchEngine, BufferReceiver, EngineConfig, MemoryGuard, SelfRegulation, WorkBatch
from penstock.records import values_to_arrow
from tests.engine.doubles import Clock, Heap, Sink, TimedShutdown, regulated, through, values
from tests.engine.sources import numbered
from tests.engine.transports.conftest import Open
from tests.support.filled_buffers import fill
from tests.support.hooked_store import HookedStore
from tests.support.waiting import Background, Gate


def size_of(batch: list[bytes]) -> int:
    """How many bytes a batch has in memory."""
    return values_to_arrow(batch).nbytes


def test_a_batch_is_leased_until_its_last_slice_was_worked_off(memory: ObjectStore, receive: Open) -> None:
    guard, batch = MemoryGuard(1 << 30), [b"a" * 100, b"b" * 100]
    fill(memory, batch)
    receiver = receive(memory, guard=guard)
    leased = []
    for _ in range(3):
        receiver.recv(1, timeout=0)
        leased.append(guard.current_bytes)
    assert leased == [size_of(batch), size_of(batch), 0]


@pytest.mark.parametrize("max_records", [1, 2])
def test_releasing_the_block_ends_the_lease_of_a_batch_that_was_handed_out_whole(
    memory: ObjectStore, receive: Open, max_records: int
) -> None:
    guard, batch = MemoryGuard(1 << 30), [b"a", b"b"]
    fill(memory, batch)
    receiver = receive(memory, guard=guard)
    receiver.recv(max_records)
    receiver.release_block()
    assert guard.current_bytes == (size_of(batch) if max_records == 1 else 0)


def test_a_batch_is_leased_while_the_sink_has_it(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a" * 100])
    guard, leased = MemoryGuard(1 << 30), list[int]()
    engine = BatchEngine(EngineConfig(recv_timeout=0), regulation=regulated(guard, start_bytes=200))
    engine.run(receive(memory), through, lambda batch: leased.append(guard.current_bytes), until_idle=True)
    assert leased == [size_of([b"a" * 100]) + 100]


@pytest.mark.parametrize("until_idle", [True, False])
def test_nothing_is_leased_when_a_run_has_ended(memory: ObjectStore, receive: Open, until_idle: bool) -> None:
    fill(memory, [b"a"], [b"b"])
    guard, shutdown = MemoryGuard(1 << 30), threading.Event()
    engine = BatchEngine(EngineConfig(recv_timeout=0), regulation=regulated(guard))
    sink = Sink() if until_idle else lambda batch: shutdown.set()
    engine.run(receive(memory), through, sink, shutdown=shutdown, until_idle=until_idle)
    assert guard.current_bytes == 0


@pytest.mark.parametrize("end", [BufferReceiver.close, BufferReceiver.rewind])
@pytest.mark.parametrize("held", ["a slice", "a batch", "some ahead", "nothing"])
def test_nothing_is_leased_after_close_or_rewind(
    memory: ObjectStore, receive: Open, held: str, end: Callable[[BufferReceiver], None]
) -> None:
    guard = MemoryGuard(1 << 30)
    fill(memory, [b"a", b"b"], [b"c"], [b"d"], [b"e"])
    receiver = receive(memory, guard=guard)
    for count in {"a slice": [1], "a batch": [2], "some ahead": [2, 1], "nothing": []}[held]:
        receiver.recv(count)
    end(receiver)
    assert guard.current_bytes == 0


def test_a_fetch_that_was_dropped_while_under_way_is_not_leased(memory: ObjectStore, receive: Open, gate: Gate) -> None:
    store, guard = HookedStore(memory), MemoryGuard(1 << 30)
    fill(memory, [b"a", b"b"], [b"slow"])
    receiver = receive(store, guard=guard, fetchers=1)
    receiver.recv(1)
    store.before("read data", gate)
    receiver.recv(1, timeout=0)
    gate.wait_for_arrival()
    receiver.rewind()
    gate.open()
    receiver.close()  # now no fetch is under way
    assert guard.current_bytes == 0


@pytest.mark.parametrize("has_own", [True, False])
def test_it_leases_in_its_own_guard_or_else_in_that_of_the_engine(
    memory: ObjectStore, receive: Open, has_own: bool
) -> None:
    fill(memory, [b"a"])
    own, engines = MemoryGuard(1 << 30), MemoryGuard(1 << 30)
    receiver = receive(memory, guard=own if has_own else None)
    receiver.use_guard(engines)
    receiver.recv(10)
    assert (own.current_bytes > 0, engines.current_bytes > 0) == (has_own, not has_own)


def test_a_single_one_is_fetched_before_it_is_known_how_large_they_are(memory: ObjectStore, receive: Open) -> None:
    store = HookedStore(memory)
    fill(memory, *numbered(5))
    receive(store).recv(1)
    assert store.count("read data") == 1


def test_what_is_fetched_ahead_has_no_more_bytes_than_the_limit(memory: ObjectStore, receive: Open) -> None:
    batches = [[b"%d" % number * 1000] for number in range(8)]
    fill(memory, *batches)
    guard, size = MemoryGuard(1 << 30), size_of(batches[0])
    store = HookedStore(memory)
    receiver = receive(store, guard=guard, fetchers=4)
    for _ in range(3):
        receiver.recv(1, 3 * size)
    receiver.close()  # now no fetch is under way
    assert store.count("read data") <= 3 + 3


def test_no_more_than_twice_its_threads_are_fetched_ahead(memory: ObjectStore, receive: Open) -> None:
    fill(memory, *numbered(12))
    store = HookedStore(memory)
    receiver = receive(store, fetchers=2)
    for _ in range(2):
        receiver.recv(1)
    receiver.close()
    assert store.count("read data") <= 2 + 4


def test_batches_are_fetched_side_by_side(memory: ObjectStore, receive: Open, gate: Gate) -> None:
    store = HookedStore(memory)
    fill(memory, *numbered(6))
    receiver = receive(store, fetchers=3)
    receiver.recv(1)
    store.before("read data", gate)
    waiting = Background(lambda: receiver.recv(1))
    for _ in range(3):
        gate.wait_for_arrival()
    gate.open()
    assert values(waiting.result().records) == [b"1"]


# Pausing


def test_while_paused_what_is_in_hand_is_handed_out(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a", b"b"])
    receiver = receive(memory)
    receiver.recv(1)
    receiver.pause()
    assert receiver.in_hand
    assert values(receiver.recv(10, timeout=0).records) == [b"b"]


def test_while_paused_nothing_is_fetched_behind_what_is_in_hand(memory: ObjectStore, receive: Open) -> None:
    store = HookedStore(memory)
    fill(memory, [b"a", b"b"], [b"c"], [b"d"])
    receiver = receive(store)
    receiver.recv(1)
    receiver.pause()
    receiver.recv(10, timeout=0)
    assert (receiver.in_hand, store.count("read data")) == (False, 1)


def test_while_paused_a_receive_with_nothing_in_hand_brings_one_batch(memory: ObjectStore, receive: Open) -> None:
    store = HookedStore(memory)
    fill(memory, *numbered(4))
    receiver = receive(store)
    receiver.pause()
    receiver.recv(1)
    receiver.recv(1)
    receiver.close()
    assert store.count("read data") == 2


def test_after_resume_it_fetches_ahead_again(memory: ObjectStore, receive: Open) -> None:
    fill(memory, *numbered(4))
    receiver = receive(memory)
    receiver.recv(1)
    receiver.pause()
    receiver.resume()
    receiver.recv(1)
    assert receiver.in_hand


def test_nothing_is_in_hand_at_first_and_at_the_end(memory: ObjectStore, receive: Open) -> None:
    fill(memory, [b"a", b"b"])
    receiver = receive(memory)
    seen = [receiver.in_hand]
    for _ in range(2):
        receiver.recv(1)
        seen.append(receiver.in_hand)
    assert seen == [False, True, False]


def test_a_hold_of_the_engine_stops_the_fetching(memory: ObjectStore, receive: Open) -> None:
    """The memory is full from the first block on: that block and what is in hand go out, and nothing else comes."""
    store, heap, clock = HookedStore(memory), Heap(), Clock()
    fill(memory, *[[b"%d" % number * 40] for number in range(10)])
    receiver = receive(store)
    engine = BatchEngine(EngineConfig(recv_timeout=0), regulation=regulated(heap.guard, start_bytes=50), clock=clock)

    def sink(batch: WorkBatch) -> None:
        heap.share = 1.0

    stats = engine.run(receiver, through, sink, shutdown=TimedShutdown(clock, 20))
    assert stats.received <= 2


def test_large_keys_and_headers_count_where_a_block_is_limited(memory: ObjectStore) -> None:
    fill(memory, *([Record(b"v", key=bytes(1000), headers=[("h", bytes(1000))])] * 2 for _ in range(20)))
    guard = MemoryGuard(64_000)
    seen = list[tuple[int, int]]()

    def note(batch: WorkBatch) -> WorkBatch:
        seen.append((batch.arrow.nbytes, guard.current_bytes))
        return batch

    with BufferReceiver(memory) as receiver:
        BatchEngine(EngineConfig(recv_timeout=0), regulation=SelfRegulation(guard=guard)).run(
            receiver, note, Sink(), until_idle=True
        )
    assert max(size for size, _ in seen) <= 64_000 / 8 + 2 * 2200
    assert all(leased >= size * 0.9 for size, leased in seen)


def test_no_more_batches_are_under_way_than_fit_into_the_memory(memory: ObjectStore) -> None:
    small, large = [b"small"], [bytes(1 << 20)] * 4
    fill(memory, small, *[large] * 8)
    guard = MemoryGuard(64 << 20)
    peak = 0

    def look(batch: WorkBatch) -> WorkBatch:
        nonlocal peak
        peak = max(peak, guard.current_bytes)
        return batch

    with BufferReceiver(memory) as receiver:
        BatchEngine(EngineConfig(recv_timeout=0), regulation=SelfRegulation(guard=guard)).run(
            receiver, look, Sink(), until_idle=True
        )
    assert peak < 20 << 20
