"""Cases that somebody found who tried to break the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, ConsumerConfig, DurableEventQueue, Producer, ProducerConfig, Record
from penstock.engine import (
    BatchEngine,
    BufferReceiver,
    BufferSender,
    DlqPolicy,
    EngineConfig,
    MemoryGuard,
    MemoryTransport,
    ParsedBatch,
    ParseErrorAction,
    SelfRegulation,
    WorkBatch,
    ship,
)
from penstock.errors import (
    CorruptData,
    DeadLetterRouteFailed,
    InvalidInput,
    ParseFailed,
    ProcessFailed,
    SinkFailed,
    StorageError,
)
from penstock.queue import queues_in
from tests.engine.doubles import Clock, Sink, through

NO_GC = ConsumerConfig(gc=False)
QUICK = EngineConfig(recv_timeout=0)


def fill(where: str, *batches: list[bytes] | list[Record]) -> None:
    with Producer(where) as producer:
        for batch in batches:
            producer.produce(batch)
            producer.flush()


@pytest.fixture
def where(fresh_name: str) -> str:
    return f"memory://{fresh_name}"


def test_a_receiver_that_is_closed_leaves_what_it_had_fetched_ahead_to_the_next(where: str) -> None:
    fill(where, *([b"%d" % number] for number in range(10)))
    sink, stop = Sink(), threading.Event()

    def take_one(batch: WorkBatch) -> None:
        sink(batch)
        stop.set()

    with Consumer(where, NO_GC) as consumer:
        with BufferReceiver(consumer) as receiver:
            BatchEngine(EngineConfig(max_records=1)).run(receiver, through, take_one, shutdown=stop)
        with BufferReceiver(consumer) as receiver:
            BatchEngine(QUICK).run(receiver, through, sink, until_idle=True)
    assert sink.values == [b"%d" % number for number in range(10)]


def test_what_a_consumer_had_handed_out_to_somebody_else_and_is_not_acked_comes_too(where: str) -> None:
    fill(where, [b"0"], [b"1"])
    with Consumer(where, NO_GC) as consumer:
        consumer.next_descriptors(2)
        with BufferReceiver(consumer) as receiver:
            sink = Sink()
            BatchEngine(QUICK).run(receiver, through, sink, until_idle=True)
    assert sink.values == [b"0", b"1"]


def test_large_keys_and_headers_count_where_a_block_is_limited(where: str) -> None:
    fill(where, *([Record(b"v", key=bytes(1000), headers=[("h", bytes(1000))])] * 2 for _ in range(20)))
    guard = MemoryGuard(64_000)
    seen = list[tuple[int, int]]()

    def note(batch: WorkBatch) -> WorkBatch:
        seen.append((batch.arrow.nbytes, guard.current_bytes))
        return batch

    with BufferReceiver(where) as receiver:
        BatchEngine(QUICK, regulation=SelfRegulation(guard=guard)).run(receiver, note, Sink(), until_idle=True)
    assert max(size for size, _ in seen) <= 64_000 / 8 + 2 * 2200
    assert all(leased >= size * 0.9 for size, leased in seen)


def test_no_more_batches_are_under_way_than_the_memory_has_room_for(where: str) -> None:
    small, large = [b"small"], [bytes(1 << 20)] * 4
    fill(where, small, *[large] * 8)
    guard = MemoryGuard(64 << 20)
    peak = 0

    def look(batch: WorkBatch) -> WorkBatch:
        nonlocal peak
        peak = max(peak, guard.current_bytes)
        return batch

    with BufferReceiver(where) as receiver:
        BatchEngine(QUICK, regulation=SelfRegulation(guard=guard)).run(receiver, look, Sink(), until_idle=True)
    assert peak < 20 << 20


def test_a_sender_cuts_to_what_its_producer_takes(where: str) -> None:
    records = [Record(bytes(1000), key=bytes(1000))] * 100
    with BufferSender(where, ProducerConfig(max_batch_bytes=20_000)) as sender:
        sender.send(records)
    with Consumer(where, NO_GC) as consumer:
        assert sum(batch.arrow.num_rows for batch in consumer) == 100


async def later(_: Any) -> None:
    """Never run."""


def one_by_one(_: Any) -> Any:
    yield "never reached"


@pytest.mark.parametrize("promise", [later, one_by_one])
def test_a_sink_that_only_promises_has_done_nothing(promise: Callable[[Any], Any]) -> None:
    source = MemoryTransport()
    source.inject(b"event")
    with pytest.raises(SinkFailed, match=r"it returned a (coroutine|generator), which"):
        BatchEngine(QUICK).run(source, through, promise, until_idle=True)
    assert source.committed_sequence is None


@pytest.mark.parametrize("promise", [later, one_by_one])
def test_a_route_that_only_promises_has_done_nothing(promise: Callable[[Any], Any]) -> None:
    source = MemoryTransport()
    source.inject(b"no JSON")
    with pytest.raises(DeadLetterRouteFailed, match=r"it returned a (coroutine|generator), which"):
        BatchEngine(QUICK, dlq=DlqPolicy.route(promise)).run(source, through, Sink(), parse=True, until_idle=True)
    assert source.committed_sequence is None


def misfits() -> MemoryTransport:
    source = MemoryTransport()
    source.inject(b'{"a": 1}')
    source.inject(b'{"a": "x"}')
    return source


def test_records_that_turn_out_not_to_fit_after_the_routing_fail_the_block() -> None:
    source, kept = misfits(), list[ParsedBatch]()

    def keep(parsed: ParsedBatch) -> WorkBatch:
        kept.append(parsed)
        return WorkBatch(parsed.records)

    def ask(_: WorkBatch) -> None:
        assert kept[0].arrow.num_rows

    with pytest.raises(SinkFailed, match="ask for `arrow` in `process`"):
        BatchEngine(QUICK, dlq=DlqPolicy.discard()).run(source, keep, ask, parse=True, until_idle=True)
    assert source.committed_sequence is None


def test_a_process_that_swallows_a_parse_failure_fails_all_the_same() -> None:
    source = misfits()

    def swallow(parsed: ParsedBatch) -> WorkBatch:
        with pytest.raises(ParseFailed):
            _ = parsed.arrow
        return WorkBatch(parsed.records)

    engine = BatchEngine(EngineConfig(recv_timeout=0, parse_error_action=ParseErrorAction.FAIL_BATCH))
    with pytest.raises(ParseFailed):
        engine.run(source, swallow, Sink(), parse=True, until_idle=True)
    assert source.committed_sequence is None


def test_what_process_does_to_its_batch_is_nothing_to_the_tokens() -> None:
    source, committed = MemoryTransport(), list[Any]()
    source.inject(b"event")

    def forget(batch: WorkBatch) -> WorkBatch:
        committed.append(batch.commit_tokens)
        batch.commit_tokens = ()
        return batch

    BatchEngine(QUICK).run(source, forget, Sink(), until_idle=True)
    assert (committed, source.committed_sequence) == ([(0,)], 0)


def test_a_ticker_does_not_make_a_run_end_before_nothing_is_left() -> None:
    clock = Clock()

    class Slow(MemoryTransport):
        """Has its records 50 ms after it is asked; a shorter wait brings nothing."""

        def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
            clock.now += min(timeout, 0.05)
            return super().recv(1, max_bytes, 0) if timeout >= 0.05 else WorkBatch(())

    source, sink = Slow(), Sink()
    for number in range(5):
        source.inject(b"%d" % number)
    BatchEngine(EngineConfig(recv_timeout=0.1), clock=clock).run(
        source, through, sink, ticker=(0.12, lambda: None), until_idle=True
    )
    assert len(sink.values) == 5


def test_a_ticker_that_is_due_all_the_time_does_not_keep_a_run_from_ending() -> None:
    source, sink = MemoryTransport(), Sink()
    source.inject(b"event")
    BatchEngine(EngineConfig(recv_timeout=0.01)).run(source, through, sink, ticker=(1e-300, int), until_idle=True)
    assert sink.values == [b"event"]


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_an_exception_that_cannot_say_what_it_is_still_has_its_place() -> None:
    source = MemoryTransport()
    source.inject(b"event")

    def fail(_: WorkBatch) -> WorkBatch:
        raise Speechless

    with pytest.raises(ProcessFailed, match="Speechless"):
        BatchEngine(QUICK).run(source, fail, Sink(), until_idle=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [({"shutdown": True}, "shutdown"), ({"receiver": None}, "receiver"), ({"receiver": Consumer}, "receiver")],
)
def test_what_cannot_be_run_is_refused(words: dict[str, Any], said: str) -> None:
    given = {"receiver": MemoryTransport(), "process": through, "sink": Sink(), **words}
    with pytest.raises(InvalidInput, match=said):
        BatchEngine().run(**given)


@pytest.mark.parametrize("policy", [("foo",), ("route",), ("reject", print)])
def test_a_policy_that_is_none_is_refused(policy: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput, match="DlqPolicy"):
        DlqPolicy(*policy)


def test_pieces_of_a_long_list_are_cut_in_a_time_that_grows_with_it_and_no_faster() -> None:
    class Counted(list[Record]):
        looks = 0

        def __getitem__(self, at: Any) -> Any:
            Counted.looks += 1
            return super().__getitem__(at)

        def __iter__(self) -> Any:
            Counted.looks += len(self)
            return super().__iter__()

    batch = WorkBatch([Record(b"x")] * 1000)
    batch._records = Counted(batch.records)
    Counted.looks = 0
    start = 0
    while start < len(batch):
        start += batch.rows_within(start, 1)
    assert Counted.looks <= 3 * 1000


def test_one_queue_of_a_folder_that_cannot_be_opened_does_not_hold_up_the_others(tmp_path: Path, where: str) -> None:
    for name in "abc":
        with DurableEventQueue(tmp_path / name) as queue:
            queue.push_many([name.encode() * 200] * 100)
    (tmp_path / "a" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    with pytest.raises((CorruptData, StorageError), match=r"queue in .*a "):
        ship(tmp_path, where, until_idle=True)
    for place in queues_in(tmp_path)[1:]:
        with DurableEventQueue(place) as queue:
            assert queue.is_empty


def test_an_event_that_cannot_be_read_does_not_hold_up_those_before_it(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DurableEventQueue(tmp_path / "queue") as queue:
        queue.push_many([b"%d" % number for number in range(10)])
        find = queue._next

        def fail_at_seven(skip_corrupt: bool) -> tuple[int, bytes] | None:
            found = find(skip_corrupt)
            if found is not None and found[0] == 7:
                raise CorruptData("cannot be read")
            return found

        monkeypatch.setattr(queue, "_next", fail_at_seven)
        assert [event.event for event in queue.poll_bytes(100)] == [b"%d" % number for number in range(7)]
        with pytest.raises(CorruptData):
            queue.poll_bytes(100)
