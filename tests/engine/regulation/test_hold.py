"""How a run is held while memory is short: when it begins and ends, who hears of it, and what goes on meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Record
from penstock.engine import BatchEngine, EngineConfig, MemoryGuard, WorkBatch
from penstock.engine.regulation import inbound
from penstock.errors import SinkFailed
from tests.engine.doubles import (
    Clock,
    Faults,
    Heap,
    Scripted,
    Sink,
    TimedShutdown,
    Watched,
    holding,
    regulated,
    through,
)
from tests.support.memory_readings import reading

QUICK = EngineConfig(recv_timeout=0)


class Held:
    """An engine whose memory is full, with time that passes by waiting."""

    def __init__(self, receiver: Any, share: float = 1.0, until: float = 1e9) -> None:
        self.clock, self.heap = Clock(), Heap(share)
        self.receiver = receiver
        self.shutdown = TimedShutdown(self.clock, until)
        self.engine = BatchEngine(QUICK, regulation=regulated(self.heap.guard), clock=self.clock)
        self.sunk: list[tuple[int, int]] = []  # when, in seconds, and how many bytes

    def sink(self, batch: WorkBatch) -> None:
        self.sunk.append((round(self.clock.now), batch.total_bytes))

    def run(self, **more: Any) -> Held:
        self.engine.run(self.receiver, through, self.sink, shutdown=self.shutdown, **more)
        return self


def test_a_full_memory_holds_the_receiver() -> None:
    held = Held(Watched(holding(5)), until=29.0).run()
    assert held.receiver.recvs == 0


def test_a_hold_ends_when_the_pressure_does() -> None:
    held = Held(Watched(holding(5)))
    held.run(ticker=(3.0, lambda: setattr(held.heap, "share", 0.0)), until_idle=True)
    assert [at for at, _ in held.sunk] == [3.0]


def test_a_hold_lasts_until_the_lower_bound() -> None:
    """At 0.7, between the bounds, nothing changes: a hold holds on."""
    held = Held(Watched(holding(5)), until=20.0)
    held.run(ticker=(3.0, lambda: setattr(held.heap, "share", 0.7)))
    assert held.receiver.recvs == 0


def test_pressure_between_the_bounds_does_not_begin_a_hold() -> None:
    held = Held(Watched(holding(5)), share=0.7).run(until_idle=True)
    assert [at for at, _ in held.sunk] == [0.0]


def test_after_30_seconds_without_relief_one_block_of_floor_size_is_admitted() -> None:
    held = Held(Watched(holding(10, 10)), until=59.0).run()
    assert held.sunk == [(30.0, 10)]


def test_after_30_more_seconds_another_one_is_admitted() -> None:
    held = Held(Watched(holding(10, 10)), until=95.0).run()
    assert held.sunk == [(30.0, 10), (60.0, 10), (90.0, 10)]


def test_a_block_that_is_admitted_in_spite_of_the_pressure_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    Held(Watched(holding(10, 10)), until=59.0).run()
    (warning,) = [record for record in caplog.records if "no relief" in record.message]
    assert warning.levelname == "WARNING"
    assert "no relief for 30 s at a pressure of 1.00" in warning.message


def test_relief_begins_the_30_seconds_anew() -> None:
    held = Held(Watched(Scripted()), until=50.0)
    times = iter([(20.0, 0.0), (21.0, 1.0)])
    change = next(times)

    def tick() -> None:
        nonlocal change
        if held.clock.now >= change[0]:
            held.heap.share = change[1]
            change = next(times, (1e9, 0.0))

    held.receiver = Pausing(held.clock)
    held.run(ticker=(1.0, tick))
    assert all(20.0 <= at < 21.5 for at in held.receiver.asked)


class Pausing(Scripted):
    """A receiver that has nothing, and takes a tenth of a second to say so."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.asked: list[float] = []

    def recv(self, *args: Any, **more: Any) -> WorkBatch:
        self.asked.append(self._clock.now)
        self._clock.now += 0.1
        return super().recv(*args, **more)


