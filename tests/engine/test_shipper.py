"""`Shipper`: a thread that ships an open queue, for as long as the application runs, and drains it at the end."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import DurableEventQueue, ProducerConfig, open_store
from penstock.engine import Shipper, ship
from penstock.errors import EngineError, InvalidInput, SinkFailed, StorageError
from penstock.testing import Fault, FaultyStore
from tests.support.buffer_contents import entries
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE, Parent, Start, in_forked_child
from tests.support.waiting import Gate, wait_until


@pytest.fixture
def buffer(tmp_path: Path) -> Path:
    return tmp_path / "buffer"


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[DurableEventQueue[bytes]]:
    with DurableEventQueue.for_worker(tmp_path / "queues") as queue:
        yield queue


def shipped(buffer: Path) -> list[bytes]:
    return entries(open_store(buffer))


def test_events_are_shipped_while_the_application_pushes(queue: DurableEventQueue[bytes], buffer: Path) -> None:
    with Shipper(queue, buffer) as shipper:
        for number in range(20):
            queue.push(b"%d" % number)
        wait_until(lambda: queue.is_empty)
        assert shipper.healthy
        queue.push(b"last")
    assert queue.is_empty
    assert shipped(buffer) == [*(b"%d" % number for number in range(20)), b"last"]
    assert not any(thread.name == "penstock-shipper" for thread in threading.enumerate())
    assert (shipper.healthy.ok, shipper.healthy.reason) == (False, "it is closed")
    shipper.close()


def test_the_queue_goes_on_after_it_was_closed(queue: DurableEventQueue[bytes], buffer: Path) -> None:
    Shipper(queue, buffer).close()
    queue.push(b"event")
    assert queue.ready_len() == 1
    with Shipper(queue, buffer):
        pass
    assert shipped(buffer) == [b"event"]


def test_a_store_that_fails_from_the_start_is_tried_again(
    queue: DurableEventQueue[bytes], buffer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(open_store(buffer), rates={})
    store.inject(Fault.ERROR_BEFORE, operation="put", times=1)
    queue.push(b"event")
    with Shipper(queue, store) as shipper:
        wait_until(lambda: queue.is_empty)
        assert shipper.healthy
    assert shipped(buffer) == [b"event"]
    assert "trying again in 1 s" in caplog.text


def test_what_cannot_be_shipped_at_the_end_stays_and_is_logged(
    queue: DurableEventQueue[bytes], buffer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(open_store(buffer), rates={})
    store.inject(Fault.ERROR_BEFORE, operation="put", times=1000)
    queue.push_many([b"one", b"two"])
    with Shipper(queue, store):
        wait_until(lambda: "trying again" in caplog.text)
    assert queue.ready_len() == 2
    assert "2 events stay in the queue until it is opened again" in caplog.text
    assert ship(queue, buffer, until_idle=True).processed == 2


def test_without_time_to_drain_only_the_block_that_is_under_way_is_waited_for(
    queue: DurableEventQueue[bytes], tmp_path: Path, buffer: Path
) -> None:
    gate = Gate()
    store = HookedStore(open_store(buffer))
    store.before("write data", gate)
    with Shipper(queue, store, drain_seconds=0) as shipper:
        queue.push(bytes(9 << 20))  # a block has 16 MiB, and so one of these
        gate.wait_for_arrival()
        queue.push_many([bytes(9 << 20)] * 3)
        closing = threading.Thread(target=shipper.close)
        closing.start()
        wait_until(lambda: not shipper.healthy)
        gate.open()
        closing.join(PATIENCE)
        assert not closing.is_alive()
    assert len(queue) == queue.ready_len() >= 2


def test_an_error_that_a_retry_cannot_mend_is_logged_shown_and_raised_once(
    queue: DurableEventQueue[bytes], buffer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push(bytes(1000))
    shipper = Shipper(queue, buffer, config=ProducerConfig(max_batch_bytes=100))
    wait_until(lambda: not shipper.healthy)
    assert shipper.healthy.reason.startswith("it has ended with SinkFailed: ")
    assert [record.levelno for record in caplog.records if "events only gather" in record.message] == [logging.ERROR]
    with pytest.raises(SinkFailed):
        shipper.close()
    shipper.close()
    assert queue.ready_len() == 1


def test_a_queue_that_was_closed_before_is_an_error(tmp_path: Path, buffer: Path) -> None:
    queue = DurableEventQueue.for_worker(tmp_path)
    shipper = Shipper(queue, buffer)
    queue.close()
    with pytest.raises(EngineError):
        shipper.close()


def test_wrong_arguments_are_refused_at_once(queue: DurableEventQueue[bytes], buffer: Path) -> None:
    for wrong in (None, str(buffer), object()):
        with pytest.raises(InvalidInput, match="a Shipper takes an open DurableEventQueue"):
            Shipper(wrong, buffer)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="drain_seconds"):
        Shipper(queue, buffer, drain_seconds=-1)
    with pytest.raises(InvalidInput):
        Shipper(queue, buffer, config="fast")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        Shipper(queue, "nonsense://bucket")


def use_in_a_child(_: Parent, folder: str, buffer: str) -> tuple[str, int]:
    with DurableEventQueue.for_worker(folder) as queue:
        with Shipper(queue, buffer) as shipper:
            raised = in_forked_child(shipper.close)
            queue.push(b"event")
        return raised, len(queue)


def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path, buffer: Path, start: Start) -> None:
    raised, left = start(use_in_a_child, str(tmp_path / "queues"), str(buffer)).answer()
    assert raised.startswith("InvalidInput: ")
    assert "Open a queue and a Shipper here, and none before the fork" in raised
    assert left == 0


AT_EXIT = """
import signal, sys
from penstock import DurableEventQueue
from penstock.engine import Shipper

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
queue = DurableEventQueue.for_worker(sys.argv[1])
shipper = Shipper(queue, sys.argv[2])
queue.push_many([b"event"] * 1000)
print("pushed", flush=True)
signal.pause()
"""


def test_a_process_that_ends_drains_the_queue_that_it_did_not_close(tmp_path: Path, buffer: Path) -> None:
    """As a worker does that its server ends by SIGTERM."""
    folder = tmp_path / "queues"
    with subprocess.Popen(
        [sys.executable, "-c", AT_EXIT, str(folder), str(buffer)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"pushed\n"
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaints) == (0, b"")
    with DurableEventQueue.for_worker(folder) as queue:
        assert queue.is_empty
    assert len(shipped(buffer)) == 1000


def test_a_drain_that_meets_a_failing_store_raises_nothing(queue: DurableEventQueue[bytes], buffer: Path) -> None:
    store = FaultyStore(open_store(buffer), rates={})
    shipper = Shipper(queue, store)
    queue.push(b"event")
    wait_until(lambda: queue.is_empty)
    store.inject(Fault.ERROR_BEFORE, operation="put", times=1000)
    queue.push(b"stays")
    shipper.close()
    assert queue.ready_len() == 1
    with pytest.raises(StorageError):
        store.put("x", b"")
