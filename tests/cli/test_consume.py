"""`penstock consume`: events are printed, and what is acked was written to standard output before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Consumer, Producer, ProducerConfig, Record, open_store
from penstock.buffer import BatchDescriptor, ConsumedBatch, FetchHandle, Manifest
from penstock.errors import Fenced, StorageError
from tests.support.command import MAIN, Here
from tests.support.processes import PATIENCE


def fill(buffer: Path, *batches: list[bytes | Record]) -> None:
    with Producer(buffer) as producer:
        for batch in batches:
            producer.produce(batch).result()


def waiting(buffer: Path) -> list[int]:
    """The sequences that are not acked."""
    return [entry.sequence for entry in Manifest.read(buffer).entries]


Consume = Callable[..., tuple[int, bytes, str]]


@pytest.fixture
def consume(here: Here) -> Consume:
    """Runs the command; returns its status, and what is on both outputs."""

    def consume(*words: str) -> tuple[int, bytes, str]:
        answer = here("consume", *words)
        return answer.status, answer.raw, answer.err

    return consume


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the command with pipes, and see to it that it is gone when the test is over."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, code: str = MAIN) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, "consume", *words]
        # In its development mode Python tells of errors that it passes over otherwise, at exit too.
        environment = {**os.environ, "PYTHONDEVMODE": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_events_are_printed_one_a_line_as_they_are_and_acked(tmp_path: Path, consume: Consume) -> None:
    fill(tmp_path, [b"one", b"\xff\x00"], [b"", b"four"])
    assert consume(str(tmp_path)) == (0, b"one\n\xff\x00\n\nfour\n", "")
    assert waiting(tmp_path) == []
    assert consume(str(tmp_path)) == (0, b"", "")


def test_a_batch_of_which_a_part_is_printed_is_not_acked(tmp_path: Path, consume: Consume) -> None:
    fill(tmp_path, [b"a", b"b"], [b"c", b"d", b"e"], [b"f"])
    complaint = "penstock: 1 of the 3 events of batch 1 are printed: it is not acked, and comes again\n"
    assert consume(str(tmp_path), "-n", "3") == (0, b"a\nb\nc\n", complaint)
    assert waiting(tmp_path) == [1, 2]


def test_a_batch_whose_last_event_is_the_last_to_print_is_acked(tmp_path: Path, consume: Consume) -> None:
    fill(tmp_path, [b"a", b"b"], [b"c"])
    assert consume(str(tmp_path), "--max", "2") == (0, b"a\nb\n", "")
    assert waiting(tmp_path) == [1]


def test_it_fences_the_active_consumer_and_says_that_it_does(tmp_path: Path, here: Here, consume: Consume) -> None:
    fill(tmp_path, [b"a"])
    active = Consumer(tmp_path)
    assert consume(str(tmp_path), "-n", "1")[0] == 0
    for use in (active.next_batch, active.close):
        with pytest.raises(Fenced):
            use()
    assert "FENCED" in here("consume", "--help").out


def test_without_acks_it_takes_no_epoch_fences_no_consumer_and_acks_nothing(tmp_path: Path, consume: Consume) -> None:
    fill(tmp_path, [b"a"], [b"b", b"c"], [b"d"])
    with Consumer(tmp_path) as active:
        active.next_descriptors(1)
        active.ack_through(0)
        assert consume(str(tmp_path), "--no-ack") == (0, b"b\nc\nd\n", "")
        assert consume(str(tmp_path), "--no-ack", "-n", "1") == (0, b"b\n", "")
        assert active.next_batch() is not None
    assert Manifest.read(tmp_path).epoch == 1
    assert waiting(tmp_path) == [1, 2]


def test_a_group_of_its_own_reads_beside_others_and_fences_no_consumer(tmp_path: Path, consume: Consume) -> None:
    fill(tmp_path, [b"a"], [b"b"])
    with Consumer(tmp_path) as active:
        active.next_descriptors(1)
        active.ack_through(0)
        assert consume(str(tmp_path), "--group", "audit", "-n", "1") == (0, b"b\n", "")
        assert consume(str(tmp_path), "--no-ack", "--group", "audit") == (0, b"", "")
        assert active.next_batch() is not None
    groups = Manifest.read(tmp_path).groups
    assert {name: group.acked_through for name, group in groups.items()} == {"default": 0, "audit": 1}


def test_a_new_group_begins_at_its_start(tmp_path: Path, consume: Consume) -> None:
    fill(tmp_path, [b"a"], [b"b"], [b"c"])
    assert consume(str(tmp_path), "--group", "audit", "--start", "2") == (0, b"c\n", "")
    assert consume(str(tmp_path), "--group", "late", "--start", "latest") == (0, b"", "")
    assert waiting(tmp_path) == [0, 1, 2]


def test_looking_for_a_group_that_is_not_there_is_one_line_and_makes_none(tmp_path: Path, consume: Consume) -> None:
    fill(tmp_path, [b"a"])
    status, answer, complaint = consume(str(tmp_path), "--no-ack", "--group", "typo")
    assert (status, answer, complaint.count("\n")) == (1, b"", 1)
    assert complaint.startswith("penstock: there is no group 'typo' in ")
    assert list(Manifest.read(tmp_path).groups) == ["default"]


def delete_before_the_first_fetch(monkeypatch: pytest.MonkeyPatch, buffer: Path, *, ack: bool) -> None:
    """Delete the data of two batches when the first of them is fetched, and ack them, as a consumer would."""
    fetch = FetchHandle.fetch

    def overtaken(handle: FetchHandle, descriptor: BatchDescriptor) -> ConsumedBatch:
        if descriptor.sequence == 0:
            open_store(buffer).delete([entry.location for entry in Manifest.read(buffer).entries[:2]])
            if ack:
                Consumer(buffer, last_acked_sequence=1).close()
        return fetch(handle, descriptor)

    monkeypatch.setattr(FetchHandle, "fetch", overtaken)


def test_looking_goes_on_after_what_was_acked_and_collected_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consume: Consume
) -> None:
    fill(tmp_path, [b"a"], [b"b"], [b"c"])
    delete_before_the_first_fetch(monkeypatch, tmp_path, ack=True)
    assert consume(str(tmp_path), "--no-ack") == (0, b"c\n", "")


@pytest.mark.parametrize("more", [[], [[b"b"], [b"c"]]], ids=["the only one", "one of more"])
def test_looking_says_when_the_data_of_what_waits_is_gone(
    tmp_path: Path, more: list[list[bytes | Record]], monkeypatch: pytest.MonkeyPatch, consume: Consume
) -> None:
    fill(tmp_path, [b"a"], *more)
    delete_before_the_first_fetch(monkeypatch, tmp_path, ack=False)
    status, answer, complaint = consume(str(tmp_path), "--no-ack")
    assert (status, answer) == (1, b"")
    assert complaint.startswith("penstock: the data of sequence 0")
    assert complaint.count("\n") == 1


def test_as_json_an_event_has_its_place_and_all_it_came_with(tmp_path: Path, consume: Consume) -> None:
    full = Record(b"\xff", key=b"\xfe", headers=[("h", b"v"), ("h", b"\xff")], timestamp_ms=-5)
    fill(tmp_path, [b"a"], ["é\n".encode(), Record(b"k", key=b"key", headers=[]), full])
    status, answer, complaint = consume(str(tmp_path), "--json")
    assert (status, complaint) == (0, "")
    nothing = {"key": None, "headers": None, "timestamp": None}
    assert [json.loads(line) for line in answer.splitlines()] == [
        {"sequence": 0, "index": 0, "value": "a", **nothing},
        {"sequence": 1, "index": 0, "value": "é\n", **nothing},
        {"sequence": 1, "index": 1, "value": "k", "key": "key", "headers": [], "timestamp": None},
        {
            "sequence": 1,
            "index": 2,
            "value_base64": "/w==",
            "key_base64": "/g==",
            "headers": [{"key": "h", "value": "v"}, {"key": "h", "value_base64": "/w=="}],
            "timestamp": -5,
        },
    ]


@pytest.mark.parametrize(
    ("number", "more"), [(signal.SIGTERM, []), (signal.SIGINT, ["--no-ack"])], ids=["consuming", "looking"]
)
def test_following_prints_what_comes_until_a_signal(
    start: Start, tmp_path: Path, number: signal.Signals, more: list[str]
) -> None:
    process = start(str(tmp_path), "--follow", *more)
    assert process.stdout is not None
    for event in (b"first", b"second"):
        fill(tmp_path, [event])
        assert process.stdout.readline() == event + b"\n"
    process.send_signal(number)
    assert process.communicate(timeout=PATIENCE) == (b"", b"")
    assert process.returncode == 0
    assert waiting(tmp_path) == ([0, 1] if more else [])


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "PYTHONUNBUFFERED"])
def test_a_signal_in_the_middle_of_a_write_cuts_nothing_that_is_acked(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    event = b"x" * 5_000_000  # more than any pipe holds
    fill(tmp_path, [event])
    process = start(str(tmp_path))
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"  # it is in its write now, and stays there until more is read
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=PATIENCE)
    assert b"x" + rest == event + b"\n"
    assert (process.returncode, waiting(tmp_path)) == (0, [])


def test_a_consumer_that_is_fenced_says_so_in_one_line(start: Start, tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    process = start(str(tmp_path), "--follow")
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    with Consumer(tmp_path):
        _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert b"epoch" in complaint
    assert complaint.splitlines()[-1].startswith(b"penstock: ")
    assert b"Traceback" not in complaint


def test_a_broken_pipe_ends_it_quietly_and_what_was_not_written_is_not_acked(start: Start, tmp_path: Path) -> None:
    fill(tmp_path, [b"seen"])
    process = start(str(tmp_path), "--follow")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"seen\n"
    process.stdout.close()
    fill(tmp_path, [b"not seen"])
    assert (process.wait(PATIENCE), process.stderr.read()) == (0, b"")
    assert waiting(tmp_path) == [1]


def test_a_batch_that_is_written_in_part_when_the_pipe_breaks_is_not_acked(start: Start, tmp_path: Path) -> None:
    fill(tmp_path, [b"x" * 1000] * 5000)  # more than any pipe holds
    process = start(str(tmp_path))
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1) == b"x"
    process.stdout.close()
    assert (process.wait(PATIENCE), process.stderr.read()) == (0, b"")
    assert waiting(tmp_path) == [0]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full on this system")
def test_what_cannot_be_written_to_standard_output_is_not_acked(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "consume", str(tmp_path)], stdout=full, stderr=subprocess.PIPE, check=False
        )
    complaint = b"penstock: standard output cannot be written: No space left on device; batch 0 is not acked\n"
    assert (done.returncode, done.stderr) == (1, complaint)
    assert waiting(tmp_path) == [0]


KILLED_BETWEEN_PRINT_AND_ACK = """
import os, signal
from penstock import Consumer
from penstock.cli.app import main

