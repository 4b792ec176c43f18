"""The collector of a consumer: a daemon thread, which only `close` ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.buffer import Consumer, ConsumerConfig
from penstock.errors import Closed, Fenced, StorageError
from penstock.storage import MemoryStore, ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, PATIENCE, fill, metric, read


def often() -> ConsumerConfig:
    return ConsumerConfig(gc_interval=0.001)


class Cycles:
    """Counts the cycles of a collector, as they begin, and lets a test wait for them."""

    def __init__(self, store: InterceptedStore) -> None:
        self._count = 0
        self._changed = threading.Condition()
        store.before("list_objects", self._begin, times=1_000_000)

    def _begin(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Wait until that many more have begun."""
        with self._changed:
            until = self._count + more
            assert self._changed.wait_for(lambda: self._count >= until, PATIENCE)


@pytest.fixture
def new_threads() -> Iterator[Callable[[], list[threading.Thread]]]:
    """The threads that are there now and were not when the test began."""
    before = set(threading.enumerate())
    yield lambda: [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread for thread in threading.enumerate() if thread not in before]


def let_time_pass(store: InterceptedStore, now: list[float]) -> None:
    """Let a grace period pass with every cycle of a collector."""

    def pass_on() -> None:
        now[0] += often().gc_grace_period

    store.before("list_objects", pass_on, path="ingest", times=1_000_000)


NewThreads = Callable[[], list[threading.Thread]]


def test_a_consumer_has_a_daemon_thread_that_is_named_after_its_work(
    memory: ObjectStore, new_threads: NewThreads
) -> None:
    with Consumer(memory):
        (thread,) = new_threads()
        assert thread.name.startswith("penstock-collector-")
        assert thread.daemon


def test_the_threads_of_two_consumers_have_two_names(memory: ObjectStore, new_threads: NewThreads) -> None:
    with pytest.raises(Fenced), Consumer(memory), Consumer(memory):
        assert len({thread.name for thread in new_threads()}) == 2


def test_a_consumer_without_a_collector_has_no_thread(memory: ObjectStore, new_threads: NewThreads) -> None:
    with Consumer(memory, ConsumerConfig(gc=False)):
        assert new_threads() == []


