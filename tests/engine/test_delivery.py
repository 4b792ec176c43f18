"""What a sink or a route returns: nothing, or writes that are waited for. All else is refused, and not committed."""

from __future__ import annotations

import asyncio
import itertools
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Producer, ProducerConfig, Record, open_store
from penstock.engine import BatchEngine, CommitMode, DeadLetter, DlqPolicy, EngineConfig, MemoryTransport, WorkBatch
from penstock.errors import DeadLetterRouteFailed, EngineError, InvalidInput, ProcessFailed, SinkFailed, StorageError
from penstock.testing import Fault as StoreFault
from penstock.testing import FaultyStore
from tests.engine.doubles import Fault, Watched, through
from tests.support.buffer_contents import entries
from tests.support.waiting import A_WHILE, NEVER, Background, Gate

QUICK = EngineConfig(recv_timeout=0)
done = list[object]()


def work(given: object) -> None:
    done.append(given)


async def work_later(given: object) -> None:
    done.append(given)


async def each_later(given: object) -> Any:
    done.append(given)
    yield


def each(given: object) -> Iterator[None]:
    work(given)
    yield


class Row(tuple[int, int]):
    """A tuple that holds no writes."""


UNDONE: dict[str, Callable[[Any], object]] = {
    "map": lambda batch: map(work, [batch]),
    "filter": lambda batch: filter(work, [batch]),
    "zip": lambda batch: zip([batch], map(work, [batch]), strict=True),
    "generator": each,
    "chain": lambda batch: itertools.chain(each(batch), each(batch)),
    "starmap": lambda batch: itertools.starmap(work, [(batch,)]),
    "async generator": each_later,
    "list with a generator": lambda batch: [each(batch)],
    "function": lambda batch: lambda: work(batch),
    "True": lambda _: True,
    "False": lambda _: False,
    "0": lambda _: 0,
    "int": lambda _: 12,
    "str": lambda _: "written",
    "dict": lambda _: {"written": 12},
    "Table": lambda batch: pa.Table.from_batches([batch.arrow]) if isinstance(batch, WorkBatch) else pa.table({}),
    "same batch": lambda batch: batch,
    "list with an int": lambda _: [None, 12],
    "list with a list": lambda _: [[None]],
    "tuple of ints": lambda _: Row((1, 2)),
    "set": lambda _: set[int](),
}


def source_of(*payloads: bytes) -> MemoryTransport:
    source = MemoryTransport()
    source.send(map(Record, payloads))
    return source


def failure_of(sink: Callable[[WorkBatch], Any], match: str = "the sink") -> BaseException:
    """The cause of a sink's failure, after which nothing is committed, and the block comes again."""
    source = source_of(b"one")
    with pytest.raises(SinkFailed, match=match) as caught:
        BatchEngine(QUICK).run(source, through, sink, until_idle=True)
    assert source.committed_sequence is None
    assert len(source.recv(10)) == 1
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


def all_dead(batch: WorkBatch) -> WorkBatch:
    return WorkBatch((), dead_letters=[DeadLetter.of(record, "it is bad") for record in batch.records])


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@pytest.mark.parametrize(
    ("kind", "commit", "sub_block_bytes"),
    [
        *((kind, CommitMode.AUTO, None) for kind in UNDONE),
        *(("generator", commit, size) for commit, size in itertools.product(CommitMode, [None, 0])),
    ],
)
def test_what_is_no_delivery_is_refused_by_its_type_and_nothing_is_committed(
    kind: str, commit: CommitMode, sub_block_bytes: int | None
) -> None:
    receiver = Watched(source_of(b"one", b"two"))
    with pytest.raises(SinkFailed, match="it returned a ") as caught:
        BatchEngine(QUICK).run(
            receiver,
            through,
            UNDONE[kind],  # type: ignore[arg-type]
            commit=commit,
            sub_block_bytes=sub_block_bytes,
            until_idle=True,
        )
    assert "What may be returned is None, a WriteHandle, a concurrent.futures.Future, or a list" in str(caught.value)
    assert receiver.commits == []
    assert done == []
    assert len(receiver.recv(10)) == 2  # it comes again


