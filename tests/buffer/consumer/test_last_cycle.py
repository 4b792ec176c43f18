"""Short jobs: a consumer that is closed runs the cycle that is due, for a bounded time, and hides nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.buffer import Consumer, ConsumerConfig
from penstock.errors import Fenced, InvalidInput, StorageError
from penstock.storage import LocalStore, MemoryStore, ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import fill, kept, no_gc

HOUR = 3_600.0
MARK = "ingest/.collected"


class Job:
    """A short job that runs once an hour: what came since is read and acked, by a consumer that is then closed."""

    def __init__(self, name: str) -> None:
        self.now = 1_700_000_000.0
        self.store: ObjectStore = MemoryStore(name, clock=lambda: self.now)

    def run(self, config: ConsumerConfig | None = None) -> None:
        fill(self.store, b"one", b"two", clock=lambda: self.now)
        with Consumer(self.store, config or ConsumerConfig(), clock=lambda: self.now) as consumer:
            for batch in consumer:
                batch.ack()
        self.now += HOUR

    def data(self) -> list[str]:
        return [meta.path for meta in self.store.list_objects() if meta.path.endswith(".batch")]


def test_a_job_that_never_lives_for_an_interval_collects_all_the_same(fresh_name: str) -> None:
    job = Job(fresh_name)
    for _ in range(48):
        job.run()
    assert len(job.data()) <= 8  # what the last few runs have acked


def test_a_job_on_a_disk_that_was_first_written_by_a_clock_ten_years_ahead_collects_once_the_clock_is_right(
    tmp_path: Path, fresh_name: str
) -> None:
    job = Job(fresh_name)
    wrong_by = [3_650 * 24 * HOUR]  # for the first write of all
    job.store = LocalStore(
        tmp_path,
        clock=lambda: job.now + (wrong_by.pop() if wrong_by else 0.0),
        uptime=lambda: round((job.now - 1_600_000_000) * 1e9),
    )
    for _ in range(12):
        job.run()
    assert len(job.data()) <= 8


def test_a_job_that_runs_more_often_than_the_interval_collects_once_in_it(fresh_name: str) -> None:
    job = Job(fresh_name)
    intercepted = InterceptedStore(job.store)
    for _ in range(60):
        fill(job.store, b"one", clock=lambda: job.now)
        with Consumer(intercepted, clock=lambda: job.now) as consumer:
            for batch in consumer:
                batch.ack()
        job.now += 60.0
    listings = [path for operation, path in intercepted.calls if operation == "list_objects" and path == "ingest"]
    assert 10 <= len(listings) <= 12  # an hour, and an interval of five minutes
    assert len(job.data()) < 40


def test_without_a_collector_or_without_time_for_it_nothing_is_collected(fresh_name: str) -> None:
    job = Job(fresh_name)
    for config in (no_gc(), ConsumerConfig(gc_at_close=0.0)):
        for _ in range(6):
            job.run(config)
    assert len(job.data()) == 24
    assert MARK not in {meta.path for meta in job.store.list_objects()}


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), "5", True, float("inf")])
def test_the_time_for_it_is_a_number_of_seconds(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="gc_at_close must be a number of seconds, 0 or more"):
        ConsumerConfig(gc_at_close=wrong)  # type: ignore[arg-type]


def test_acks_are_written_before_it_begins(memory: ObjectStore) -> None:
    fill(memory, b"one")
    intercepted = InterceptedStore(memory)
    queued: list[list[int]] = []
    intercepted.before("list_objects", lambda: queued.append(kept(memory)), path="ingest")
    with Consumer(intercepted) as consumer:
        consumer.next_descriptors(1)
        consumer.ack(0)
    assert queued == [[]]


@pytest.mark.parametrize("operation", ["get", "put_if_absent", "list_objects"])
def test_what_goes_wrong_in_it_is_logged_and_not_raised(
    memory: ObjectStore, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(memory, b"one")
    intercepted = InterceptedStore(memory)
    path = {"get": MARK, "put_if_absent": MARK, "list_objects": "ingest"}[operation]
    consumer = Consumer(intercepted)
    intercepted.fail(operation, StorageError("the store is down"), path=path)
    with caplog.at_level(logging.WARNING, "penstock"):
        consumer.close()
    assert intercepted.is_done
    assert "the store is down" in caplog.text


def test_what_goes_wrong_in_it_hides_no_exception_in_flight(memory: ObjectStore) -> None:
    fill(memory, b"one")
    intercepted = InterceptedStore(memory)
    intercepted.fail("list_objects", StorageError("the store is down"))
    with pytest.raises(ZeroDivisionError), Consumer(intercepted):
        raise ZeroDivisionError
    assert intercepted.is_done


def test_after_an_interrupt_close_does_not_run_it(memory: ObjectStore) -> None:
    fill(memory, b"one")
    intercepted = InterceptedStore(memory)
    with pytest.raises(KeyboardInterrupt), Consumer(intercepted):
        raise KeyboardInterrupt
    assert intercepted.count("list_objects") == 0


def test_an_interrupt_in_it_ends_it(memory: ObjectStore) -> None:
    fill(memory, b"one")
    intercepted = InterceptedStore(memory)
    consumer = Consumer(intercepted)
    intercepted.fail("list_objects", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    consumer.close()


def test_a_consumer_that_was_fenced_leaves_it_to_the_one_after(memory: ObjectStore) -> None:
    fill(memory, b"one")
    intercepted = InterceptedStore(memory)
    consumer = Consumer(intercepted)
    Consumer(memory, no_gc())
    with pytest.raises(Fenced):
        consumer.close()
    assert intercepted.count("list_objects") == 0
