"""Threads that share a consumer get each entry once, and lose no ack."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.buffer import ConsumedBatch, Consumer
from penstock.storage import ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, PATIENCE, consume, fill, kept, queue_up, sequences

THREADS = 6


def together(work: Callable[[], list[int]]) -> list[int]:
    """Run work in threads that start together, and return all results, sorted."""
    ready = threading.Barrier(THREADS)

    def run() -> list[int]:
        ready.wait(PATIENCE)
        return work()

    with ThreadPoolExecutor(THREADS) as threads:
        return sorted(one for found in [threads.submit(run) for _ in range(THREADS)] for one in found.result(PATIENCE))


def test_threads_that_read_batches_get_each_of_them_once(store: ObjectStore) -> None:
    fill(store, *([b"%d" % number] for number in range(24)))
    consumer = consume(store)
    assert together(lambda: sequences(consumer)) == list(range(24))


def test_threads_that_read_descriptors_get_each_of_them_once(store: ObjectStore) -> None:
    queue_up(store, 200)
    consumer = consume(store)

    def read_all() -> list[int]:
        found: list[int] = []
        while some := consumer.next_descriptors(7):
            found += sequences(some)
        return found

    assert together(read_all) == list(range(200))


def first_of(batch: ConsumedBatch | None) -> list[int]:
    return [] if batch is None else [batch.sequence]


READERS: dict[str, Callable[[Consumer], list[int]]] = {
    "next_batch": lambda consumer: first_of(consumer.next_batch()),
    "next_descriptors": lambda consumer: sequences(consumer.next_descriptors(1)),
}


@pytest.mark.parametrize("first", READERS)
@pytest.mark.parametrize("second", READERS)
def test_a_thread_that_reads_while_another_is_about_to_get_an_entry_gets_the_next_one(
    memory: ObjectStore, first: str, second: str
) -> None:
    fill(memory, [b"a"], [b"b"])
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    found: list[int] = []
    other = threading.Thread(target=lambda: found.extend(READERS[second](consumer)))

    def let_the_other_try() -> None:
        # It must wait until the entry is handed out: it does not end here.
        other.start()
        other.join(0.1)

    intercepted.after("get", let_the_other_try, path=MANIFEST)
    assert READERS[first](consumer) == [0]
    other.join(PATIENCE)
    assert found == [1]


def test_threads_that_ack_in_turns_lose_no_ack(memory: ObjectStore) -> None:
    queue_up(memory, 300)
    consumer = consume(memory)
    consumer.next_descriptors(300)
    turn = threading.Lock()

    def ack() -> list[int]:
        acked: list[int] = []
        while True:
            with turn:
                due = -1 if consumer.last_acked_sequence is None else consumer.last_acked_sequence
                if due == 299:
                    return acked
                consumer.ack(due + 1)
            acked.append(due + 1)

    assert together(ack) == list(range(300))
    assert kept(memory) == []


def test_an_ack_does_not_wait_for_a_fetch_that_is_under_way(memory: ObjectStore) -> None:
    first, second = fill(memory, [b"a"], [b"b"])
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    batch = consumer.next_batch()
    assert batch is not None
    under_way, acked = threading.Event(), threading.Event()

    def hold() -> None:
        under_way.set()
        assert acked.wait(PATIENCE)

    intercepted.before("get", hold, path=second.location)
    with ThreadPoolExecutor(1) as threads:
        fetching = threads.submit(consumer.next_batch)
        assert under_way.wait(PATIENCE)
        batch.ack()
        acked.set()
        assert fetching.result(PATIENCE) is not None
    assert consumer.last_acked_sequence == first.sequence
