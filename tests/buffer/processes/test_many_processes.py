"""Ten producers and a consumer, each a process of its own, on one disk: every entry once, in order, without a gap."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.buffer import Manifest
from tests.buffer.processes.received_batches import ReceivedBatches
from tests.buffer.processes.worker_tasks import Acked, Finished, Got, consume, produce
from tests.buffer.processes.workers import Workers
from tests.support.manifests import NATIVE_FIRST
from tests.support.processes import Start

MANIFESTS = NATIVE_FIRST
PRODUCERS = 10


@pytest.mark.parametrize("each", [100, pytest.param(2_000, marks=pytest.mark.slow)])
def test_the_entries_of_ten_processes_arrive_once_and_in_order(tmp_path: Path, start: Start, each: int) -> None:
    workers = Workers(start)
    received = ReceivedBatches()
    names = [f"p{number}" for number in range(PRODUCERS)]
    consumer = workers.start("consumer", consume, str(tmp_path), None, 0)
    producing = {workers.start(name, produce, str(tmp_path), name, each, seed) for seed, name in enumerate(names)}
    is_stopping = is_over = False
    while not is_over:
        worker, message = workers.hear()
        match message:
            case Got():
                received.add(message)
            case Acked():
                received.add_ack(message)
            case Finished():
                producing.discard(worker)
                is_over = worker is consumer
        if not producing and not is_stopping and received.last + 1 == Manifest.read(tmp_path).next_sequence:
            consumer.child.tell("stop")
            is_stopping = True

    assert received.by_producer() == {name: list(range(each)) for name in names}
    assert received.repeated == 0
    queued = Manifest.read(tmp_path).entries
    assert [entry.sequence for entry in queued] == list(range(received.acked + 1, received.last + 1))
