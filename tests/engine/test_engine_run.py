"""A run of the engine: what reaches the sink, what is committed, how it ends, what it counts, and its limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Record
from penstock.engine import (
    BatchEngine,
    CommitMode,
    DeadLetter,
    DlqPolicy,
    Drop,
    EngineConfig,
    EngineStats,
    Keep,
    MemoryTransport,
    ParsedBatch,
    ParseErrorAction,
    WorkBatch,
)
from penstock.engine.transports.contract import Verdict
from penstock.errors import InvalidInput, ParseFailed, ReceiveFailed, SinkFailed
from tests.engine.doubles import (
    Clock,
    Faults,
    Heap,
    Scripted,
    Sink,
    Watched,
    holding,
    regulated,
    through,
)
from tests.support.memory_readings import reading
from tests.support.waiting import Background

QUICK = EngineConfig(recv_timeout=0)


def run(receiver: Any, process: Any = through, sink: Any = None, **more: Any) -> EngineStats:
    """Run a new engine until its receiver is empty."""
    engine = BatchEngine(more.pop("config", QUICK), dlq=more.pop("dlq", DlqPolicy.reject()))
    return engine.run(receiver, process, sink or Sink(), until_idle=True, **more)


# Fan-out and collapse


@pytest.mark.parametrize("sub_block_bytes", [None, 2])
def test_a_fan_out_of_1_to_2_sinks_2n_and_commits_exactly_the_n_tokens_once(sub_block_bytes: int | None) -> None:
    receiver, sink = Watched(holding(10)), Sink()
    run(receiver, lambda batch: batch.map_records(lambda some: [*some, *some]), sink, sub_block_bytes=sub_block_bytes)
    assert (len(sink.values), receiver.commits) == (20, [tuple(range(10))])


def test_a_collapse_to_none_commits_the_n_tokens_and_the_sink_is_not_called() -> None:
    receiver, sink = Watched(holding(10)), Sink()
    run(receiver, lambda batch: batch.map_records(lambda some: []), sink)
    assert (sink.batches, receiver.commits) == ([], [tuple(range(10))])


def test_a_collapse_to_none_reaches_a_sink_that_commits_with_the_tokens() -> None:
    receiver, sink = Watched(holding(10)), Sink()
    run(receiver, lambda batch: batch.map_records(lambda some: []), sink, commit=CommitMode.SINK_MANAGED)
    assert (sink.tokens, sink.values, receiver.commits) == ([tuple(range(10))], [], [])


@pytest.mark.parametrize("tokens", [(), (0,), (99,), (0, 1, 2, 3)])
def test_whatever_tokens_process_returns_those_of_the_input_are_committed(tokens: tuple[int, ...]) -> None:
    receiver = Scripted(WorkBatch([Record(b"a")], (0, 1)))
    run(receiver, lambda batch: WorkBatch(batch.records, tokens))
    assert receiver.commits == [(0, 1)]


@pytest.mark.parametrize("tokens", [(), (99,)])
def test_whatever_tokens_process_returns_the_sink_gets_those_of_the_input(tokens: tuple[int, ...]) -> None:
    sink = Sink()
    run(Scripted(WorkBatch([Record(b"a")], (0, 1))), lambda batch: WorkBatch(batch.records, tokens), sink)
    assert sink.tokens == [(0, 1)]


def test_a_process_that_changes_the_tokens_of_its_batch_does_not_change_what_is_committed() -> None:
    def forget(batch: WorkBatch) -> WorkBatch:
        batch.commit_tokens = ()
        return batch

    receiver = Scripted(WorkBatch([Record(b"a")], (0, 1)))
    run(receiver, forget)
    assert receiver.commits == [(0, 1)]


# Commit modes


def test_the_engine_commits_each_block_once_after_its_sink() -> None:
    receiver = Watched(holding(4))
    run(receiver, sink=Sink(receiver.journal), config=EngineConfig(max_records=2, recv_timeout=0))
    assert [name for name, _ in receiver.journal] == ["recv", "sink", "commit", "recv", "sink", "commit", "recv"]


def test_a_sink_that_commits_decides() -> None:
    receiver = Watched(holding(4))
    run(receiver, sink=Sink(commits_in=receiver), commit="sink_managed")
    assert receiver.commits == [(0, 1, 2, 3)]


def test_the_engine_does_not_commit_for_a_sink_that_does_not() -> None:
    receiver = Watched(holding(4))
    run(receiver, commit=CommitMode.SINK_MANAGED)
    assert receiver.commits == []


@pytest.mark.parametrize("commit", CommitMode)
def test_a_block_without_tokens_commits_nothing(commit: CommitMode) -> None:
    receiver, sink = Scripted(WorkBatch([Record(b"a")])), Sink()
    run(receiver, sink=sink, commit=commit)
    assert (receiver.commits, sink.tokens) == ([], [()])


@pytest.mark.parametrize("commit", CommitMode)
def test_a_receive_of_nothing_is_no_block(commit: CommitMode) -> None:
    receiver, sink = Scripted(WorkBatch(())), Sink()
    run(receiver, lambda batch: pytest.fail("it was processed"), sink, commit=commit)
    assert (receiver.commits, sink.batches) == ([], [])


def test_a_block_of_tokens_alone_is_committed() -> None:
    receiver = Scripted(WorkBatch((), (3,)))
    run(receiver, lambda batch: pytest.fail("it was processed"))
    assert receiver.commits == [(3,)]


# How a run ends


def test_until_idle_ends_when_the_receiver_is_empty() -> None:
    assert run(holding(5), config=EngineConfig(max_records=2, recv_timeout=0)).processed == 5


def test_without_until_idle_it_goes_on_after_an_empty_receive() -> None:
    shutdown, transport, sink = threading.Event(), MemoryTransport(), Sink()
    is_empty = iter([lambda: transport.inject(b"late"), shutdown.set])

    class Waiting(Watched):
        def recv(self, *args: Any, **more: Any) -> WorkBatch:
            block = super().recv(*args, **more)
            if block.is_empty:
                next(is_empty)()
            return block

    BatchEngine(QUICK).run(Waiting(transport), through, sink, shutdown=shutdown)
    assert sink.values == [b"late"]


def test_a_shutdown_that_is_set_before_receives_nothing() -> None:
    receiver, shutdown = Watched(holding(1)), threading.Event()
    shutdown.set()
    BatchEngine(QUICK).run(receiver, through, Sink(), shutdown=shutdown)
    assert receiver.recvs == 0


def test_a_shutdown_ends_the_run_after_the_current_block_which_is_committed() -> None:
    receiver, shutdown = Watched(holding(4)), threading.Event()
    engine = BatchEngine(EngineConfig(max_records=2, recv_timeout=0))
    engine.run(receiver, through, lambda batch: shutdown.set(), shutdown=shutdown)
    assert (receiver.recvs, receiver.commits) == (1, [(0, 1)])


def test_a_shutdown_from_another_thread_ends_a_run_that_waits() -> None:
    shutdown, waits = threading.Event(), threading.Event()
    receiver = Scripted(when_done=waits.set)
    running = Background(lambda: BatchEngine().run(receiver, through, Sink(), shutdown=shutdown))
    assert waits.wait(60)
    shutdown.set()
    assert running.result() == EngineStats()


def test_an_engine_runs_again_after_a_failure() -> None:
    engine, sink = BatchEngine(QUICK), Sink(faults=Faults(("sink", 0)))
    transport = holding(2)
    with pytest.raises(SinkFailed):
        engine.run(transport, through, sink, until_idle=True)
    engine.run(transport, through, sink, until_idle=True)
    assert (len(sink.values), transport.committed_sequence) == (2, 1)


def test_a_receiver_that_returns_no_work_batch_fails_the_receive() -> None:
    receiver = Scripted()
    receiver.blocks.append([Record(b"a")])  # type: ignore[arg-type]
    with pytest.raises(ReceiveFailed, match="recv must return a WorkBatch, not list"):
        run(receiver)


# Stats and metrics


def judge(record: Record) -> Verdict:
    verdicts: dict[bytes, Verdict] = {b"0": Keep, b"1": Drop}
    return verdicts.get(record.value) or DeadLetter.of(record, "bad", stage="recv")


EXPECTED = EngineStats(received=3, processed=1, errors=0, filtered=1, dead_lettered=1, bytes=1)


def test_the_stats_count_what_was_done() -> None:
    assert run(holding(3, filters=[judge]), dlq=DlqPolicy.discard()) == EXPECTED


def test_the_stats_go_on_over_runs() -> None:
    engine = BatchEngine(QUICK)
    for _ in range(2):
        engine.run(holding(3), through, Sink(), until_idle=True)
    assert (engine.stats.received, engine.stats.processed, engine.stats.bytes) == (6, 6, 6)


def test_a_block_that_failed_is_an_error_and_is_not_processed() -> None:
    engine = BatchEngine(QUICK)
    with pytest.raises(SinkFailed):
        engine.run(holding(3), through, Sink(faults=Faults(("sink", 0))), until_idle=True)
    assert engine.stats == EngineStats(received=3, errors=1, bytes=3)


def test_an_interrupt_is_no_error_of_the_engine() -> None:
    engine = BatchEngine(QUICK)

    def interrupted(batch: WorkBatch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(holding(3), through, interrupted, until_idle=True)
    assert engine.stats.errors == 0


@pytest.mark.parametrize("field", ["received", "processed", "filtered", "dead_lettered", "bytes"])
def test_the_metrics_count_what_the_stats_count(field: str) -> None:
    before = reading(f"penstock_engine_{field}_total")
    run(holding(3, filters=[judge]), dlq=DlqPolicy.discard())
    assert reading(f"penstock_engine_{field}_total") - before == getattr(EXPECTED, field)


def test_the_metrics_count_errors() -> None:
    before = reading("penstock_engine_errors_total")
    with pytest.raises(SinkFailed):
        run(holding(1), sink=Sink(faults=Faults(("sink", 0))))
    assert reading("penstock_engine_errors_total") - before == 1


def test_the_size_of_the_last_block_is_a_metric() -> None:
    run(holding(7, 3))
    assert reading("penstock_recv_block_bytes") == 21


# Limits


def test_a_receive_is_limited_to_the_records_of_the_config() -> None:
    receiver = Scripted()
    BatchEngine(EngineConfig(max_records=7, recv_timeout=0)).run(receiver, through, Sink(), until_idle=True)
    assert receiver.limits[0][0] == 7


def test_a_receive_is_limited_to_the_records_of_the_budget() -> None:
    receiver = Scripted()
    engine = BatchEngine(QUICK, regulation=regulated(Heap().guard, record_cap=5))
    engine.run(receiver, through, Sink(), until_idle=True)
    assert receiver.limits[0][0] == 5


def test_a_receive_has_no_limit_in_bytes_without_regulation() -> None:
    receiver = Scripted()
    BatchEngine(QUICK, regulation=None).run(receiver, through, Sink(), until_idle=True)
    assert receiver.limits[0][1] is None


def budgets(engine: BatchEngine, receiver: Scripted | Watched, sink: Any, **more: Any) -> list[int | None]:
    """The limits in bytes that the receiver was given."""
    engine.run(receiver, through, sink, until_idle=True, **more)
    return [most for _, most, _ in receiver.limits]


def test_quick_blocks_let_the_budget_grow_up_to_its_most() -> None:
    engine = BatchEngine(QUICK, regulation=regulated(Heap().guard), clock=Clock())
    assert budgets(engine, Watched(holding(100, 5)), Sink()) == [100, 150, 200, 200, 200]


def test_slow_blocks_halve_the_budget_down_to_its_floor() -> None:
    clock = Clock()

    def slow(batch: WorkBatch) -> None:
        clock.now += 60

    engine = BatchEngine(QUICK, regulation=regulated(Heap().guard), clock=clock)
    assert budgets(engine, Watched(holding(20, 10)), slow)[:5] == [100, 50, 25, 12, 10]


def test_a_block_has_no_more_bytes_than_the_budget_it_was_received_with() -> None:
    sizes: list[int] = []
    engine = BatchEngine(QUICK, regulation=regulated(Heap().guard), clock=Clock())
    given = budgets(engine, Watched(holding(100, 7)), lambda batch: sizes.append(batch.total_bytes))
    assert all(size <= most for size, most in zip(sizes, given, strict=False) if most is not None)


@pytest.mark.parametrize(
    ("budget", "sub_block_bytes", "expected"),
    [(40, 20, 20), (20, 40, 20), (40, None, 40), (None, 20, 20), (None, None, 100), (40, 0, 10)],
)
def test_the_size_of_a_piece_is_the_smaller_of_budget_and_sub_block(
    budget: int | None, sub_block_bytes: int | None, expected: int
) -> None:
    regulation = None if budget is None else regulated(Heap().guard, start_bytes=budget)
    sizes: list[int] = []
    BatchEngine(QUICK, regulation=regulation).run(
        Scripted(WorkBatch([Record(b"x" * 10)] * 10)),
        through,
        lambda batch: sizes.append(batch.total_bytes),
        sub_block_bytes=sub_block_bytes,
        until_idle=True,
    )
    assert sizes == [expected] * (100 // expected) + [100 % expected] * (100 % expected > 0)


def test_the_budget_is_a_metric() -> None:
    BatchEngine(QUICK, regulation=regulated(Heap().guard, start_bytes=77), clock=Clock())
    assert reading("penstock_byte_budget") == 77


def test_a_slow_block_of_empty_records_counts_as_slow_and_not_as_nothing() -> None:
    clock = Clock()

    def slowly(batch: WorkBatch) -> WorkBatch:
        clock.now += 1000
        shutdown.set()
        return batch

    shutdown = threading.Event()
    regulation = regulated(Heap().guard)
    BatchEngine(QUICK, regulation=regulation, clock=clock).run(holding(3, size=0), slowly, Sink(), shutdown=shutdown)
    assert reading("penstock_byte_budget") == 50


# What cannot be run


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_records", 0),
        ("max_records", 1.5),
        ("recv_timeout", -1),
        ("recv_timeout", "1"),
        ("parse_format", "xml"),
        ("parse_error_action", "ignore"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=field):
        EngineConfig(**{field: value})


BAD: dict[str, Callable[[], object]] = {
    "config must be": lambda: BatchEngine({"max_records": 1}),  # type: ignore[arg-type]
    "dlq must be": lambda: BatchEngine(dlq=lambda letters: None),  # type: ignore[arg-type]
    "regulation must be": lambda: BatchEngine(regulation=True),  # type: ignore[arg-type]
    "shutdown must be": lambda: BatchEngine().run(Scripted(), through, Sink(), shutdown=True),  # type: ignore[arg-type]
    "a receiver has recv and commit, and NoneType has no recv": lambda: BatchEngine().run(None, through, Sink()),  # type: ignore[arg-type]
    "a receiver must be an object, and Scripted is a class": lambda: BatchEngine().run(Scripted, through, Sink()),  # type: ignore[arg-type]
    "process must be": lambda: BatchEngine().run(Scripted(), None, Sink()),  # type: ignore[arg-type]
    "sink must be": lambda: BatchEngine().run(Scripted(), through, []),  # type: ignore[arg-type]
    "commit must be": lambda: BatchEngine().run(Scripted(), through, Sink(), commit="never"),
    "sub_block_bytes must be": lambda: BatchEngine().run(Scripted(), through, Sink(), sub_block_bytes=-1),
    "ticker must be": lambda: BatchEngine().run(Scripted(), through, Sink(), ticker=(1.0, "fn")),  # type: ignore[arg-type]
    "ticker's seconds must be": lambda: BatchEngine().run(Scripted(), through, Sink(), ticker=(0, print)),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_run_is_refused(what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        BAD[what]()


def test_an_engine_can_run_after_what_it_refused() -> None:
    engine = BatchEngine(QUICK)
    with pytest.raises(InvalidInput):
        engine.run(Scripted(), through, Sink(), commit="never")
    assert engine.run(holding(1), through, Sink(), until_idle=True).processed == 1


# Parsing


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