class InHand(Scripted):
    """A receiver that has all of its blocks in memory, and hears of holds."""

    def __init__(self, *blocks: WorkBatch) -> None:
        super().__init__(*blocks)
        self.heard: list[str] = []

    @property
    def in_hand(self) -> bool:
        return bool(self.blocks)

    def pause(self) -> None:
        self.heard.append("pause")

    def resume(self) -> None:
        self.heard.append("resume")


def test_what_a_receiver_has_in_hand_is_drained_while_the_gate_holds() -> None:
    held = Held(InHand(*[WorkBatch([Record(b"x")], (number,)) for number in range(3)]), until=10.0).run()
    assert ([at for at, _ in held.sunk], held.receiver.commits) == ([0.0, 0.0, 0.0], [(0,), (1,), (2,)])


def test_when_nothing_is_in_hand_any_more_the_gate_holds() -> None:
    held = Held(InHand(WorkBatch([Record(b"x")], (0,))), until=10.0).run()
    assert len(held.receiver.limits) == 1


def test_a_receiver_hears_of_a_hold_once_and_of_its_end() -> None:
    held = Held(InHand())
    held.run(ticker=(3.0, lambda: setattr(held.heap, "share", 0.0)), until_idle=True)
    assert held.receiver.heard == ["pause", "resume"]


def test_a_run_that_ends_in_a_hold_lets_the_receiver_go_on() -> None:
    assert Held(InHand(), until=5.0).run().receiver.heard == ["pause", "resume"]


def test_a_run_that_fails_in_a_hold_lets_the_receiver_go_on() -> None:
    held = Held(InHand(WorkBatch([Record(b"x")], (0,))))
    with pytest.raises(SinkFailed):
        held.engine.run(held.receiver, through, Sink(faults=Faults(("sink", 0))), shutdown=held.shutdown)
    assert held.receiver.heard == ["pause", "resume"]


def test_a_hold_halves_the_budget() -> None:
    held = Held(InHand(*[WorkBatch([Record(b"x")], (number,)) for number in range(3)]), until=10.0).run()
    given = [most for _, most, _ in held.receiver.limits]
    assert given == sorted(given, reverse=True)
    assert given[-1] < given[0] <= 100


def test_a_hold_is_a_metric_and_its_end_too() -> None:
    pauses, paused = reading("penstock_inbound_pauses_total"), list[float]()
    held = Held(InHand(), until=5.0)
    held.run(ticker=(1.0, lambda: paused.append(reading("penstock_inbound_paused"))))
    assert (reading("penstock_inbound_pauses_total") - pauses, paused[0] - reading("penstock_inbound_paused")) == (1, 1)


def test_the_pressure_is_a_metric() -> None:
    Held(InHand(), share=0.875, until=1.0).run()
    assert reading("penstock_pressure_ratio") == 0.875


def test_unused_memory_is_released_when_a_hold_begins_and_each_second_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    releases: list[int] = []
    monkeypatch.setattr(inbound, "release_unused_memory", lambda: releases.append(1))
    Held(InHand(), until=5.5).run()
    assert len(releases) == 1 + 5


def test_leases_alone_can_hold() -> None:
    guard, clock = MemoryGuard(1000), Clock()
    engine = BatchEngine(QUICK, regulation=regulated(guard), clock=clock)
    receiver = Watched(holding(1))
    with guard.lease(900):
        engine.run(receiver, through, Sink(), shutdown=TimedShutdown(clock, 10.0))
    assert receiver.recvs == 0


def test_without_regulation_nothing_holds() -> None:
    engine = BatchEngine(QUICK, regulation=None)
    engine.guard.add(1 << 60)
    assert engine.run(holding(3), through, Sink(), until_idle=True).processed == 3
