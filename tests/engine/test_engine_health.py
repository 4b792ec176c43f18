"""What an engine tells of itself: its log, its regulation, and whether it is healthy."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.engine import BatchEngine, EngineConfig, Health, MemoryTransport, Pressure, SelfRegulation, WorkBatch
from penstock.errors import SinkFailed
from tests.engine.doubles import Clock, Faults, Heap, Scripted, Sink, TimedShutdown, holding, regulated, through

QUICK = EngineConfig(recv_timeout=0)


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.engine")


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [one.message for one in caplog.records if one.levelno == level and one.name.startswith("penstock.engine")]


def test_a_run_logs_its_begin_and_its_end_and_nothing_for_each_block(caplog: pytest.LogCaptureFixture) -> None:
    BatchEngine(EngineConfig(max_records=1, recv_timeout=0)).run(holding(5), through, Sink(), until_idle=True)
    begin, end = messages(caplog, logging.INFO)
    assert begin.startswith("a run begins: from MemoryTransport(5 not committed), until it is empty")
    assert "and 5 blocks; received meanwhile: 5, processed: 5, dead-lettered: 0" in end


def test_an_error_that_ends_a_run_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SinkFailed):
        BatchEngine(QUICK).run(holding(1), through, Sink(faults=Faults(("sink", 0))), until_idle=True)
    (warning,) = messages(caplog, logging.WARNING)
    assert warning.startswith("a run failed, from MemoryTransport(1 not committed), and nothing of its last block")
    assert "SinkFailed: the sink, given WorkBatch(" in warning
    assert "planned at sink 0" in warning


class Held:
    """An engine that is held until the clock says so; `look` is called once a second."""

    def __init__(self) -> None:
        self.clock, self.heap, self.seen = Clock(), Heap(0.9), list[Any]()
        self.engine = BatchEngine(QUICK, regulation=regulated(self.heap.guard), clock=self.clock)

    def run(self, look: Any, relief_at: float = 1e9, until: float = 5.5) -> list[Any]:
        def tick() -> None:
            self.seen.append(look(self.engine))
            if self.clock.now >= relief_at:
                self.heap.share = 0.1

        shutdown = TimedShutdown(self.clock, until)
        idle = Scripted(when_done=lambda: setattr(self.clock, "now", self.clock.now + 0.05))
        self.engine.run(idle, through, Sink(), ticker=(1.0, tick), shutdown=shutdown)
        return self.seen


def test_a_hold_and_its_end_are_logged_with_the_source_and_the_level(caplog: pytest.LogCaptureFixture) -> None:
    Held().run(lambda engine: None, relief_at=3.0)
    held, released = [one for one in messages(caplog, logging.INFO) if "receiving" in one]
    assert held.startswith("receiving is held: the pressure is 0.90, of memory")
    assert released.startswith("receiving goes on after 3.0 s: the pressure is 0.10, of memory")


def test_a_snapshot_has_the_budget_the_pressure_with_its_parts_and_the_hold() -> None:
    snapshot = Held().run(lambda engine: engine.regulation.snapshot())[2]
    assert (snapshot.byte_budget, snapshot.record_cap) == (50, 1_000_000)
    assert snapshot.pressure == pytest.approx(0.9)
    (part,) = snapshot.parts
    assert (part.name, part.hard, part.weight, round(part.reading, 2)) == ("memory", True, 1.0, 0.9)
    assert (snapshot.held, round(snapshot.held_seconds)) == (True, 3)


def test_a_snapshot_shows_a_soft_source_as_it_read_with_its_weight() -> None:
    class Backlog:
        name, weight, hard = "backlog", 0.5, False

        def read(self) -> Pressure:
            return Pressure(0.8)

    engine = BatchEngine(regulation=SelfRegulation(guard=Heap(0.1).guard, sources=(Backlog(),)))
    snapshot = engine.regulation.snapshot()
    assert snapshot.pressure == pytest.approx(0.4)
    assert [(part.name, part.reading, part.weight) for part in snapshot.parts][1] == ("backlog", 0.8, 0.5)


def test_after_a_run_nothing_is_held() -> None:
    held = Held()
    held.run(lambda engine: None)
    snapshot = held.engine.regulation.snapshot()
    assert (snapshot.held, snapshot.held_seconds) == (False, 0.0)


def test_without_regulation_a_snapshot_has_no_budget() -> None:
    snapshot = BatchEngine(regulation=None).regulation.snapshot()
    assert (snapshot.byte_budget, snapshot.record_cap, snapshot.parts, snapshot.held) == (None, None, (), False)


def test_an_engine_that_has_not_run_is_healthy() -> None:
    assert BatchEngine().healthy == Health(True, "no run on the way")


def test_an_engine_whose_run_failed_is_not_healthy_until_the_next_begins() -> None:
    engine, source, seen = BatchEngine(QUICK), holding(1), list[Health]()
    with pytest.raises(SinkFailed):
        engine.run(source, through, Sink(faults=Faults(("sink", 0))), until_idle=True)
    assert not engine.healthy
    assert engine.healthy.reason.startswith("the last run ended with SinkFailed: the sink, given")
    engine.run(source, through, lambda batch: seen.append(engine.healthy), until_idle=True)
    assert seen == [Health(True, "1 run on the way")]
    assert engine.healthy


def test_an_engine_whose_receiver_is_not_healthy_is_not_healthy() -> None:
    class Ill(Scripted):
        healthy = False

    engine, seen = BatchEngine(QUICK), list[Health]()
    receiver = Ill(WorkBatch((), (1,)), when_done=lambda: seen.append(engine.healthy))
    engine.run(receiver, through, Sink(), until_idle=True)
    assert [one.ok for one in seen] == [False]
    assert "is not healthy" in seen[0].reason


def test_an_engine_whose_receiver_cannot_say_is_not_healthy() -> None:
    class Broken(Scripted):
        @property
        def healthy(self) -> bool:
            raise OSError("no answer")

    engine, seen = BatchEngine(QUICK), list[Health]()
    receiver = Broken(WorkBatch((), (1,)), when_done=lambda: seen.append(engine.healthy))
    engine.run(receiver, through, Sink(), until_idle=True)
    assert [one.ok for one in seen] == [False]
    assert "cannot say whether it is healthy: OSError: no answer" in seen[0].reason


def test_a_hold_of_more_than_30_seconds_is_not_healthy() -> None:
    seen = Held().run(lambda engine: engine.healthy, until=33.5)
    assert [bool(one) for one in seen] == [True] * 30 + [False] * 3
    assert "receiving is held for 3" in seen[-1].reason


def test_a_block_that_takes_more_than_5_minutes_is_not_healthy() -> None:
    clock, seen = Clock(), list[Health]()
    engine = BatchEngine(QUICK, clock=clock)

    def slow(batch: WorkBatch) -> None:
        for clock.now in (300.0, 301.0):
            seen.append(engine.healthy)

    engine.run(holding(1), through, slow, until_idle=True)
    assert [one.ok for one in seen] == [True, False]
    assert "in progress for 301 s" in seen[1].reason


def test_runs_at_the_same_time_share_the_budget() -> None:
    engine, limits = BatchEngine(QUICK, regulation=regulated(Heap().guard)), list[int | None]()

    def nest(batch: WorkBatch) -> None:
        inner = Scripted()
        engine.run(inner, through, Sink(), until_idle=True)
        limits.append(inner.limits[0][1])

    source = MemoryTransport()
    source.inject(b"a")
    engine.run(source, through, nest, until_idle=True)
    assert limits == [50]
