"""The ticker of a run: when it is called, and what it does not change about the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from penstock import Record
from penstock.engine import BatchEngine, EngineConfig, MemoryTransport, WorkBatch
from tests.engine.doubles import Clock, Fault, Heap, Scripted, Sink, TimedShutdown, holding, regulated, through

QUICK = EngineConfig(recv_timeout=0)


def ticks(block_seconds: Iterable[float], interval: float, fn: Callable[[], object] = int) -> list[float]:
    """When the ticker was called, with blocks that take so long."""
    clock, times, durations = Clock(), list[float](), list(block_seconds)
    remaining = iter(durations)

    def sink(batch: WorkBatch) -> None:
        clock.now += next(remaining)

    def note() -> None:
        times.append(clock.now)
        fn()

    engine = BatchEngine(EngineConfig(max_records=1, recv_timeout=0), clock=clock)
    engine.run(holding(len(durations)), through, sink, ticker=(interval, note), until_idle=True)
    return times


@pytest.mark.parametrize(
    ("block_seconds", "interval", "expected"),
    [
        pytest.param([1.0] * 6, 2.0, [2.0, 4.0, 6.0], id="first after one interval, and then on time"),
        pytest.param([1.0] * 6, 7.0, [], id="not before its interval"),
        pytest.param([5.0] * 2, 2.0, [5.0, 10.0], id="once for the times that each block missed"),
        pytest.param([9.0, 0.0, 0.0, 0.0, 0.0], 2.0, [9.0], id="once, and not one by one"),
        pytest.param([1.5] * 6, 2.0, [3.0, 4.5, 6.0, 9.0], id="without drift"),
    ],
)
def test_the_ticker_is_called_on_time_between_blocks(
    block_seconds: list[float], interval: float, expected: list[float]
) -> None:
    assert ticks(block_seconds, interval) == expected


def test_a_ticker_that_raises_is_logged_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise Fault("no report today")

    assert ticks([1.0] * 3, 1.0, fail) == [1.0, 2.0, 3.0]
    assert caplog.messages.count("the ticker failed; the loop goes on") == 3


def test_a_receive_waits_no_longer_than_until_the_ticker_is_due() -> None:
    clock = Clock()

    def wait() -> None:
        clock.now += receiver.limits[-1][2]

    receiver = Scripted(when_done=wait)
    engine = BatchEngine(EngineConfig(recv_timeout=50), clock=clock)
    engine.run(receiver, through, Sink(), ticker=(2.0, lambda: None), until_idle=True)
    assert receiver.limits[0][2] == 2.0


def test_a_receive_waits_for_its_timeout_where_nothing_ticks() -> None:
    receiver = Scripted()
    BatchEngine(EngineConfig(recv_timeout=50)).run(receiver, through, Sink(), until_idle=True)
    assert receiver.limits[0][2] == 50


def test_the_ticker_ticks_while_the_gate_holds() -> None:
    clock, heap, times = Clock(), Heap(1.0), list[float]()
    engine = BatchEngine(QUICK, regulation=regulated(heap.guard), clock=clock)
    engine.run(
        holding(1),
        through,
        Sink(),
        ticker=(2.0, lambda: times.append(clock.now)),
        shutdown=TimedShutdown(clock, 5.0),
    )
    assert times == [pytest.approx(2.0), pytest.approx(4.0)]


def test_a_ticker_does_not_end_a_run_before_its_receiver_is_empty() -> None:
    clock = Clock()

    class Slow(MemoryTransport):
        """Returns records after 50 ms; a shorter receive returns nothing."""

        def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
            clock.now += min(timeout, 0.05)
            return super().recv(1, max_bytes, 0) if timeout >= 0.05 else WorkBatch(())

    source, sink = Slow(), Sink()
    source.send([Record(b"x")] * 5)
    BatchEngine(EngineConfig(recv_timeout=0.1), clock=clock).run(
        source, through, sink, ticker=(0.12, lambda: None), until_idle=True
    )
    assert len(sink.values) == 5


def test_a_ticker_that_is_due_all_the_time_does_not_keep_a_run_from_ending() -> None:
    sink = Sink()
    BatchEngine(EngineConfig(recv_timeout=0.01)).run(holding(1), through, sink, ticker=(1e-300, int), until_idle=True)
    assert sink.values == [b"0"]
