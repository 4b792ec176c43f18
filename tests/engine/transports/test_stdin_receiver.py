"""`StdinReceiver`: lines of a pipe, as they come."""

from __future__ import annotations

import io
import os
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


def test_an_engine_ends_with_the_input() -> None:
    program = """
from penstock.engine import BatchEngine, StdinReceiver
stats = BatchEngine().run(StdinReceiver(), lambda batch: batch, lambda batch: None, until_idle=True)
print(stats.processed)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input=b"1\n2\n3", capture_output=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == b"3\n"


def test_what_has_no_descriptor_is_refused_and_a_closed_receiver_refuses(pipe: Pipe) -> None:
    with pytest.raises(InvalidInput, match="cannot be read by its descriptor"):
        StdinReceiver(io.BytesIO(b"x"))
    receiver = StdinReceiver(pipe.stream)
    receiver.close()
    with pytest.raises(Closed):
        receiver.recv(1)
    pipe.end()