ack_through = Consumer.ack_through

def killed(consumer, sequence):
    if sequence == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ack_through(consumer, sequence)

Consumer.ack_through = killed
main()
"""


def test_what_was_printed_by_one_that_was_killed_before_the_ack_comes_again(tmp_path: Path, consume: Consume) -> None:
    fill(tmp_path, [b"a"], [b"b", b"c"], [b"d"])
    command = [sys.executable, "-c", KILLED_BETWEEN_PRINT_AND_ACK, "consume", str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
    assert (killed.returncode, killed.stdout, killed.stderr) == (-signal.SIGKILL, b"a\nb\nc\n", b"")
    assert waiting(tmp_path) == [1, 2]
    assert consume(str(tmp_path)) == (0, b"b\nc\nd\n", "")


def test_an_ack_that_fails_is_reported_with_the_batch_that_was_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consume: Consume
) -> None:
    def fail(_: Consumer, __: int) -> None:
        raise StorageError("the store is away")

    fill(tmp_path, [b"a"])
    monkeypatch.setattr(Consumer, "ack_through", fail)
    status, answer, complaint = consume(str(tmp_path))
    assert (status, answer) == (1, b"a\n")
    assert complaint == "penstock: batch 0 is printed, and may not be acked\npenstock: the store is away\n"


def test_a_missing_buffer_is_reported_and_not_created(tmp_path: Path, consume: Consume) -> None:
    where = tmp_path / "typo"
    assert consume(str(where)) == (0, b"", f"penstock: {where} is empty: there is no manifest\n")
    assert not where.exists()


@pytest.mark.parametrize("there", [True, False], ids=["a buffer", "none"])
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--start", "bogus"], "start must be 'earliest', 'latest' or a sequence, not 'bogus'"),
        (["--start", "9" * 5000], "start must be 'earliest', 'latest' or a sequence, not a number of 5000 digits"),
        (["--group", ""], "group must be a name of 1 to 128 printable characters, not ''"),
        (["--path", "../up"], "manifest_path: "),
    ],
)
def test_options_are_checked_before_anything_is_looked_for(
    tmp_path: Path, here: Here, there: bool, words: list[str], complaint: str
) -> None:
    if there:
        fill(tmp_path, [b"a"])
    for more in ([], ["--no-ack"]):
        answer = here("consume", str(tmp_path), *more, *words)
        assert answer.is_error(f"{complaint}")


@pytest.mark.parametrize("more", [["--no-ack"], []], ids=["looking", "consuming"])
def test_another_manifest_path_is_read_when_it_is_given(tmp_path: Path, more: list[str], consume: Consume) -> None:
    with Producer(tmp_path, ProducerConfig(manifest_path="orders/manifest")) as producer:
        producer.produce(b"one")
    assert consume(str(tmp_path), "--path", "orders/manifest", *more) == (0, b"one\n", "")
    assert Manifest.read(tmp_path, "orders/manifest").groups["default"].acked_through == (-1 if more else 0)
    assert not (tmp_path / "ingest" / "manifest").exists()


def test_an_invalid_place_is_reported_in_one_line(tmp_path: Path, consume: Consume) -> None:
    status, answer, complaint = consume("nonsense://bucket")
    assert (status, answer) == (1, b"")
    assert complaint.startswith("penstock: nonsense:// is no place for a store")
    assert complaint.count("\n") == 1


def test_storage_options_reach_the_store(tmp_path: Path, consume: Consume) -> None:
    fill(tmp_path, [b"a"])
    assert consume(str(tmp_path), "-o", "sync=false") == (0, b"a\n", "")
    status, _, complaint = consume(str(tmp_path), "-o", "sink=false")
    assert (status, complaint) == (
        1,
        "penstock: unknown option 'sink': the options of this kind of store are: sync, mode\n",
    )
