"""The gate: what it admits, and what its actuator hears."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.regulation.gate import Admit, InboundGate
from tests.support.memory_readings import reading


class Said:
    """A pressure that says what the test says."""

    def __init__(self, hold: bool = False) -> None:
        self.hold = hold

    def should_hold(self) -> bool:
        return self.hold


class Receiver:
    """An actuator that writes down what it hears, and fails when it is told to."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.error: Exception | None = None

    def pause(self) -> None:
        self._hear("pause")

    def resume(self) -> None:
        self._hear("resume")

    def _hear(self, what: str) -> None:
        if self.error is not None:
            raise self.error
        self.heard.append(what)


def metric(name: str) -> float:
    return reading(f"penstock_{name}")


@settings(deadline=None)  # other tests run on the same cores
@given(st.lists(st.booleans() | st.sampled_from(["release", "fail"])))
def test_pause_and_resume_alternate_and_come_once_per_edge(steps: list[bool | str]) -> None:
    said, receiver = Said(), Receiver()
    gate = InboundGate(said, receiver)
    paused, pauses = metric("inbound_paused"), metric("inbound_pauses_total")
    expected: list[str] = []
    holding = False
    for step in steps:
        if step == "fail":
            said.hold, receiver.error = not holding, OSError("the receiver is gone")
            with pytest.raises(OSError, match="is gone"):
                gate.evaluate()
            receiver.error = None
        elif step == "release":
            gate.release()
            expected += ["resume"] if holding else []
            holding = False
        else:
            said.hold = bool(step)
            assert gate.evaluate() is (Admit.HOLD if step else Admit.YES)
            expected += ["pause" if step else "resume"] if step != holding else []
            holding = bool(step)
        assert gate.is_holding is holding
        assert receiver.heard == expected
        assert metric("inbound_paused") == paused + holding
        assert metric("inbound_pauses_total") == pauses + expected.count("pause")
    gate.release()
    assert expected == ["pause", "resume"] * (len(expected) // 2) + ["pause"] * (len(expected) % 2)
    assert metric("inbound_paused") == paused


@pytest.mark.parametrize("hold", [True, False])
def test_an_edge_that_failed_fires_again(hold: bool) -> None:
    said, receiver = Said(not hold), Receiver()
    gate = InboundGate(said, receiver)
    gate.evaluate()
    before = len(receiver.heard)
    said.hold, receiver.error = hold, OSError("once")
    with pytest.raises(OSError, match="once"):
        gate.evaluate()
    assert gate.is_holding is not hold
    receiver.error = None
    gate.evaluate()
    assert receiver.heard[before:] == ["pause" if hold else "resume"]
    gate.release()


def test_a_release_that_failed_leaves_it_holding() -> None:
    receiver = Receiver()
    gate = InboundGate(Said(True), receiver)
    gate.evaluate()
    receiver.error = OSError("once")
    with pytest.raises(OSError, match="once"):
        gate.release()
    assert gate.is_holding
    receiver.error = None
    gate.release()
    gate.release()
    assert receiver.heard == ["pause", "resume"]


def test_a_gate_needs_no_actuator() -> None:
    said = Said(True)
    gate = InboundGate(said)
    assert gate.evaluate() is Admit.HOLD
    said.hold = False
    assert gate.evaluate() is Admit.YES


def test_the_gauge_counts_the_gates_that_hold() -> None:
    gates = [InboundGate(Said(True)) for _ in range(3)]
    before = metric("inbound_paused")
    for gate in gates:
        gate.evaluate()
        gate.evaluate()
    assert metric("inbound_paused") == before + 3
    for gate in gates:
        gate.release()
    assert metric("inbound_paused") == before


def test_an_actuator_may_ask_the_gate() -> None:
    class Asking(Receiver):
        def pause(self) -> None:
            assert not gate.is_holding
            super().pause()

    receiver = Asking()
    gate = InboundGate(Said(True), receiver)
    assert gate.evaluate() is Admit.HOLD
    gate.release()
