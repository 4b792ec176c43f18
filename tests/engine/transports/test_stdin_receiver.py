"""`StdinReceiver`: lines of a pipe, as they come."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from penstock.engine import StdinReceiver
from penstock.errors import Closed, InvalidInput


class Pipe:
    def __init__(self) -> None:
        read_end, self._write_end = os.pipe()
        self.stream = os.fdopen(read_end, "rb")

    def write(self, data: bytes) -> None:
        os.write(self._write_end, data)

    def end(self) -> None:
        os.close(self._write_end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.stream.close()


def test_lines_come_as_bytes_and_the_last_one_needs_no_newline(pipe: Pipe) -> None:
    receiver = StdinReceiver(pipe.stream)
    pipe.write(b"\xff\r\n\nhal")
    assert [record.value for record in receiver.recv(10).records] == [b"\xff\r"]
    pipe.write(b"f")
    pipe.end()
    before = receiver.exhausted
    assert [record.value for record in receiver.recv(10).records] == [b"half"]
    assert (before, receiver.exhausted) == (False, True)
    assert len(receiver.recv(10)) == 0


def test_the_timeout_is_kept_while_nothing_comes(pipe: Pipe) -> None:
    receiver = StdinReceiver(pipe.stream)
    pipe.write(b"no newline")
    began = time.monotonic()
    assert len(receiver.recv(10, timeout=0.2)) == 0
    assert 0.2 <= time.monotonic() - began < 2
    pipe.end()


def test_what_was_not_committed_comes_again_in_order_and_limits_hold(pipe: Pipe) -> None:
    receiver = StdinReceiver(pipe.stream)
    pipe.write(b"a\nb\ncccc\nd\n")
    pipe.end()
    first = receiver.recv(1)
    second = receiver.recv(10, max_bytes=2)
    assert [record.value for record in second.records] == [b"b"]
    receiver.commit(first.commit_tokens)
    receiver.rewind()
    assert [record.value for record in receiver.recv(10).records] == [b"b", b"cccc", b"d"]


PROGRAM = """
import sys
from penstock.core import StopOnSignal
from penstock.engine import BatchEngine, EngineConfig, StdinReceiver
def sink(batch):
    print(sum(len(record.value) for record in batch.records), flush=True)
with StopOnSignal() as stop:
    config = EngineConfig(recv_timeout=float(sys.argv[1]))
    BatchEngine(config).run(StdinReceiver(), lambda batch: batch, sink, until_idle=sys.argv[2] == "idle", shutdown=stop)
print("end")
"""


def program(recv_timeout: float, until: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, str(recv_timeout), until]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ))


@pytest.mark.parametrize("until", ["idle", "stopped"])
@pytest.mark.parametrize(
    "data", [b"1\n2\n3", b"\xff\0" * 10_000_000, b"", b"\n\n"], ids=["lines", "huge", "none", "empty"]
)
def test_an_engine_ends_with_the_input(data: bytes, until: str) -> None:
    with program(0.1, until) as running:
        out, _ = running.communicate(data, timeout=60)
    *sizes, end = out.split()
    assert (sum(map(int, sizes)), end, running.returncode) == (len(data.replace(b"\n", b"")), b"end", 0)


def test_an_engine_until_idle_waits_for_a_writer_that_is_slow() -> None:
    with program(0.01, "idle") as running:
        assert running.stdin is not None
        assert running.stdout is not None
        for line in (b"one\n", b"three\n"):
            running.stdin.write(line)
            running.stdin.flush()
            # It has been idle for long before the next line when it has printed the size of this one.
            assert int(running.stdout.readline()) == len(line) - 1
            time.sleep(0.1)
        running.stdin.close()
        assert running.stdout.read() == b"end\n"


def test_a_signal_ends_an_engine_that_waits_for_input_at_once() -> None:
    with program(600, "stopped") as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"one\n")
        running.stdin.flush()
        assert running.stdout.readline() == b"3\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.read() == b"end\n"
        assert running.wait(60) == 0


def test_what_has_no_descriptor_is_refused_and_a_closed_receiver_refuses(pipe: Pipe) -> None:
    with pytest.raises(InvalidInput, match="cannot be read by its descriptor"):
        StdinReceiver(io.BytesIO(b"x"))
    receiver = StdinReceiver(pipe.stream)
    receiver.close()
    with pytest.raises(Closed):
        receiver.recv(1)
    pipe.end()
