"""Fourteen times as much as fits: a governed pipeline holds little of it at a time, drains it, and leaks nothing."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from penstock import Producer, ProducerConfig
from penstock.engine import (
    BatchEngine,
    BufferReceiver,
    ByteBudgetConfig,
    MemoryGuard,
    MemoryTransport,
    Pressure,
    Receiver,
    SelfRegulation,
    WorkBatch,
)
from penstock.records import Record
from tests.support.memory_readings import reading
from tests.support.waiting import Background

LIMIT = 1 << 20
LOAD = 14 * LIMIT
RECORD = 1 << 10
OBJECT = 64 << 10
ROWS = LOAD // RECORD


class WatchedGuard(MemoryGuard):
    """A guard that knows the most that was ever leased."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.peak = 0

    def look(self) -> None:
        self.peak = max(self.peak, self.current_bytes)

    def add(self, count: int) -> None:
        super().add(count)
        self.look()


class Backlog:
    """A sink that a slow thread works off: what it received stays leased until then.

    The thread begins when memory is full, as far as the gate sees it, and stops when all is worked off.
    """

    name, weight, hard = "backlog", 0.0, False

    def __init__(self, guard: WatchedGuard) -> None:
        self._guard = guard
        self._waiting: queue.SimpleQueue[list[Record]] = queue.SimpleQueue()
        self._is_full = Event()
        self._is_over = False
        self.seen: list[bytes] = []

    def sink(self, batch: WorkBatch) -> None:
        self._guard.look()
        self._guard.add(batch.total_bytes)
        self._waiting.put(batch.records)

    def read(self) -> Pressure:
        """A source without weight: it says nothing, and is asked whenever the gate looks."""
        if self._guard.read() >= 0.8:
            self._is_full.set()
        return Pressure(0)

    @contextmanager
    def worked_off(self) -> Iterator[None]:
        """Within this the thread runs; at the end everything is worked off."""
        worker = Background(self._work)
        try:
            yield
        finally:
            self._is_over = True
            self._is_full.set()
            worker.result()

    def _work(self) -> None:
        is_over = False
        while not is_over:
            self._is_full.wait()
            is_over = self._is_over
            self._is_full.clear()
            while not self._waiting.empty():
                records = self._waiting.get()
                self.seen += [record.value[:8] for record in records]
                self._guard.release(sum(len(record.value) for record in records))


def payloads() -> list[bytes]:
    return [b"%08d" % number + bytes(RECORD - 8) for number in range(ROWS)]


NUMBERS = [b"%08d" % number for number in range(ROWS)]


@contextmanager
def in_memory(folder: Path) -> Iterator[Receiver]:
    with MemoryTransport() as transport:
        for payload in payloads():
            transport.inject(payload)
        yield transport


@contextmanager
def in_a_buffer(folder: Path) -> Iterator[Receiver]:
    with Producer(folder, ProducerConfig(flush_size_bytes=OBJECT)) as producer:
        for payload in payloads():
            producer.produce(payload)
    with BufferReceiver(folder) as receiver:
        yield receiver


@pytest.fixture(params=[in_memory, in_a_buffer])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    """A receiver with fourteen times the limit."""
    with request.param(tmp_path) as receiver:
        yield receiver


def unchanged(batch: WorkBatch) -> WorkBatch:
    return batch


def test_a_governed_pipeline_keeps_its_leases_under_half_the_load_and_drains_everything(receiver: Receiver) -> None:
    guard = WatchedGuard(LIMIT)
    backlog = Backlog(guard)
    pauses, paused = reading("penstock_inbound_pauses_total"), reading("penstock_inbound_paused")
    engine = BatchEngine(regulation=SelfRegulation(guard=guard, sources=(backlog,)))
    with backlog.worked_off():
        stats = engine.run(receiver, unchanged, backlog.sink, until_idle=True)
    assert backlog.seen == NUMBERS
    assert (stats.processed, stats.bytes) == (ROWS, LOAD)
    assert guard.peak < LOAD / 2
    assert guard.peak <= 1.5 * LIMIT, "the hold came late"
    assert guard.peak >= 0.8 * LIMIT, "there was no overload"
    assert guard.current_bytes == 0
    assert reading("penstock_inbound_pauses_total") - pauses >= 5
    assert reading("penstock_inbound_paused") == paused


def test_without_regulation_the_whole_load_is_in_memory(receiver: Receiver) -> None:
    guard = WatchedGuard(LIMIT)
    backlog = Backlog(guard)
    engine = BatchEngine(regulation=None)
    with backlog.worked_off():
        engine.run(receiver, unchanged, backlog.sink, until_idle=True)
    assert backlog.seen == NUMBERS
    assert guard.peak > LOAD / 2
    assert guard.current_bytes == engine.guard.current_bytes == 0


