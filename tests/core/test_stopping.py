"""SIGINT and SIGTERM become an event that can be waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from penstock.core import StopOnSignal
from tests.support.processes import PATIENCE
from tests.support.waiting import NEVER, Background


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_wait_and_the_handlers_are_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with StopOnSignal() as stop:
        assert not stop.wait(0)
        sender = threading.Timer(0.01, os.kill, (os.getpid(), number))
        sender.start()
        assert stop.wait(NEVER)
        sender.join()
        assert (stop.is_set(), stop.signal) == (True, number)
        assert Background(lambda: stop.wait(NEVER)).result(), "in another thread too"
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_input_ends_a_wait_and_a_signal_goes_before_it() -> None:
    read_end, write_end = os.pipe()
    with StopOnSignal() as stop, open(read_end), open(write_end, "w"):
        assert not stop.wait_for_input(read_end, 0)
        os.write(write_end, b"x")
        assert stop.wait_for_input(read_end, NEVER)
        signal.raise_signal(signal.SIGTERM)
        assert not stop.wait_for_input(read_end, NEVER)


def test_another_signal_that_the_program_handles_ends_no_later_wait() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with StopOnSignal() as stop:
            signal.raise_signal(signal.SIGUSR1)
            assert not stop.wait(0)
            began = time.monotonic()
            assert not stop.wait(0.02)
            assert time.monotonic() - began >= 0.02
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_can_be_set_as_any_event() -> None:
    with StopOnSignal() as stop:
        waiting = Background(lambda: stop.wait(NEVER))
        stop.set()
        assert waiting.result()
        assert stop.signal is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    code = "import os, sys; from penstock.core import StopOnSignal; stop = StopOnSignal().__enter__()\n"
    code += "for _ in range(2): os.kill(os.getpid(), int(sys.argv[1]))\nprint('not reached')"
    done = subprocess.run([sys.executable, "-c", code, str(int(number))], capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (-number, b"")