def test_a_consumer_without_a_collector_lists_nothing(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    intercepted = InterceptedStore(memory)
    with Consumer(intercepted, ConsumerConfig(gc=False, gc_interval=1e-9)) as consumer:
        read(consumer).ack()
    assert intercepted.count("list_objects", "delete") == 0


def test_a_cycle_comes_again_after_each_interval(store: ObjectStore) -> None:
    intercepted = InterceptedStore(store)
    cycles = Cycles(intercepted)
    with Consumer(intercepted, often()):
        cycles.wait_for(3)


def test_no_cycle_comes_before_the_first_interval(memory: ObjectStore) -> None:
    intercepted = InterceptedStore(memory)
    with Consumer(intercepted, ConsumerConfig(gc_interval=3600.0, gc_at_close=0.0)) as consumer:
        consumer.flush()
    assert intercepted.count("list_objects") == 0


def test_an_object_that_was_acked_is_deleted_in_the_background_and_one_that_was_not_is_kept(fresh_name: str) -> None:
    now = [1_700_000_000.0]
    store = MemoryStore(fresh_name, clock=lambda: now[0])
    (first,) = fill(store, [b"a"], clock=lambda: now[0])
    now[0] += 1.0
    (second,) = fill(store, [b"b"], clock=lambda: now[0])
    intercepted = InterceptedStore(store)
    deleted = threading.Event()
    intercepted.after("delete", deleted.set, path=first.location)
    let_time_pass(intercepted, now)
    with Consumer(intercepted, often(), clock=lambda: now[0]) as consumer:
        now[0] += often().gc_grace_period
        read(consumer).ack()
        assert deleted.wait(PATIENCE)
        assert read(consumer).location == second.location
    assert first.location not in [found.path for found in store.list_objects()]
    assert metric("gc_files_deleted_total", store.url) == 1


def test_the_collector_looks_where_its_consumer_reads(memory: ObjectStore, manifest: str) -> None:
    intercepted = InterceptedStore(memory)
    cycles = Cycles(intercepted)
    with Consumer(intercepted, ConsumerConfig(data_path_prefix="p", manifest_path="p/m", gc_interval=0.001)):
        cycles.wait_for(1)
    beside = {"p/m.d"} if manifest == "native" else {"p/m.id"}
    assert {path for _, path in intercepted.calls} == {"p", "p/m", "p/.owner", "p/.collected"} | beside


# A cycle that fails


@pytest.mark.parametrize(
    "error", [StorageError("the store is down"), RuntimeError("a store of a user's")], ids=["ours", "theirs"]
)
def test_a_cycle_that_fails_is_logged_and_does_not_end_the_thread(
    memory: ObjectStore, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    intercepted = InterceptedStore(memory)
    intercepted.fail("list_objects", error, times=2)
    cycles = Cycles(intercepted)
    with Consumer(intercepted, often()):
        cycles.wait_for(2)  # of those that did not fail
    assert intercepted.count("list_objects") >= 4
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(records) == 2
    for record in records:
        assert memory.url in record.getMessage()
        assert record.exc_info is not None
        assert record.exc_info[1] is error


def test_a_cycle_that_fails_does_not_reach_the_consumer(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    intercepted = InterceptedStore(memory)
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise StorageError("the store is down")

    intercepted.before("list_objects", fail, times=1_000_000)
    with Consumer(intercepted, often()) as consumer:
        assert failed.wait(PATIENCE)
        read(consumer).ack()
        assert consumer.last_acked_sequence == 0


def test_a_fenced_consumer_goes_on_collecting_until_it_is_closed(memory: ObjectStore) -> None:
    # A collector has no epoch: any number of them may run.
    intercepted = InterceptedStore(memory)
    cycles = Cycles(intercepted)
    with pytest.raises(Fenced), Consumer(intercepted, often()), Consumer(memory, ConsumerConfig(gc=False)):
        cycles.wait_for(2)


# The end of it


def test_close_ends_the_thread(store: ObjectStore, new_threads: NewThreads) -> None:
    intercepted = InterceptedStore(store)
    cycles = Cycles(intercepted)
    consumer = Consumer(intercepted, often())
    (thread,) = new_threads()
    cycles.wait_for(1)
    consumer.close()
    assert not thread.is_alive()


def test_close_does_not_wait_for_the_next_cycle(memory: ObjectStore, new_threads: NewThreads) -> None:
    consumer = Consumer(memory, ConsumerConfig(gc_interval=1e6))
    (thread,) = new_threads()
    consumer.close()
    assert not thread.is_alive()


def test_close_waits_for_a_cycle_that_is_under_way(memory: ObjectStore, new_threads: NewThreads) -> None:
    intercepted = InterceptedStore(memory)
    under_way = threading.Event()
    consumer = Consumer(intercepted, often())
    (thread,) = new_threads()

    def hold_until_closing() -> None:
        under_way.set()
        while True:
            try:
                consumer.next_descriptors(0)  # does not call the store, and raises once `close` has begun
            except Closed:
                return

    intercepted.before("list_objects", hold_until_closing)
    assert under_way.wait(PATIENCE)
    consumer.close()
    assert not thread.is_alive()


def test_a_consumer_that_could_not_be_opened_leaves_no_thread(memory: ObjectStore, new_threads: NewThreads) -> None:
    intercepted = InterceptedStore(memory)
    intercepted.fail("put_if_absent", StorageError("the store refuses to write"), path=MANIFEST)
    with pytest.raises(StorageError):
        Consumer(intercepted)
    assert new_threads() == []