@pytest.mark.parametrize("kind", UNDONE)
def test_a_route_is_held_to_the_same(kind: str) -> None:
    receiver = Watched(source_of(b"one"))
    with pytest.raises(DeadLetterRouteFailed, match="it returned a "):
        BatchEngine(QUICK, dlq=DlqPolicy.route(UNDONE[kind])).run(  # type: ignore[arg-type]
            receiver, all_dead, work, until_idle=True
        )
    assert receiver.commits == []
    assert done == []


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("map", "it returned a map, which does its work when it is iterated over: make a list of it"),
        ("async generator", "it returned a async_generator, which nothing awaits"),
        ("int", "it returned a int, which does not say whether the block is delivered"),
    ],
)
def test_the_refusal_names_the_type_and_what_to_do(kind: str, named: str) -> None:
    assert isinstance(failure_of(UNDONE[kind], re.escape(named)), InvalidInput)


def test_a_task_of_the_event_loop_that_the_run_blocks_is_refused() -> None:
    async def run() -> None:
        def sink(batch: WorkBatch) -> Any:
            return asyncio.get_running_loop().create_task(work_later(batch))

        failure_of(sink, "it returned a Task, which nothing awaits")

    asyncio.run(run())


@pytest.mark.parametrize(
    "process", [work, work_later, each, lambda batch: map(work, batch.records), lambda batch: [batch]]
)
def test_a_process_returns_a_work_batch_and_nothing_that_would_become_one(process: Callable[[Any], Any]) -> None:
    source = source_of(b"one")
    with pytest.raises(ProcessFailed, match=r"process must return a WorkBatch, not (NoneType|generator|map|list)"):
        BatchEngine(QUICK).run(source, process, work, until_idle=True)
    assert source.committed_sequence is None


@pytest.mark.parametrize(
    "returned", [None, [], (), [None], (None, None)], ids=["None", "list", "tuple", "list of None", "tuple of None"]
)
def test_nothing_to_wait_for_is_delivered(returned: Any) -> None:
    source = source_of(b"one")
    BatchEngine(QUICK).run(source, through, lambda _: returned, until_idle=True)
    assert source.committed_sequence == 0


@pytest.mark.parametrize("as_what", [lambda one: one, lambda one: [one], lambda one: (None, one)])
@pytest.mark.parametrize("commit", CommitMode)
def test_a_future_is_waited_for_before_the_commit(commit: CommitMode, as_what: Callable[[Any], Any]) -> None:
    receiver, gate = Watched(source_of(b"one")), Gate()

    def deliver(batch: WorkBatch) -> None:
        gate()
        assert receiver.commits == []
        work(batch)
        if commit is CommitMode.SINK_MANAGED:
            receiver.commit(batch.commit_tokens)

    with ThreadPoolExecutor(1) as pool:
        running = Background(
            lambda: BatchEngine(QUICK).run(
                receiver, through, lambda batch: as_what(pool.submit(deliver, batch)), commit=commit, until_idle=True
            )
        )
        gate.wait_for_arrival()
        assert not running.has_ended_within(A_WHILE)
        assert receiver.commits == []
        gate.open()
        running.result()
    assert len(done) == 1
    assert receiver.commits == [(0,)]


def test_the_future_of_a_coroutine_in_another_thread_is_waited_for() -> None:
    source, loop = source_of(b"one"), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        BatchEngine(QUICK).run(
            source,
            through,
            lambda batch: asyncio.run_coroutine_threadsafe(work_later(batch), loop),
            until_idle=True,
        )
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert len(done) == 1
    assert source.committed_sequence == 0


UNDONE_IN_A_THREAD: dict[str, Callable[[Any], object]] = {
    name: UNDONE[name] for name in ("map", "filter", "generator", "chain", "async generator")
} | {"coroutine": work_later, "list with a coroutine": lambda given: [work_later(given), work_later(given)]}


@pytest.mark.parametrize("kind", UNDONE_IN_A_THREAD)
def test_a_future_whose_result_is_work_that_has_not_begun_is_refused(kind: str) -> None:
    source, receiver = source_of(b"one"), Watched(source_of(b"one"))
    with ThreadPoolExecutor(1) as pool:

        def submit(given: object) -> Future[object]:
            return pool.submit(UNDONE_IN_A_THREAD[kind], given)

        with pytest.raises(SinkFailed, match="the result of a future is a "):
            BatchEngine(QUICK).run(source, through, submit, until_idle=True)
        with pytest.raises(DeadLetterRouteFailed, match="the result of a future is a "):
            BatchEngine(QUICK, dlq=DlqPolicy.route(submit)).run(receiver, all_dead, work, until_idle=True)
    assert source.committed_sequence is None
    assert receiver.commits == []
    assert done == []


