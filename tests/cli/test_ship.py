"""`penstock ship`: queues of this host go into a buffer, until they are empty or a signal comes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig, DurableEventQueue
from tests.support.command import Here, run
from tests.support.processes import PATIENCE


def fill(path: Path, events: list[bytes]) -> None:
    with DurableEventQueue(path) as queue:
        queue.push_many(events)


def shipped(buffer: Path) -> list[bytes]:
    with Consumer(buffer) as consumer:
        return [value for batch in consumer for value in batch.entries]


def test_a_queue_is_shipped_until_nothing_is_left(tmp_path: Path, here: Here) -> None:
    fill(tmp_path / "queue", [b"one", b"two", b"three"])
    done = here("ship", str(tmp_path / "queue"), str(tmp_path / "buffer"), "--until-idle")
    assert (done.status, done.out, done.err) == (0, "shipped 3 events, 11 bytes\n", "")
    assert shipped(tmp_path / "buffer") == [b"one", b"two", b"three"]
    again = here("ship", str(tmp_path / "queue"), str(tmp_path / "buffer"), "--until-idle")
    assert (again.status, again.out) == (0, "shipped 0 events, 0 bytes\n")


@pytest.mark.parametrize(
    ("version", "asked", "ending"),
    [("native", [], b"PSTB"), ("opendata", [], b"\x01\x00"), ("native", ["--batch-format", "opendata"], b"\x01\x00")],
)
def test_data_objects_have_the_format_of_the_manifest_or_the_one_that_was_asked_for(
    tmp_path: Path, version: str, asked: list[str], ending: bytes, here: Here
) -> None:
    fill(tmp_path / "queue", [b"one"])
    Consumer(tmp_path / "buffer", ConsumerConfig(gc=False, manifest_format=version)).close()
    done = here("ship", str(tmp_path / "queue"), str(tmp_path / "buffer"), "--until-idle", *asked)
    assert done.status == 0
    (found,) = (tmp_path / "buffer").rglob("*.batch")
    assert found.read_bytes().endswith(ending)


def test_a_folder_of_queues_is_shipped(tmp_path: Path, here: Here) -> None:
    for number in range(3):
        fill(tmp_path / "queues" / f"worker-{number}", [b"%d" % number])
    done = here("ship", str(tmp_path / "queues"), str(tmp_path / "buffer"), "--until-idle")
    assert (done.status, done.out) == (0, "shipped 3 events, 3 bytes\n")
    assert shipped(tmp_path / "buffer") == [b"0", b"1", b"2"]


def test_a_place_without_a_queue_is_reported_in_one_line(tmp_path: Path, here: Here) -> None:
    done = here("ship", str(tmp_path / "nothing"), str(tmp_path / "buffer"), "--until-idle")
    assert done.is_error(f"there is no durable queue in {tmp_path / 'nothing'}")


def test_beside_live_workers_it_ships_and_removes_what_dead_ones_left_and_succeeds(tmp_path: Path) -> None:
    folder, buffer = tmp_path / "queues", str(tmp_path / "buffer")
    with DurableEventQueue.for_worker(folder) as dead:
        dead.push(b"left")
        live = [DurableEventQueue.for_worker(folder) for _ in range(2)]
    for queue in live:
        queue.push(b"its own")
    done = run("ship", str(folder), buffer, "--until-idle")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "shipped 1 event, 4 bytes; 2 queues left to live workers\n"
    assert not Path(dead.path).exists()
    assert [queue.ready_len() for queue in live] == [1, 1]
    for queue in live:
        queue.close()
    assert run("ship", str(folder), buffer, "--until-idle").stdout == "shipped 2 events, 14 bytes\n"
    again = run("ship", str(folder), buffer, "--until-idle")
    assert (again.returncode, again.stdout) == (0, "shipped 0 events, 0 bytes\n")
    assert sorted(shipped(tmp_path / "buffer")) == [b"its own", b"its own", b"left"]


def test_a_queue_that_is_open_is_reported_in_one_line(tmp_path: Path) -> None:
    with DurableEventQueue(tmp_path / "queue") as queue:
        queue.push(b"stays")
        done = run("ship", str(tmp_path / "queue"), str(tmp_path / "buffer"), "--until-idle")
        assert queue.ready_len() == 1
    assert done.returncode == 1
    assert "is open in another process" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_invalid_place_is_reported_in_one_line(tmp_path: Path, here: Here) -> None:
    fill(tmp_path / "queue", [b"stays"])
    for nowhere in ("nonsense://bucket", str(tmp_path / "queue" / "CURRENT")):
        done = here("ship", str(tmp_path / "queue"), nowhere, "--until-idle")
        assert done.status == 1
        assert done.err.startswith("penstock: ")
        assert done.err.count("\n") == 1
    with DurableEventQueue(tmp_path / "queue") as queue:
        assert queue.ready_len() == 1


@pytest.mark.parametrize("words", [(), ("queue",), ("queue", "buffer", "more"), ("queue", "buffer", "--nonsense")])
def test_a_mistake_is_reported_and_ends_with_status_2(words: tuple[str, ...], here: Here) -> None:
    done = here("ship", *words)
    assert done.status == 2
    assert "Traceback" not in done.err


SAYS_WHEN_A_BLOCK_IS_ACKED = """
from penstock.cli.app import main
from penstock.engine import QueueReceiver

commit = QueueReceiver.commit

def acked(receiver, tokens):
    commit(receiver, tokens)
    print("acked", len(tokens), flush=True)

QueueReceiver.commit = acked
main()
"""


@pytest.fixture
def shipper(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """The command on a queue, or on a folder of one, which has shipped what there was and waits for more."""
    fill(tmp_path / "queues" / "queue", [b"one", b"two"])
    where = tmp_path / "queues" / request.param
    with subprocess.Popen(
        [sys.executable, "-c", SAYS_WHEN_A_BLOCK_IS_ACKED, "ship", str(where), str(tmp_path / "buffer")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "acked 2\n"
        yield process
        process.kill()


@pytest.mark.parametrize("shipper", ["queue", "."], indirect=True, ids=["one queue", "a folder"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_cleanly(shipper: subprocess.Popen[str], number: signal.Signals, tmp_path: Path) -> None:
    shipper.send_signal(number)
    answer, complained = shipper.communicate(timeout=PATIENCE)
    assert (shipper.returncode, answer, complained) == (0, "shipped 2 events, 6 bytes\n", "")
    with DurableEventQueue(tmp_path / "queues" / "queue") as queue:
        assert queue.is_empty
    assert shipped(tmp_path / "buffer") == [b"one", b"two"]


@pytest.mark.parametrize("shipper", ["."], indirect=True)
def test_without_until_idle_it_goes_on(shipper: subprocess.Popen[str], tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", [b"three"])
    (tmp_path / "elsewhere").rename(tmp_path / "queues" / "new")
    assert shipper.stdout is not None
    assert shipper.stdout.readline() == "acked 1\n"
    shipper.terminate()
    answer, _ = shipper.communicate(timeout=PATIENCE)
    assert (shipper.returncode, answer) == (0, "shipped 3 events, 11 bytes\n")
