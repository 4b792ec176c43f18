"""`penstock produce`: lines and files become events, and it never says more than is durable."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig, Record, open_store, peek
from penstock.buffer import Manifest
from penstock.errors import StorageError
from penstock.storage import LocalStore
from penstock.storage.object_store import Data
from tests.support.command import Here, storage_options
from tests.support.processes import PATIENCE
from tests.support.servers import BUCKET, S3Server
from tests.support.waiting import Background

ALL = 1_000_000


def values(buffer: Path) -> list[bytes]:
    return [record.value for record in peek(buffer, ALL)]


Produce = Callable[..., tuple[int, str, str]]


@pytest.fixture
def produce(here: Here) -> Produce:
    """Runs the command with something on standard input; returns its status, and what is on both outputs."""

    def produce(given: bytes, *words: str) -> tuple[int, str, str]:
        answer = here("produce", *words, stdin=given)
        return answer.status, answer.out, answer.err

    return produce


def test_each_line_of_standard_input_is_an_event(tmp_path: Path, produce: Produce) -> None:
    answer = produce(b"one\n\n\xff\x00two\r\nthree", str(tmp_path))
    assert answer == (0, "produced 3 events, 14 bytes, sequences 0 to 0\n", "")
    assert values(tmp_path) == [b"one", b"\xff\x00two\r", b"three"]


def test_empty_lines_are_events_when_they_are_to_be_kept(tmp_path: Path, produce: Produce) -> None:
    assert produce(b"\none\n\n", str(tmp_path), "--keep-empty")[1].startswith("produced 3 events, 3 bytes")
    assert values(tmp_path) == [b"", b"one", b""]


def test_nothing_makes_no_event_and_no_buffer(tmp_path: Path, produce: Produce) -> None:
    assert produce(b"\n", str(tmp_path / "buffer")) == (0, "produced 0 events, 0 bytes\n", "")
    assert not (tmp_path / "buffer").exists()


def test_files_are_read_in_order_and_a_dash_is_standard_input(tmp_path: Path, produce: Produce) -> None:
    (tmp_path / "first").write_bytes(b"a\nb")
    (tmp_path / "last").write_bytes(b"d\n")
    buffer = tmp_path / "buffer"
    answer = produce(b"c\n", str(buffer), str(tmp_path / "first"), "-", str(tmp_path / "last"))
    assert answer == (0, "produced 4 events, 4 bytes, sequences 0 to 0\n", "")
    assert values(buffer) == [b"a", b"b", b"c", b"d"]


def test_lines_longer_than_what_is_read_at_once_stay_whole(tmp_path: Path, here: Here) -> None:
    lines = [b"x" * (3 << 20), b"y", b"z" * (2 << 20)]
    (tmp_path / "file").write_bytes(b"\n".join(lines))
    assert here("produce", str(tmp_path / "buffer"), str(tmp_path / "file")).status == 0
    assert values(tmp_path / "buffer") == lines


def test_whole_files_are_events(tmp_path: Path, produce: Produce) -> None:
    (tmp_path / "file").write_bytes(b"a\nb\n")
    (tmp_path / "empty").write_bytes(b"")
    words = (str(tmp_path / "buffer"), "--whole", str(tmp_path / "file"), str(tmp_path / "empty"), "-")
    assert produce(b"c\n\nd", *words) == (0, "produced 2 events, 8 bytes, sequences 0 to 0\n", "")
    assert values(tmp_path / "buffer") == [b"a\nb\n", b"c\n\nd"]


def test_every_event_has_the_key(tmp_path: Path, produce: Produce) -> None:
    produce(b"a\nb", str(tmp_path), "--key", "kéy")
    assert peek(tmp_path) == [Record(b"a", key="kéy".encode()), Record(b"b", key="kéy".encode())]


@pytest.mark.parametrize(
    ("version", "asked", "ending"),
    [("native", [], b"PSTB"), ("opendata", [], b"\x01\x00"), ("opendata", ["--batch-format", "arrow"], b"PSTB")],
)
def test_data_objects_have_the_format_of_the_manifest_or_the_one_that_was_asked_for(
    tmp_path: Path, version: str, asked: list[str], ending: bytes, produce: Produce
) -> None:
    Consumer(tmp_path, ConsumerConfig(gc=False, manifest_format=version)).close()
    assert produce(b"one\n", str(tmp_path), *asked)[0] == 0
    (found,) = tmp_path.rglob("*.batch")
    assert found.read_bytes().endswith(ending)


def test_a_key_on_a_manifest_of_version_1_is_refused_in_one_line(tmp_path: Path, produce: Produce) -> None:
    Consumer(tmp_path, ConsumerConfig(gc=False, manifest_format="opendata")).close()
    status, _, answer = produce(b"one\n", str(tmp_path), "--key", "k")
    assert status == 1
    assert "keeps values only, and a record has key; it is the default on a manifest of version 1" in answer


def test_compression_makes_data_objects_smaller(tmp_path: Path, produce: Produce) -> None:
    for compression in ("none", "zstd"):
        assert produce(b"x" * 100_000, str(tmp_path / compression), "--compression", compression)[0] == 0
    small, large = (sum(f.stat().st_size for f in (tmp_path / name).rglob("*.batch")) for name in ("zstd", "none"))
    assert small < large / 10
    assert values(tmp_path / "zstd") == [b"x" * 100_000]


def test_storage_options_reach_the_store(s3_server: S3Server, fresh_name: str, produce: Produce) -> None:
    where = f"s3://{BUCKET}/{fresh_name}"
    answer = produce(b"a\nb", where, *storage_options(s3_server.options))
    assert answer == (0, "produced 2 events, 2 bytes, sequences 0 to 0\n", "")
    assert [record.value for record in peek(open_store(where, **s3_server.options))] == [b"a", b"b"]


def test_a_storage_option_that_is_none_is_a_mistake_and_is_not_shown(tmp_path: Path, produce: Produce) -> None:
    status, _, complaint = produce(b"", str(tmp_path), "-o", "hunter22")
    assert status == 2
    assert "NAME=VALUE" in complaint
    assert "hunter22" not in complaint


def test_the_sequences_are_those_of_the_first_and_the_last_batch(tmp_path: Path, here: Here, produce: Produce) -> None:
    produce(b"before", str(tmp_path))
    (tmp_path / "big").write_bytes(b"\n".join([b"x" * (1 << 20)] * 70))  # more than a batch takes
    done = here("produce", str(tmp_path), str(tmp_path / "big"))
    assert (
        done.out
        == f"produced 70 events, {70 << 20} bytes, sequences 1 to {Manifest.read(tmp_path).next_sequence - 1}\n"
    )
    assert Manifest.read(tmp_path).next_sequence > 2


@pytest.mark.parametrize(
    ("name", "answer"), [("typo", "there is no such file"), (".", "it is a directory")], ids=["absent", "a directory"]
)
def test_a_file_that_cannot_be_read_is_reported_before_anything_is_produced(
    tmp_path: Path, name: str, answer: str, here: Here
) -> None:
    (tmp_path / "good").write_text("event")
    done = here("produce", str(tmp_path / "buffer"), str(tmp_path / "good"), str(tmp_path / name))
    assert (done.status, done.out) == (1, "")
    assert done.err == f"penstock: {tmp_path / name} cannot be read: {answer}\n"
    assert not (tmp_path / "buffer").exists()


def test_closed_standard_input_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, produce: Produce
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    answer = produce(b"", str(tmp_path))
    assert answer == (1, "", "penstock: standard input cannot be read: it is closed\n")


def test_a_line_without_end_is_refused_before_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, produce: Produce
) -> None:
    monkeypatch.setattr("penstock.cli.produce.MAX_LINE_BYTES", 100_000)
    lines = [b"good".ljust(1023)] * 1024  # as many bytes as are read at once
    answer = produce(b"\n".join([*lines, b"x" * 3_000_000]), str(tmp_path))
    complaint = "standard input cannot be produced: a line of it has more than 100000 bytes"
    assert answer == (1, "", f"penstock: {complaint}; 1024 of the 1024 events that were read are known to be durable\n")
    assert values(tmp_path) == lines


def test_a_failing_store_is_one_line_that_says_how_much_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, produce: Produce
) -> None:
    put, batches = LocalStore.put, list[str]()
    first_is_written = threading.Event()

    def fail_after_the_first(store: LocalStore, path: str, data: Data) -> str:
        batches.append(path)
        if len(batches) == 1:
            version = put(store, path, data)
            first_is_written.set()
            return version
        assert first_is_written.wait(PATIENCE)
        raise StorageError("the disk is full;\n nothing was changed")

    monkeypatch.setattr(LocalStore, "put", fail_after_the_first)
    (tmp_path / "big").write_bytes(b"\n".join([b"x" * (1 << 20)] * 100))
    buffer = tmp_path / "buffer"
    status, answer, complaint = produce(b"", str(buffer), str(tmp_path / "big"))
    durable = len(values(buffer))
    assert 0 < durable < 100
    assert (status, answer) == (1, "")
    found = re.fullmatch(
        r"penstock: the disk is full; nothing was changed; (\d+) of the (\d+) events that were read are known to be "
        r"durable\n",
        complaint,
    )
    assert found, complaint
    assert int(found[1]) == durable
    assert durable < int(found[2]) <= 100


FAILS = """
from penstock.cli.app import main
from penstock.errors import StorageError
from penstock.storage import LocalStore