@pytest.mark.parametrize("as_what", [lambda one: one, lambda one: [None, one], lambda one: (one, one)])
def test_the_writes_in_the_result_of_a_future_are_waited_for(as_what: Callable[[Any], Any]) -> None:
    receiver, gate = Watched(source_of(b"one")), Gate()
    with ThreadPoolExecutor(2) as pool:
        running = Background(
            lambda: BatchEngine(QUICK).run(
                receiver, through, lambda _: pool.submit(lambda: as_what(pool.submit(gate))), until_idle=True
            )
        )
        gate.wait_for_arrival()
        assert not running.has_ended_within(A_WHILE)
        assert receiver.commits == []
        gate.open()
        running.result()
    assert receiver.commits == [(0,)]


@pytest.mark.parametrize(
    "result", [12, "written", {"written": 12}, [1, 2], (), sqlite3.connect(":memory:").execute("select 1"), object()]
)
def test_any_other_result_of_a_future_counts_as_delivered(result: object) -> None:
    source, future = source_of(b"one"), Future[object]()
    future.set_result(result)
    BatchEngine(QUICK).run(source, through, lambda _: future, until_idle=True)
    assert source.committed_sequence == 0


def test_write_handles_are_waited_for(fresh_name: str) -> None:
    source = source_of(b"one", b"two", b"three")
    with Producer(f"memory://{fresh_name}", ProducerConfig(flush_interval=0.01)) as producer:
        BatchEngine(EngineConfig(max_records=2, recv_timeout=0)).run(
            source, through, lambda batch: [producer.produce(record) for record in batch.records], until_idle=True
        )
        assert source.committed_sequence == 2
        assert entries(open_store(f"memory://{fresh_name}")) == [b"one", b"two", b"three"]


def test_a_handle_whose_batch_is_not_written_yet_is_not_committed(fresh_name: str) -> None:
    receiver, produced = Watched(source_of(b"one")), threading.Event()
    with Producer(f"memory://{fresh_name}", ProducerConfig(flush_interval=NEVER)) as producer:

        def sink(batch: WorkBatch) -> Any:
            handle = producer.produce(batch.records)
            produced.set()
            return handle

        running = Background(lambda: BatchEngine(QUICK).run(receiver, through, sink, until_idle=True))
        assert produced.wait(60)
        assert not running.has_ended_within(A_WHILE)
        assert receiver.commits == []
        producer.flush()
        running.result()
        assert receiver.commits == [(0,)]


@pytest.mark.parametrize("in_a_future", [False, True])
def test_a_handle_that_failed_fails_the_sink(fresh_name: str, in_a_future: bool) -> None:
    store = FaultyStore(f"memory://{fresh_name}", rates={})
    store.inject(StoreFault.ERROR_BEFORE, operation="put")
    with Producer(store) as producer, ThreadPoolExecutor(1) as pool:

        def sink(batch: WorkBatch) -> Any:
            return pool.submit(producer.produce, batch.records) if in_a_future else producer.produce(batch.records)

        assert isinstance(failure_of(sink), StorageError)


def failed_with(error: BaseException) -> Future[None]:
    future = Future[None]()
    future.set_exception(error)
    return future


def finished() -> Future[None]:
    future = Future[None]()
    future.set_result(None)
    return future


def test_of_several_failures_the_first_in_order_is_raised_and_all_are_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, gate = source_of(b"one"), Gate()
    first, second = Fault("first"), Fault("second")
    last_was_done = threading.Event()

    def slow() -> None:
        gate()
        last_was_done.set()

    with ThreadPoolExecutor(1) as pool:
        futures = [finished(), failed_with(first), failed_with(second), pool.submit(slow)]
        running = Background(lambda: BatchEngine(QUICK).run(source, through, lambda _: futures, until_idle=True))
        gate.wait_for_arrival()
        assert not running.has_ended_within(A_WHILE)
        gate.open()
        with pytest.raises(SinkFailed) as caught:
            running.result()
    assert last_was_done.is_set()
    assert caught.value.__cause__ is first
    assert "2 of 4 writes that a sink returned have failed" in caplog.text
    assert source.committed_sequence is None