def test_a_sink_that_keeps_nothing_never_has_the_gate_hold(receiver: Receiver) -> None:
    guard = WatchedGuard(LIMIT)
    pauses = reading("penstock_inbound_pauses_total")
    rows = 0

    def sink(batch: WorkBatch) -> None:
        nonlocal rows
        guard.look()
        rows += len(batch)

    BatchEngine(regulation=SelfRegulation(guard=guard)).run(receiver, unchanged, sink, until_idle=True)
    assert rows == ROWS
    assert 0 < guard.peak < LIMIT / 2
    assert guard.current_bytes == 0
    assert reading("penstock_inbound_pauses_total") == pauses


class Full:
    """A source that is always full; it sets an event when it was read often enough."""

    name, weight, hard = "full", 1.0, True

    def __init__(self, asked: Event) -> None:
        self._asked = asked
        self._remaining = 3

    def read(self) -> Pressure:
        self._remaining -= 1
        if self._remaining == 0:
            self._asked.set()
        return Pressure(1)


def test_a_run_that_ends_while_it_is_held_took_nothing_and_leaves_the_gate_open(receiver: Receiver) -> None:
    shutdown, paused = Event(), reading("penstock_inbound_paused")
    engine = BatchEngine(regulation=SelfRegulation(guard=MemoryGuard(LIMIT), sources=(Full(shutdown),)))
    stats = engine.run(receiver, unchanged, lambda _: None, shutdown=shutdown)
    assert (stats.received, engine.guard.current_bytes) == (0, 0)
    assert reading("penstock_inbound_paused") == paused


class FullBetweenTwoBlocks:
    """A source that is full when the gate looks after the third block, a few times; never right after a block."""

    name, weight, hard = "full between", 1.0, True

    def __init__(self) -> None:
        self.budgets: list[float] = []
        self._asked = 0

    def sink(self, batch: WorkBatch) -> None:
        self.budgets.append(reading("penstock_byte_budget"))
        self._asked = 0

    def read(self) -> Pressure:
        self._asked += 1
        return Pressure(len(self.budgets) == 3 and 2 <= self._asked < 5)


def test_a_hold_makes_the_next_block_smaller_whatever_the_blocks_before_took() -> None:
    source, payload = MemoryTransport(), bytes(1 << 20)
    source.send([Record(payload)] * 100)
    full = FullBetweenTwoBlocks()
    engine = BatchEngine(regulation=SelfRegulation(guard=MemoryGuard(64 << 30), sources=(full,)))
    engine.run(source, unchanged, full.sink, until_idle=True)
    assert full.budgets[3] < full.budgets[2]


# --- the budget while a backlog is drained

MIB = 1 << 20


class SlowMachine:
    """A clock that work moves on: a tenth of a second for each block, and so many MiB a second."""

    def __init__(self, mib_per_second: float) -> None:
        self._rate = mib_per_second * MIB
        self.now = 0.0
        self.budgets: list[int] = []

    def clock(self) -> float:
        return self.now

    def process(self, batch: WorkBatch) -> WorkBatch:
        self.now += 0.1 + batch.total_bytes / self._rate
        self.budgets.append(int(reading("penstock_byte_budget")))
        return batch

    def drain(self, mib: int) -> list[int]:
        """Drain a backlog, and return the budget of each of its blocks, without the first ones."""
        source, payload = MemoryTransport(), bytes(MIB)
        source.send([Record(payload)] * mib)
        engine = BatchEngine(regulation=SelfRegulation(guard=MemoryGuard(64 << 30)), clock=self.clock)
        engine.run(source, self.process, lambda _: None, until_idle=True)
        return self.budgets[len(self.budgets) // 4 :]


def test_draining_a_backlog_settles_the_budget_where_a_block_takes_its_time() -> None:
    budgets = SlowMachine(20).drain(3000)
    assert len(budgets) > 20
    assert min(budgets) >= 12 * MIB, "the floor is 1 MiB"
    assert max(budgets) <= 48 * MIB, "so much takes longer than two seconds"


def test_on_a_fast_machine_the_budget_grows_to_its_most() -> None:
    assert SlowMachine(10_000).drain(3000)[-1] == 128 * MIB


def test_on_a_very_slow_machine_the_budget_is_at_its_floor() -> None:
    assert SlowMachine(0.3).drain(60)[-1] == MIB


def test_a_real_backlog_in_a_buffer_does_not_make_the_budget_fall(tmp_path: Path) -> None:
    with Producer(tmp_path, ProducerConfig(flush_size_bytes=4 * MIB)) as producer:
        for _ in range(200):
            producer.produce([bytes(1000)] * 1000)
    config = ByteBudgetConfig(start_bytes=8 * MIB, floor_bytes=MIB)
    with BufferReceiver(tmp_path) as receiver:
        guard = MemoryGuard(8 << 30)
        engine = BatchEngine(regulation=SelfRegulation(guard=guard, budget=config))
        assert engine.run(receiver, unchanged, lambda _: None, until_idle=True).processed == 200_000
    assert reading("penstock_byte_budget") > 8 * MIB
