"""The gate: what it admits, and how it calls its actuator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.regulation.inbound import Admit, InboundGate
from tests.engine.doubles import HoldSwitch
from tests.support.memory_readings import reading


class Actuator:
    """An actuator that notes its calls, and fails where `error` is set."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None

    def pause(self) -> None:
        self._note("pause")

    def resume(self) -> None:
        self._note("resume")

    def _note(self, what: str) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(what)


@settings(deadline=None)  # other tests run on the same cores
@given(st.lists(st.booleans() | st.sampled_from(["release", "fail"])))
def test_pause_and_resume_alternate_and_come_once_per_edge(steps: list[bool | str]) -> None:
    pressure, actuator = HoldSwitch(), Actuator()
    gate = InboundGate(pressure, actuator)
    paused, pauses = reading("penstock_inbound_paused"), reading("penstock_inbound_pauses_total")
    expected: list[str] = []
    holding = False
    for step in steps:
        if step == "fail":
            pressure.hold, actuator.error = not holding, OSError("the actuator is gone")
            with pytest.raises(OSError, match="is gone"):
                gate.evaluate()
            actuator.error = None
        elif step == "release":
            gate.release()
            expected += ["resume"] if holding else []
            holding = False
        else:
            pressure.hold = bool(step)
            assert gate.evaluate() is (Admit.HOLD if step else Admit.YES)
            expected += ["pause" if step else "resume"] if step != holding else []
            holding = bool(step)
        assert gate.is_holding is holding
        assert actuator.calls == expected
        assert reading("penstock_inbound_paused") == paused + holding
        assert reading("penstock_inbound_pauses_total") == pauses + expected.count("pause")
    gate.release()
    assert expected == ["pause", "resume"] * (len(expected) // 2) + ["pause"] * (len(expected) % 2)
    assert reading("penstock_inbound_paused") == paused


def test_a_release_that_failed_leaves_it_holding() -> None:
    actuator = Actuator()
    gate = InboundGate(HoldSwitch(True), actuator)
    gate.evaluate()
    actuator.error = OSError("once")
    with pytest.raises(OSError, match="once"):
        gate.release()
    assert gate.is_holding
    actuator.error = None
    gate.release()
    gate.release()
    assert actuator.calls == ["pause", "resume"]


def test_the_gauge_counts_the_gates_that_hold() -> None:
    gates = [InboundGate(HoldSwitch(True)) for _ in range(3)]
    before = reading("penstock_inbound_paused")
    for gate in gates:
        gate.evaluate()
        gate.evaluate()
    assert reading("penstock_inbound_paused") == before + 3
    for gate in gates:
        gate.release()
    assert reading("penstock_inbound_paused") == before


def test_an_actuator_may_ask_the_gate() -> None:
    class Asking(Actuator):
        def pause(self) -> None:
            assert not gate.is_holding
            super().pause()

    actuator = Asking()
    gate = InboundGate(HoldSwitch(True), actuator)
    assert gate.evaluate() is Admit.HOLD
    gate.release()