def fail(store, path, data):
    raise StorageError("the disk is full")

LocalStore.put = fail
main()
"""


def test_a_store_that_fails_while_no_input_comes_ends_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FAILS, "produce", str(tmp_path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"event\n")
        process.stdin.flush()  # and it stays open
        assert process.wait(PATIENCE) == 1
        assert process.stderr.read().count(b"\n") == 1


SAYS_WHEN_A_BATCH_IS_DURABLE = """
import os
from penstock.buffer.producer.write_handle import Outcome
from penstock.cli.app import main

succeed = Outcome.succeed

def durable(outcome, written):
    succeed(outcome, written)
    os.write(2, b"durable\\n")

Outcome.succeed = durable
main()
"""


@pytest.fixture
def producing(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", SAYS_WHEN_A_BATCH_IS_DURABLE, "produce", str(tmp_path / "buffer")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()
        with suppress(BrokenPipeError):  # of what it was given and never read
            process.stdin.close()  # type: ignore[union-attr]  # it is a pipe


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_an_endless_input_is_ended_by_a_signal_and_what_it_says_is_durable(
    producing: subprocess.Popen[bytes], number: signal.Signals, tmp_path: Path
) -> None:
    assert producing.stdin is not None
    assert producing.stdout is not None
    assert producing.stderr is not None
    given = producing.stdin

    def feed() -> None:
        with suppress(BrokenPipeError):
            for start in range(0, 1 << 60, 1000):
                given.write(b"".join(b"event %d\n" % one for one in range(start, start + 1000)))

    feeder = Background(feed)
    assert producing.stderr.readline() == b"durable\n"
    producing.send_signal(number)
    complaints = [line for line in producing.stderr.read().decode().splitlines() if line != "durable"]
    answer = re.fullmatch(
        r"produced (\d+) events, (\d+) bytes, sequences 0 to (\d+)\n", producing.stdout.read().decode()
    )
    assert producing.wait(PATIENCE) == 0
    feeder.result()
    assert answer, complaints
    with Consumer(tmp_path / "buffer", ConsumerConfig(gc=False)) as consumer:
        found = [value for batch in consumer for value in batch.entries]
    assert len(found) == int(answer[1])
    assert sum(map(len, found)) == int(answer[2])
    assert Manifest.read(tmp_path / "buffer").next_sequence == int(answer[3]) + 1
    assert found == [b"event %d" % one for one in range(len(found))]
    assert complaints[-1] == f"penstock: stopped by {number.name}; what was read is flushed"


def test_the_beginning_of_a_line_is_no_event_when_a_signal_comes(
    producing: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert producing.stdin is not None
    assert producing.stdout is not None
    assert producing.stderr is not None
    producing.stdin.write(b"whole\nhal")
    producing.stdin.flush()
    assert producing.stderr.readline() == b"durable\n"
    producing.send_signal(signal.SIGTERM)
    assert producing.wait(PATIENCE) == 0  # while standard input is still open
    assert producing.stdout.read() == b"produced 1 event, 5 bytes, sequences 0 to 0\n"
    assert producing.stderr.read().decode().splitlines() == [
        "penstock: of standard input the beginning of a line was read (3 bytes): not produced",
        "penstock: stopped by SIGTERM; what was read is flushed",
    ]
    assert values(tmp_path / "buffer") == [b"whole"]


HANGS = """
import os, threading
from penstock.cli.app import main
from penstock.storage import LocalStore

def hang(*_):
    os.write(2, b"hanging\\n")
    threading.Event().wait()

LocalStore.put = hang
main()
"""


def test_a_second_signal_ends_it_at_once_even_when_the_store_hangs(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGS, "produce", str(tmp_path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"event\n")
        process.stdin.flush()
        assert process.stderr.readline() == b"hanging\n"
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)  # those that come before the first is handled are one with it
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        assert process.returncode == -signal.SIGINT


def test_a_named_pipe_is_read_when_its_writer_comes(tmp_path: Path, here: Here) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = Background(lambda: (tmp_path / "pipe").write_bytes(b"a\nb\n"))
    done = here("produce", str(tmp_path / "buffer"), str(tmp_path / "pipe"))
    writer.result()
    assert (done.status, done.err) == (0, "")
    assert values(tmp_path / "buffer") == [b"a", b"b"]
