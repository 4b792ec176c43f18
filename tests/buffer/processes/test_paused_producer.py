"""A producer that is paused and resumed after its deadline does not enqueue any more."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.buffer import Manifest, Producer
from tests.buffer.processes.stop_points import (
    DEADLINE,
    MANIFEST_NOT_WRITTEN,
    MANIFEST_READ,
    OBJECT_WRITTEN,
    Stop,
    produce_and_pause,
)
from tests.support.processes import Start


@dataclass
class Buffer:
    """A buffer with one entry, and a producer that is paused on its way to enqueue another."""

    root: Path
    start: Start

    def __post_init__(self) -> None:
        self._produce(b"before")

    def _produce(self, entry: bytes) -> None:
        with Producer(self.root / "store") as producer:
            producer.produce(entry)

    def pause(self, stop: Stop, seconds: float, *, others_go_on: bool = False) -> str:
        """Pause the process at a point for some seconds of its clock, and return the outcome of its handle."""
        clock = self.root / "clock"
        clock.write_text("1000.0")
        child = self.start(produce_and_pause, str(self.root / "store"), str(clock), stop)
        process = child.hear()
        assert child.hear() == stop
        os.kill(process, signal.SIGSTOP)
        if others_go_on:
            self._produce(b"other")
        clock.write_text(f"{1000.0 + seconds}")
        child.tell("go")
        os.kill(process, signal.SIGCONT)
        return str(child.answer())

    def length(self) -> int:
        """How many entries are queued."""
        return len(Manifest.read(self.root / "store").entries)


@pytest.fixture
def buffer(tmp_path: Path, start: Start) -> Buffer:
    return Buffer(tmp_path, start)


PAUSES = [OBJECT_WRITTEN, MANIFEST_READ]


@pytest.mark.parametrize("stop", PAUSES, ids=str)
def test_a_producer_that_is_paused_beyond_its_deadline_does_not_enqueue_and_its_handle_fails(
    buffer: Buffer, stop: Stop
) -> None:
    assert "within enqueue_deadline = 10.0 s" in buffer.pause(stop, DEADLINE)
    assert buffer.length() == 1


@pytest.mark.parametrize("stop", PAUSES, ids=str)
def test_a_producer_that_is_paused_for_less_than_its_deadline_enqueues(buffer: Buffer, stop: Stop) -> None:
    assert (buffer.pause(stop, DEADLINE - 0.5), buffer.length()) == ("enqueued as 1", 2)


def test_a_producer_that_is_paused_right_before_its_write_loses_to_one_that_wrote_meanwhile(buffer: Buffer) -> None:
    outcome = buffer.pause(MANIFEST_NOT_WRITTEN, DEADLINE, others_go_on=True)

    assert ("within enqueue_deadline" in outcome, buffer.length()) == (True, 2)