def test_a_cancelled_future_is_not_delivered() -> None:
    future = Future[None]()
    future.cancel()
    future.set_running_or_notify_cancel()
    failure_of(lambda _: future, "CancelledError")


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_a_worker_that_was_ended_fails_the_sink_and_not_the_process(error: BaseException) -> None:
    failure_of(lambda _: failed_with(error), f"a future ended with {type(error).__name__}")


def test_an_interrupt_during_the_wait_ends_it_and_nothing_is_committed() -> None:
    class Interrupting(Future[None]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            raise KeyboardInterrupt

    source = source_of(b"one")
    with pytest.raises(KeyboardInterrupt):
        BatchEngine(QUICK).run(source, through, lambda _: Interrupting(), until_idle=True)
    assert source.committed_sequence is None
    assert len(source.recv(10)) == 1


def test_a_shutdown_during_the_wait_ends_the_run_after_the_block() -> None:
    receiver, gate, shutdown = Watched(source_of(b"one", b"two")), Gate(), threading.Event()

    def deliver() -> None:
        shutdown.set()
        gate()

    with ThreadPoolExecutor(1) as pool:
        engine = BatchEngine(EngineConfig(max_records=1, recv_timeout=0))
        running = Background(lambda: engine.run(receiver, through, lambda _: pool.submit(deliver), shutdown=shutdown))
        gate.wait_for_arrival()
        assert not running.has_ended_within(A_WHILE)
        gate.open()
        running.result()
    assert receiver.commits == [(0,)]


class Delivering(MemoryTransport):
    """A source, with a sink and a route whose futures end later, from other threads, well or badly."""

    def __init__(self, count: int, plan: list[bool], pool: ThreadPoolExecutor) -> None:
        super().__init__()
        self.send(Record(b"%d" % number) for number in range(count))
        self.delivered = set[bytes]()
        self._plan = plan
        self._pool = pool

    def commit(self, tokens: Sequence[Any]) -> None:
        assert {b"%d" % number for number in range(max(tokens) + 1)} <= self.delivered, "committed, not delivered"
        super().commit(tokens)

    def process(self, batch: WorkBatch) -> WorkBatch:
        dead = [record for record in batch.records if int(record.value) % 3 == 0]
        kept = [record for record in batch.records if record not in dead]
        return WorkBatch(kept, dead_letters=[DeadLetter.of(record, "every third") for record in dead])

    def sink(self, batch: WorkBatch) -> list[Future[None]]:
        return [self._deliver_later(record.value) for record in batch.records]

    def route(self, letters: list[DeadLetter]) -> tuple[Future[None], ...]:
        return tuple(self._deliver_later(letter.payload) for letter in letters)

    def _deliver_later(self, value: bytes) -> Future[None]:
        return self._pool.submit(self._deliver, value, fails=bool(self._plan and self._plan.pop()))

    def _deliver(self, value: bytes, *, fails: bool) -> None:
        if fails:
            raise Fault("planned")
        self.delivered.add(value)


@settings(deadline=None)
@given(
    count=st.integers(0, 20),
    block=st.integers(1, 7),
    sub_block_bytes=st.sampled_from([None, 0, 3]),
    plan=st.lists(st.booleans(), max_size=30),
)
def test_nothing_is_committed_unless_it_was_delivered(
    count: int, block: int, sub_block_bytes: int | None, plan: list[bool]
) -> None:
    failures = sum(plan)
    with ThreadPoolExecutor(3) as pool:
        source = Delivering(count, plan, pool)
        engine = BatchEngine(EngineConfig(max_records=block, recv_timeout=0), dlq=DlqPolicy.route(source.route))
        for _ in range(failures + 1):
            with suppress(EngineError):
                engine.run(source, source.process, source.sink, sub_block_bytes=sub_block_bytes, until_idle=True)
    assert source.committed_sequence == (count - 1 if count else None)
    assert source.delivered == {b"%d" % number for number in range(count)}
